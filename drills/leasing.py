"""What the drill `credential-expired` puts beside a cell: leases from the world's manager, and a witness of them.

The manager's token lies in a folder of its own that is removed at the end; everything else that a cell leaves is
searched for marked secrets when its processes have ended. Facts about leases come from the manager's own journal.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from actonce.evidence.checks_credentials import SEARCHED
from actonce.testing.parts import OWNER
from actonce.testing.site import Invalid
from drills import doors
from drills.console import acts
from drills.rig import PURPOSES, READS, Cell
from drills.world.leases import default_token, mark_of

TICK_S = 0.5
PIECE_BYTES = 1 << 20  # of a file, read at once
LIFE_S = 4.0  # of a lease of the write's credential: eight ticks
APPROVAL_OVER_MINOR = 5_000
Row = dict[str, Any]


def leased(
    min_left_s: float = 1.0, *, tick_s: float = TICK_S, searched: bool = True, **modes: Any
) -> Callable[[Cell], AbstractAsyncContextManager[dict[str, str]]]:
    """For `CellSpec.attach`. `modes` are of the world's lease manager; `searched`: `search` at its end."""

    @contextlib.asynccontextmanager
    async def attach(cell: Cell) -> AsyncIterator[dict[str, str]]:
        host, port = cell.run.world.listeners["leases"].removeprefix("http://").split(":")
        proxy = await cell.add_proxy("leases", host, int(port))
        await cell.run.world.configure(cell.account, "payments", leased=True)
        await cell.run.world.lease(cell.account, **{"life_s": LIFE_S, "only": ["write"], **modes})
        cell.spec.settings = with_credentials(cell, min_left_s)
        apart = Path(tempfile.mkdtemp(prefix="actonce-manager-token-"))
        try:
            (apart / "token").write_text(default_token(cell.account), encoding="utf-8")
            path = cell.folder / "credentials.json"
            path.write_text(json.dumps(settings(cell, f"http://{proxy.host}:{proxy.port}", apart / "token", tick_s)))
            yield {"ACTONCE_CREDENTIALS": str(path), "ACTONCE_PROBE_EVERY_S": "1"}
        finally:
            shutil.rmtree(apart, ignore_errors=True)
            if searched:
                await search(cell)

    return attach


def settings(cell: Cell, address: str, token_file: Path, tick_s: float) -> dict[str, Any]:
    """The file that ACTONCE_CREDENTIALS names."""
    wanted = {
        f"{cell.account}/{purpose}": {
            "path": f"{cell.account}/creds/{purpose}",
            "secret_field": "token",
            "principal": principal(cell),
            "scope_field": "scope",
        }
        for purpose in PURPOSES
    }
    vault = {"address": address, "token_file": str(token_file), "credentials": wanted}
    return {"tick_s": tick_s, "vault": vault}


def with_credentials(cell: Cell, min_left_s: float) -> dict[str, Any]:
    """The cell's sandbox settings, with every credential of payments leased."""
    uses = [
        {
            "name": f"{cell.account}/{purpose}",
            "scope": "payments:write" if purpose == "write" else "payments:read",
            "min_left_s": min_left_s if purpose == "write" else 0.5,
        }
        for purpose in PURPOSES
    ]
    contracts = {**cell.spec.settings.get("contracts", {})}
    contracts["payments"] = {**contracts.get("payments", {}), "credentials": uses}
    return {**cell.spec.settings, "contracts": contracts}


def principal(cell: Cell) -> str:
    return f"agent-{cell.account}"


async def set_policy(cell: Cell, version: int, *, allows: bool, for_run: bool = False) -> None:
    """The owner of the access policy puts the next one in force, through the client (the console shows it and has no
    button for it); the drill keeps what it says.

    `for_run`: it is on record for the whole run and not for the cell alone.
    """
    place = None if for_run else cell.name
    rule = {
        "principal": principal(cell),
        "destination": "payments",
        "actions": ["refund" if allows else "look"],
        "scope": "payments:write",
    }
    policy = json.dumps({"version": version, "rules": [rule]})
    line: dict[str, Any] = {"allowed": allows, "policy_version": version}
    if allows:  # from before it is in force; when rights are taken away, from when they are
        cell.run.writer.append("drill", "authority", place, **line)
    said = await doors.client(
        cell, "access-policy", "--set", policy, "--name", "policy owner", "--reason", "the drill", "--json"
    )
    if said.code != 0:
        raise Invalid(f"{cell.name}: the access policy was not taken: {said.err[-400:]}")
    if not allows:
        cell.run.writer.append("drill", "authority", place, **line)


async def credential(cell: Cell, purpose: str = "write") -> Row:
    """The credential as the client shows it."""
    said = await doors.client(cell, "credentials", "--json")
    if said.code != 0:
        raise Invalid(f"{cell.name}: credentials could not be listed: {said.err[-400:]}")
    found = [one for one in said.json if one["name"] == f"{cell.account}/{purpose}"]
    if not found:
        raise Invalid(f"{cell.name}: no credential {purpose} is known")
    row: Row = found[0]
    return row


async def rotate(cell: Cell, purpose: str = "write") -> None:
    """Its owner rotates it, at the console."""
    who = await cell.console.visitor(OWNER)
    pressed = await acts.rotate(who, f"{cell.account}/{purpose}", "it expired")
    if not pressed.done:
        raise Invalid(f"{cell.name}: it was not rotated: {pressed.answer}")


