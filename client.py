"""Command line of actonce: start tasks, follow them, look at operations, decide about held ones.

Talks to the entry service and to nothing else. `--json` prints the entry's answers, one JSON document a line.

Exit status: 0 done; 1 the task ended failed or cancelled; 2 wrong usage; 3 the entry refused (the message says why);
4 the entry, or its ledger, cannot be reached; 5 the task is held: a person must decide; 6 it takes
longer than --timeout-s.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import httpx
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

ENDED, REFUSED, UNREACHABLE, HELD, TIMEOUT = 1, 3, 4, 5, 6
FINAL = {"complete", "failed", "cancelled"}
POLL_S = 0.3
REQUEST_TIMEOUT_S = 15.0  # the entry answers within its ledger's deadline and its patience with Temporal
VERDICTS_SHOWN_MAX = 3  # the newest; --json has them all
ASK_AGAIN_MAX = 5  # while the very first request is being recorded, or the connection is lost

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, rich_markup_mode=None)
WIDTH_OF_A_FILE = 200  # where no terminal says how wide it is
out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE)
err = Console(stderr=True, highlight=False, soft_wrap=True)

EntryUrl = Annotated[str | None, typer.Option("--entry", help="URL of the entry service.", envvar="ACTONCE_ENTRY_URL")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the entry's answer as JSON.")]
Tenant = Annotated[str, typer.Option(help="Whose task it is.")]
Timeout = Annotated[float, typer.Option(help="Stop waiting after this many seconds (exit status 6).")]
PastHolds = Annotated[bool, typer.Option("--past-holds", help="Go on waiting while the task is held.")]


class Failure(typer.Exit):
    """Say what went wrong on standard error and leave with a status."""

    def __init__(self, status: int, text: str) -> None:
        err.print(f"[red]client.py:[/red] {escape(text)}")
        super().__init__(status)


class Entry:
    """The entry service, as seen from here."""

    def __init__(self, url: str | None) -> None:
        self.url = (url or _url_of_the_stack()).rstrip("/")
        # A proxy of the environment is for the world outside, not for this machine.
        outside = urlsplit(self.url).hostname not in ("127.0.0.1", "localhost", "::1")
        self.http = httpx.Client(base_url=self.url, timeout=REQUEST_TIMEOUT_S, trust_env=outside)

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
        if problem.get("may_commit_until"):
            text += f" The effect may still happen until {problem['may_commit_until']}."
        raise Failure(UNREACHABLE if answer.status_code >= 500 else REFUSED, text)


def _url_of_the_stack() -> str:
    """The entry of the stack that runs in the default folder."""
    file = Path(os.environ.get("ACTONCE_STACK_FOLDER", ".actonce")) / "stack.json"
    try:
        url = json.loads(file.read_text())["parts"]["entry"]["values"]["url"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure(
            2,
            f"which entry? {file} names none ({type(error).__name__}). Use --entry URL, ACTONCE_ENTRY_URL, or start "
            "a stack here with `actonce up`.",
        ) from error
    return str(url)


def _task_path(task_id: str) -> str:
    if task_id.count("/") < 2:
        raise Failure(2, f"{task_id!r} is neither an operation_id (op1_…) nor a task id (tenant/task_type/task_key)")
    return f"/v1/tasks/{quote(task_id, safe='')}"


def _at(moment: str | None) -> str:
    """A time for people: to the second, in UTC."""
    return f"{moment[:10]} {moment[11:19]}Z" if moment else ""


def _dump(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False), flush=True)


def _payload(text: str) -> Any:
    try:
        if text.startswith("@"):
            text = sys.stdin.read() if text == "@-" else Path(text[1:]).read_text()
        return json.loads(text)
    except (OSError, ValueError) as error:
        raise Failure(2, f"--payload is no JSON ({error}); give JSON, @file, or @- for standard input") from error


@app.command()
def start(
    task_type: Annotated[str, typer.Argument(help="For example refund.")],
    key: Annotated[str, typer.Option(help="The business identity of the task; the same key is the same task.")],
    payload: Annotated[str, typer.Option(help="JSON, @file, or @- for standard input.")],
    tenant: Tenant = "default",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it ends or is held.")] = False,
    timeout_s: Timeout = 600.0,
    past_holds: PastHolds = False,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Start a task, or find the one with this key."""
    service = Entry(entry)
    task = service.start(task_type, key, tenant, _payload(payload))
    if wait:
        _follow(service, task["task_id"], timeout_s, past_holds, as_json)
    elif as_json:
        _dump(task)
    else:
        _show_task(task)


