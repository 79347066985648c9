"""The command line itself; the modules beside this one add their commands to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from actonce.client.base import given

DOC = """Command line of actonce: start tasks, follow them, look at operations, decide about held ones.

Talks to the entry service and to nothing else. `--json` prints the entry's answers, one JSON document a line.

Exit status: 0 done; 1 the task ended failed or cancelled; 2 wrong usage; 3 the entry refused (the message says why);
4 the entry, or its ledger, cannot be reached; 5 the task is held: a person must decide; 6 it takes
longer than --timeout-s.
"""

app = typer.Typer(no_args_is_help=True, add_completion=False, help=DOC, rich_markup_mode=None)


@app.callback()
def options(
    context: typer.Context,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="ACTONCE_ENTRY_TOKEN",
            help="What to show at the entry. Other users of the machine can read it here, but not in the environment.",
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(envvar="ACTONCE_ENTRY_TOKEN_FILE", help="File with the token.", show_default=False),
    ] = None,
) -> None:
    """Who is asking: without either, the stack of this folder tells."""
    given.token, given.token_file, given.at_the_end = token, token_file, context.call_on_close
