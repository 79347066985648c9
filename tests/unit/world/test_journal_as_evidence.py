"""Everything the world writes into its journal is accepted by the judge's own models, line for line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from actonce.contracts.errors import Unknown
from actonce.evidence.journal import journal_events
from actonce.evidence.lines import parse_line
from drills.world.client import World
from tests.unit.world.helpers import SECRET, destination, eventually, lookup_for, make_call, read_all, running_world


async def test_only_its_owner_may_read_it_also_where_it_was_there_before(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch(mode=0o644)
    for folder in (tmp_path, tmp_path / "new"):
        async with running_world(folder) as world:
            assert world.journal_path.stat().st_mode & 0o777 == 0o600


async def test_every_line_becomes_evidence(world: World) -> None:
    await world.prove_controlled(SECRET)
    await world.configure("acct", late_arrival="cancel_by_key", answer={"kind": "gateway", "times": 1})
    dest, undo = (destination(world, "acct", n, late_arrival="cancel_by_key") for n in ("payments", "reversals"))
    mail = destination(world, "acct", "mail")
    call = make_call(dest.contract)
    latch = await world.latch("acct", "processing")
    sending = asyncio.create_task(dest.send(call))
    await world.wait_latch("acct", latch)
    await world.release("acct", latch)
    with pytest.raises(Unknown):
        await sending
    rows, _ = await read_all(dest, "list", lookup_for(call))
    await undo.send(make_call(undo.contract, {"reverses": rows[0].object_id, "reason": "mistake"}))
    assert dest.beacon is not None and dest.cancel_key is not None
    await dest.beacon("bcn_1", 2.0)
    await dest.cancel_key("op1_unused", 2.0)
    await world.plant_look_alikes("acct", call.operation_id, "refund", dict(call.payload))
    dropped = await world.latch("acct", "arrived")
    sending = asyncio.create_task(dest.send(make_call(dest.contract)))
    await world.wait_latch("acct", dropped)
    await world.release("acct", dropped, action="drop")
    with pytest.raises(Unknown):
        await sending
    await mail.send(make_call(mail.contract, {"to": "a@b.org", "subject": "s", "text": "t"}))
    await eventually(lambda: any(line["kind"] == "dropped" for line in world.journal()))

    raw = world.journal()
    events = journal_events(raw, "world", lambda line: "cell" if line.get("account") else None)
    assert [e["seq"] for e in events] == [line["order"] for line in raw]
    parsed = [parse_line(event | {"order": number}) for number, event in enumerate(events, 1)]
    kinds = {line.kind for line in parsed}
    assert kinds >= {
        "request",
        "effect",
        "answer_begun",
        "answer_replaced",
        "dropped",
        "latch",
        "challenge",
        "connection",
        "beacon",
        "key_cancelled",
        "reversed",
        "note",
    }
    roles = {e["role"] for e in events if e["kind"] == "request"}
    assert roles >= {"effect", "read", "beacon", "cancel", "reversal"}
    effects = [e for e in events if e["kind"] == "effect"]
    assert [(e["destination"], e["operation_id"] is not None) for e in effects] == [("payments", True), ("mail", True)]