@app.command()
def follow(
    task_id: str,
    timeout_s: Timeout = 600.0,
    past_holds: PastHolds = False,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print each change of a task until it ends or is held."""
    _follow(Entry(entry), task_id, timeout_s, past_holds, as_json)


def _follow(service: Entry, task_id: str, timeout_s: float, past_holds: bool, as_json: bool) -> None:
    path, deadline, before = _task_path(task_id), time.monotonic() + timeout_s, None
    with err.status(f"following {task_id}"):
        while True:
            task = service.get(path)
            now = (task["state"], task["why"], [(o["operation_id"], o["state"]) for o in task["operations"]])
            if now != before:
                before = now
                _dump(task) if as_json else _change(task)
            if task["state"] in FINAL or (task["state"] == "held" and not past_holds):
                break
            if time.monotonic() > deadline:
                raise Failure(TIMEOUT, f"{task_id} is still {task['state']} after {timeout_s:g} s: {task['why']}")
            time.sleep(POLL_S)
    if not as_json:
        _show_task(task)
    status = {"complete": 0, "held": HELD}.get(task["state"], ENDED)
    if status:
        raise typer.Exit(status)


def _change(task: dict[str, Any]) -> None:
    operations = ", ".join(f"{o['step']} {o['state']}" for o in task["operations"])
    out.print(f"{_at(task['since'])}  [bold]{task['state']}[/bold]  {escape(task['why'])}  {escape(operations)}")


@app.command("list")
def list_(
    state: Annotated[str | None, typer.Option(help="Only tasks in this state.")] = None,
    task_type: Annotated[str | None, typer.Option(help="Only this type.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    natural_key: Annotated[str | None, typer.Option(help="List operations with this natural effect key.")] = None,
    limit: int = 50,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """List tasks, newest first; with --natural-key the operations that hold that key."""
    service = Entry(entry)
    if natural_key is not None:
        found = service.get("/v1/operations", natural_key=natural_key, tenant=tenant, limit=limit)
        columns: tuple[str, ...] = ("operation_id", "destination", "action", "state", "reason", "task_id", "created_at")
    else:
        found = service.get("/v1/tasks", state=state, task_type=task_type, tenant=tenant, limit=limit)
        columns = ("task_id", "state", "reason", "since", "why")
    _dump(found) if as_json else _table(found, columns)


@app.command()
def show(
    id_: Annotated[str, typer.Argument(metavar="ID", help="A task id or an operation_id.")],
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show a task, or every record about an operation."""
    service = Entry(entry)
    if id_.startswith("op1_"):
        found = service.get(f"/v1/operations/{quote(id_, safe='')}")
        if as_json:
            return _dump(found)
        for record in found["records"]:
            _show_operation(record)
    else:
        task = service.get(_task_path(id_))
        _dump(task) if as_json else _show_task(task)
    return None


@app.command()
def resolve(
    operation_id: str,
    action: Annotated[str, typer.Option(help="mark_committed, mark_absent, permit_one_retry or resume.")],
    name: Annotated[str, typer.Option(help="Who decides.", envvar="ACTONCE_OPERATOR")],
    reason: Annotated[str, typer.Option(help="Why.")],
    expected_version: Annotated[int, typer.Option(help="The version you decide on; `show` has it.")],
    expected_epoch: Annotated[int, typer.Option(help="The epoch you decide on; `show` has it.")],
    evidence: Annotated[str, typer.Option(help="What you saw, and where.")] = "",
    object_id: Annotated[str | None, typer.Option(help="The destination's id; for mark_committed.")] = None,
    expires_in_s: Annotated[float, typer.Option(help="The decision lapses when it is not consumed by then.")] = 3600.0,
    tenant: Annotated[str | None, typer.Option(help="When the id has several records.")] = None,
    destination: Annotated[str | None, typer.Option(help="When the id has several records.")] = None,
    operation_action: Annotated[str | None, typer.Option(help="When the id has several records.")] = None,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Record a decision about a held operation. It is consumed after one more reading of the destination."""
    body = {
        "action": action,
        "name": name,
        "reason": reason,
        "evidence": evidence,
        "object_id": object_id,
        "expected_version": expected_version,
        "expected_epoch": expected_epoch,
        "expires_in_s": expires_in_s,
        "tenant": tenant,
        "destination": destination,
        "operation_action": operation_action,
    }
    found = Entry(entry).post(f"/v1/operations/{quote(operation_id, safe='')}/decisions", body)
    if as_json:
        return _dump(found)
    out.print(f"decision {found['decision_id']} is recorded: {found['decision']} by {escape(found['name'])}")
    if found["residual_risk"]:
        out.print(f"[yellow]residual risk:[/yellow] {escape(found['residual_risk'])}")
    told = "the workflow was told" if found["workflow_told"] else "the workflow will be told by the ledger watcher"
    out.print(f"{told}; what came of it: {' '.join(found['what_to_do'])}")
    return None


@app.command()
def cancel(task_id: str, entry: EntryUrl = None, as_json: AsJson = False) -> None:
    """Ask for cancellation. What may have been sent is reconciled before the task ends."""
    found = Entry(entry).post(f"{_task_path(task_id)}/cancel")
    if as_json:
        return _dump(found)
    if found["state"] in FINAL:
        out.print(f"{escape(task_id)} is {found['state']} already; nothing was cancelled")
    else:
        flying = ", ".join(found["in_flight"])
        out.print(f"cancellation of {escape(task_id)} is recorded; unused permits are void")
        out.print(f"may have been sent, being reconciled: {flying}" if flying else "nothing is in flight")
    return None


@app.command()
def pages(
    all_: Annotated[bool, typer.Option("--all", help="Also closed ones.")] = False,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """List pages, newest first."""
    found = Entry(entry).get("/v1/pages", all="true" if all_ else None)
    if as_json:
        return _dump(found)
    for page in found:
        seen = f"seen by {page['acknowledged_by']}" if page["acknowledged_by"] else "nobody has seen it"
        sent = ", ".join(f"{channel}: {said}" for channel, said in page["delivery"].items()) or "not sent yet"
        state = "closed" if page["closed_at"] else "open"
        out.print(f"[bold]page {page['page_id']}[/bold]  {state}, {escape(seen)}; {escape(sent)}")
        out.print(f"  {escape(page['title'])}\n  " + escape(page["body"]).replace("\n", "\n  "))
    if not found:
        out.print("no open pages")
    return None


@app.command()
def ack(
    page_id: int,
    name: Annotated[str, typer.Option(help="Who has seen it.", envvar="ACTONCE_OPERATOR")],
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Say that you have seen a page: it is not repeated. The incident stays open."""
    found = Entry(entry).post(f"/v1/pages/{page_id}/acknowledge", {"name": name})
    _dump(found) if as_json else out.print(f"page {page_id} is acknowledged by {escape(name)}")


@app.command()
def dependencies(entry: EntryUrl = None, as_json: AsJson = False) -> None:
    """Show what everything needs, as it was last really reached."""
    found = Entry(entry).get("/dependencies")
    if as_json:
        return _dump(found)
    for one in found["dependencies"]:
        age = "" if one["age_s"] is None else f"{one['age_s']:.0f} s ago"
        one["state"] += f" (was {one['last_reading']})" if one["last_reading"] else ""
        one["read"] = age
    out.print(f"[bold]{found['state']}[/bold]")
    _table(found["dependencies"], ("name", "state", "read", "detail", "blocks"))
    return None


def _table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        cells = (_at(row[c]) if c in ("since", "created_at") else row.get(c) for c in columns)
        table.add_row(*("" if cell is None else escape(str(cell)) for cell in cells))
    out.print(table if rows else "none")


def _show_task(task: dict[str, Any]) -> None:
    out.print(f"[bold]{escape(task['task_id'])}[/bold]  {task['state']} since {_at(task['since'])}")
    out.print(f"  {escape(task['why'])}")
    for operation in task["operations"]:
        _summary(operation)
    if task["outcome"]:
        out.print(f"  outcome: {escape(task['outcome'].get('summary', ''))}")
    for step in task["what_to_do"]:
        out.print(f"  do: {escape(step)}")
    if task["workflow"]["ui"]:
        out.print(f"  Temporal UI: {task['workflow']['ui']}")


def _summary(o: dict[str, Any]) -> None:
    facts = (f"{name} {_at(o['facts'][name]) or 'not established'}" for name in ("issued", "committed", "acknowledged"))
    where = f"{escape(o['action'])} at {escape(o['destination'])}"
    out.print(f"  {escape(o['step'])}: [bold]{o['state']}[/bold]  {where}  {o['operation_id']}")
    out.print(f"    {', '.join(facts)}")
    if o["object_id"]:
        out.print(f"    {escape(o['object_id'])}, by {o['completion'] or 'no evidence yet'}")
    if o["hold"]:
        out.print(f"    held since {_at(o['hold']['opened_at'])}: {o['hold']['reason']}: {escape(o['hold']['words'])}")
    if o["state"] not in ("committed", "refused", "closed"):
        out.print(f"    {o['may_commit']}")


def _show_operation(record: dict[str, Any]) -> None:
    _summary(record)
    out.print(f"    tenant {escape(record['tenant'])}, task {escape(record['task_id'])}")
    out.print(f"    epoch {record['epoch']}, version {record['version']}, digest {record['payload_digest']}")
    out.print(f"    payload {escape(json.dumps(record['payload'], ensure_ascii=False))}")
    for a in record["attempt_records"]:
        said = a["outcome"] or "no outcome recorded"
        out.print(f"    attempt {a['epoch']}.{a['attempt']}  key {a['wire_key']}  until {_at(a['not_after'])}: {said}")
    for k in record["acknowledgements"]:
        odd = ", contradicts what was known" if k["contradicts"] else ""
        out.print(
            f"    acknowledged {_at(k['at'])}: {escape(k['object_id'])} (attempt {k['epoch']}.{k['attempt']}{odd})"
        )
    for v in record["verdicts"][:VERDICTS_SHOWN_MAX]:
        _verdict(v)
    for d in record["decisions"]:
        said = d["result"] or "not consumed yet"
        out.print(f"    decision {d['decision_id']}: {d['decision']} by {escape(d['name'])}: {said}")
    for step in record["what_to_do"]:
        out.print(f"  do: {escape(step)}")


def _verdict(v: dict[str, Any]) -> None:
    reason = f" ({v['reason']})" if v["reason"] else ""
    out.print(f"    verdict {_at(v['at'])}: {v['outcome']}{reason}: {escape(v['words'])}")
    for r in v["readings"]:
        total = "" if r["declared_total"] is None else f" of {r['declared_total']} declared"
        whole = "complete" if r["complete"] else "not complete"
        trouble = escape(r["error"] or "")
        out.print(f"      {escape(r['route'])}: {r['status']}, {r['rows_received']} rows{total}, {whole}  {trouble}")


if __name__ == "__main__":
    app()
