"""What every command needs: the entry service, failures with a status, options, output."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import httpx
import typer
from rich import markup
from rich.console import Console
from rich.table import Table

from actonce.unseen import visible, visible_json

ENDED, REFUSED, UNREACHABLE, HELD, TIMEOUT = 1, 3, 4, 5, 6
FINAL = {"complete", "failed", "cancelled"}
POLL_S = 0.3
REQUEST_TIMEOUT_S = 15.0  # the entry answers within its ledger's deadline and its patience with Temporal
VERDICTS_SHOWN_MAX = 3  # the newest; --json has them all
ASK_AGAIN_MAX = 5  # while the very first request is being recorded, or the connection is lost

HOW_TO_SHOW_A_TOKEN = (
    "ACTONCE_ENTRY_TOKEN (or a file named by ACTONCE_ENTRY_TOKEN_FILE) has the one to show; a stack of this machine "
    "keeps its own in its folder."
)
WIDTH_OF_A_FILE = 200  # where no terminal says how wide it is
out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE)
err = Console(stderr=True, highlight=False, soft_wrap=True)

EntryUrl = Annotated[str | None, typer.Option("--entry", help="URL of the entry service.", envvar="ACTONCE_ENTRY_URL")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the entry's answer as JSON.")]
Who = Annotated[str, typer.Option(help="Who decides.", envvar="ACTONCE_OPERATOR")]  # of a parameter called `name`
Why = Annotated[str, typer.Option(help="Why.")]
Tenant = Annotated[str, typer.Option(help="Whose task it is.")]
Timeout = Annotated[float, typer.Option(help="Stop waiting after this many seconds (exit status 6).")]
PastHolds = Annotated[bool, typer.Option("--past-holds", help="Go on waiting while the task is held.")]


@dataclass
class Given:
    """What was said before the command's name."""

    token: str | None = None
    token_file: Path | None = None
    at_the_end: Callable[[Callable[[], None]], object] | None = None  # where what a command has opened is closed


given = Given()


class Failure(typer.Exit):
    """Say what went wrong on standard error and leave with a status."""

    def __init__(self, status: int, text: str) -> None:
        err.print(f"[red]actonce.client:[/red] {escape(text)}")
        super().__init__(status)


class Entry:
    """The entry service, as seen from here."""

    def __init__(self, url: str | None) -> None:
        self.url = (url or _url_of_the_stack()).rstrip("/")
        # A proxy of the environment is for the world outside, not for this machine.
        outside = urlsplit(self.url).hostname not in ("127.0.0.1", "localhost", "::1")
        token = _token_for(self.url)
        shown = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = httpx.Client(base_url=self.url, timeout=REQUEST_TIMEOUT_S, trust_env=outside, headers=shown)
        if given.at_the_end is not None:
            given.at_the_end(self.http.close)

    def get(self, path: str, **params: Any) -> Any:
        wanted = {name: value for name, value in params.items() if value is not None}
        return self._said(self._send("GET", path, params=wanted))

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self._said(self._send("POST", path, json=body, headers=headers))

    def start(self, task_type: str, key: str, tenant: str, payload: Any) -> Any:
        """Start, and ask again where asking again is what is called for: the same key is the same task."""
        headers = {"Idempotency-Key": key, "Actonce-Tenant": tenant}
        for left in range(ASK_AGAIN_MAX - 1, -1, -1):
            try:
                answer = self.http.post(f"/v1/tasks/{quote(task_type, safe='')}", json=payload, headers=headers)
            except httpx.TransportError as error:
                if left and not isinstance(error, httpx.ConnectError):
                    continue
                raise self._away(error) from error
            if answer.status_code == 409 and left:
                time.sleep(min(float(answer.headers.get("Retry-After", "1")), 5.0))
                continue
            return self._said(answer)
        raise AssertionError("the last round returns or raises")

    def _send(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            return self.http.request(method, path, **more)
        except httpx.TransportError as error:
            raise self._away(error) from error

    def _away(self, error: httpx.TransportError) -> Failure:
        return Failure(
            UNREACHABLE,
            f"the entry at {self.url} does not answer ({type(error).__name__}: {error}). Is it running? "
            "`actonce up` starts one here; --entry or ACTONCE_ENTRY_URL names another.",
        )

    def _said(self, answer: httpx.Response) -> Any:
        if answer.is_success:
            return answer.json()
        if "json" not in answer.headers.get("content-type", ""):
            raise Failure(UNREACHABLE, f"{self.url} answered {answer.status_code}; is it really an actonce entry?")
        problem = answer.json()
        text = f"{problem.get('title')}: {problem.get('detail', '')}"
        if problem.get("code"):
            text += f" (code {problem['code']})"
        if answer.status_code == 401:
            text += f" {HOW_TO_SHOW_A_TOKEN}"
        if problem.get("may_commit_until"):
            text += f" The effect may still happen until {problem['may_commit_until']}."
        raise Failure(UNREACHABLE if answer.status_code >= 500 else REFUSED, text)


def _url_of_the_stack() -> str:
    """The entry of the stack that runs in the default folder."""
    file = _folder_of_the_stack() / "stack.json"
    try:
        url = json.loads(file.read_text())["parts"]["entry"]["values"]["url"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure(
            2,
            f"which entry? {file} names none ({type(error).__name__}). Use --entry URL, ACTONCE_ENTRY_URL, or start "
            "a stack here with `actonce up`.",
        ) from error
    return str(url)


def _folder_of_the_stack() -> Path:
    return Path(os.environ.get("ACTONCE_STACK_FOLDER", ".actonce"))


def _token_for(url: str) -> str | None:
    """The token to show there. What `actonce up` has put into its folder is for its own entry, and for no other."""
    if given.token:
        return given.token
    if given.token_file is not None:
        return _read(given.token_file)
    try:
        ours = _url_of_the_stack().rstrip("/") == url
    except Failure:
        return None
    file = _folder_of_the_stack() / "client.token"
    return _read(file) if ours and file.exists() else None


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError as error:
        raise Failure(2, f"the token cannot be read from {file}: {error.strerror}") from error


def task_path(task_id: str) -> str:
    if task_id.count("/") < 2:
        raise Failure(2, f"{task_id!r} is neither an operation_id (op1_…) nor a task id (tenant/task_type/task_key)")
    return f"/v1/tasks/{quote(task_id, safe='')}"


def at(moment: str | None) -> str:
    """A time for people: to the second, in UTC."""
    return f"{moment[:10]} {moment[11:19]}Z" if moment else ""


def escape(text: str) -> str:
    """Words of others, as they are: neither markup to us nor orders to a terminal, and nothing in them is unseen."""
    return markup.escape(visible(text))


def dump(value: Any) -> None:
    print(visible_json(value), flush=True)


def payload_of(text: str) -> Any:
    try:
        if text.startswith("@"):
            text = sys.stdin.read() if text == "@-" else Path(text[1:]).read_text()
        return json.loads(text)
    except (OSError, ValueError) as error:
        raise Failure(2, f"--payload is no JSON ({error}); give JSON, @file, or @- for standard input") from error


def table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        cells = (at(row[c]) if c in ("since", "created_at") else row.get(c) for c in columns)
        table.add_row(*("" if cell is None else escape(str(cell)) for cell in cells))
    out.print(table if rows else "none")