def events(cell: Cell, purpose: str | None = None) -> list[Row]:
    """What the lease manager did for this cell, by its journal."""
    lines = [line for line in cell.run.tail.of(cell.account) if line["kind"] == "lease"]
    return [line for line in lines if purpose in (None, line.get("purpose"))]


def standing(cell: Cell, purpose: str = "write") -> dict[str, Any]:
    """How many leases there were and are in force, and how often another was refused: facts for the record."""
    ends: dict[str, float] = {}
    denied = 0
    for line in events(cell, purpose):
        if line["event"] in ("issued", "renewed"):
            ends[line["lease_id"]] = line["mono_ns"] / 1e9 + float(line.get("life_s") or line.get("left_s") or 0.0)
        elif line["event"] == "ended":
            ends[line["lease_id"]] = line["mono_ns"] / 1e9
        denied += line["event"] == "denied"
    in_force = sum(end > time.monotonic() for end in ends.values())
    return {"had": len(ends), "in_force": in_force, "denied": denied}


def turned_away(cell: Cell) -> dict[str, int]:
    """401s of each read route, by the destination's journal."""
    lines = [line for line in cell.run.tail.of(cell.account) if line["kind"] == "refused"]
    return {route: sum(f"credential {route} 401" in line["why"] for line in lines) for route in READS}


async def key_holder(cell: Cell, subject: str) -> dict[str, Any]:
    """A fresh process is given the newest page about the subject, a sign-in at the console, and nothing else."""
    pages = [p for p in cell.run.sink.of(cell.channel) if subject in f"{p.title} {p.text}"]
    if not pages:
        raise Invalid(f"{cell.name}: no page about {subject} arrived, so nobody is called")
    done = await doors.person(cell, "drills.keyholder", OWNER, pages[-1])
    doors.record_view(
        cell,
        "operator",
        {"page": pages[-1].text, "did": done},
        (
            "from page and procedure alone the credential is rotated and the operation decided",
            "lost" not in done,
            str(done.get("lost") or done.get("action"))[:300],
        ),
    )
    if done.get("action") in ("resume", "mark_absent"):
        doors.record_decision(cell, done)
    return done


# the marked secret ------------------------------------------------------------------------------------------------


async def search(cell: Cell, *, for_run: bool = False) -> None:
    """Look for a marked secret in everything that the cell leaves, and put on record where it was looked for.

    `for_run`: in what every cell of the run left, and on record for the whole run.
    """
    mark = mark_of(cell.account).encode()  # another cell's leak is that cell's finding
    found: dict[str, tuple[int, bool]] = {}
    for path in _files(cell, cell.run.folder / "cells" if for_run else cell.folder):
        before, now = found.get(path.name, (0, False)), read_for(path, mark)  # several lives have logs of one name
        found[path.name] = (before[0] + now[0], before[1] or now[1])
    pages = "\n".join(f"{p.title}\n{p.text}" for p in cell.run.sink.of(cell.channel)).encode()
    found["pages"] = (len(pages), mark in pages)
    found |= await _ledger(cell, mark)
    facts = {
        "places": sorted(found),
        "bytes": sum(size for size, _ in found.values()),
        "hits": sorted(place for place, (_, hit) in found.items() if hit),
    }
    place, target = (None, "the run") if for_run else (cell.name, cell.name)
    cell.run.writer.append("witness", "observation", place, name=SEARCHED, target=target, facts=facts)


def read_for(path: Path, mark: bytes) -> tuple[int, bool]:
    """How many bytes the file has, and whether the mark is among them; a long file is not held whole."""
    size, hit, end = 0, False, b""
    with path.open("rb") as file:
        while block := file.read(PIECE_BYTES):
            size += len(block)
            hit = hit or mark in end + block
            end = block[-len(mark) :]
    return size, hit


def _files(cell: Cell, folder: Path) -> Iterable[Path]:
    """Logs and settings of its processes, the world's journal, the record so far, Temporal's own file."""
    yield from (path for path in sorted(folder.rglob("*")) if path.is_file())
    yield cell.run.world.journal_path
    yield from (path for path in sorted(cell.run.writer.folder.rglob("*")) if path.is_file())
    yield from sorted(cell.run.stack.folder.glob("temporal.db*"))


async def _ledger(cell: Cell, mark: bytes) -> dict[str, tuple[int, bool]]:
    """Every row of every table, as text: the server looks, so that a long ledger is not held here."""
    found: dict[str, tuple[int, bool]] = {}
    async with await psycopg.AsyncConnection.connect(cell.parts.dsn(cell.database), autocommit=True) as link:
        tables = await (
            await link.execute("SELECT schemaname, tablename FROM pg_tables WHERE schemaname LIKE 'actonce%'")
        ).fetchall()
        for schema, table in tables:
            query = sql.SQL(
                "SELECT coalesce(sum(octet_length(t::text)), 0)::bigint,"
                " coalesce(bool_or(position({} in t::text) > 0), false) FROM {} t"
            ).format(sql.Literal(mark.decode()), sql.Identifier(schema, table))
            row = await (await link.execute(query)).fetchone()
            found[f"ledger {schema}.{table}"] = (int(row[0]), bool(row[1])) if row else (0, False)
    return found
