"""`python -m actonce.console`: serve until SIGTERM or SIGINT. Prints one JSON line when it listens.

Migrates nothing: it waits for no one, and until the ledger is there every page says that it is not.
Exit status: 1 it could not start (the message says what to do); asked to stop, it ends what
it answers and then by the signal.
"""

from __future__ import annotations

import asyncio
import sys

from pydantic import ValidationError
from temporalio.envconfig import ClientConfig

from actonce.console.app import create_app
from actonce.console.settings import ConsoleSettings
from actonce.leaving import run_and_leave
from actonce.logs import configure
from actonce.serving import Server, listen


def main() -> None:
    configure()
    try:
        settings = ConsoleSettings()
    except ValidationError as error:
        raise SystemExit(f"actonce.console: settings do not fit:\n{error}") from error
    sock = listen(*settings.address, program="console")
    namespace = str(ClientConfig.load_client_connect_config().get("namespace") or "default")
    app = create_app(settings, namespace=namespace)
    # Pages that are open hang on their event stream: they are let go first, else stopping would wait for them.
    server = Server(
        app,
        sock,
        program="console",
        certificate=settings.console_tls_cert,
        key=settings.console_tls_key,
        behind_proxy=settings.console_behind_tls_proxy,
        before_stop=app.state.console.stopping.set,
    )
    sys.exit(asyncio.run(server.serve_until_asked()))


if __name__ == "__main__":
    run_and_leave(main)
