"""The code in docs/guides/contracts.md runs: what it shows is a destination that works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from actonce.destinations import Registry
from drills.world.client import World
from tests.unit.world.helpers import effects, lookup_for, make_call, read_all

GUIDE = Path(__file__).parents[3] / "docs/guides/contracts.md"


async def test_the_guides_destination_sends_once_and_finds_it_on_both_routes(world: World) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    await world.configure("acme", "tickets", page_size=2, seed_rows=3)
    space: dict[str, Any] = {
        "urls": {
            "write": f"{world.listeners['tickets.write']}/v1/acme/tickets",
            "list": f"{world.listeners['tickets.list']}/v1/acme/tickets",
            "log": f"{world.listeners['tickets.log']}/v1/acme/log",
        },
        "bearer": lambda purpose: {"Authorization": f"Bearer tok-acme-{purpose}"},
        "us": "prn-acme",
    }
    exec(compile(snippet, str(GUIDE), "exec"), space)
    helpdesk = Registry([space["helpdesk"]]).get("helpdesk", "open")
    call = make_call(helpdesk.contract, {"subject": "Refund", "body": "why", "reference": "pay_1"})
    receipt = await helpdesk.send(call)
    for route in ("list", "log"):
        rows, pages = await read_all(helpdesk, route, lookup_for(call))
        assert [(r.object_id, r.digest) for r in rows] == [(receipt.object_id, call.digest)], route
        assert sum(p.rows_received for p in pages) == 4
    assert len(effects(world, "acme")) == 1
    await space["client"].aclose()
