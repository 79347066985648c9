"""Put the world back from its own journal: a destination does not forget what it committed when it restarts.

Restored: objects, states, modes, cancelled keys, and the keys of committed requests. Not restored: requests that were
in progress (they died with the process), latches, keys that were registered without a commit, stored errors, leases
(their manager keeps them in memory).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from drills.world.desk import Desk
from drills.world.modes import merge_modes
from drills.world.truth import Thing


def replay(path: Path, desk_of: Callable[[str, str], Desk]) -> int:
    """Apply every line of the journal; return how many objects were put back."""
    if not path.exists():
        return 0
    restored = 0
    to_monotonic_ns = time.monotonic_ns() - time.time_ns()  # after a reboot the old monotonic times mean nothing
    with path.open(encoding="utf-8") as lines:
        for raw in lines:
            line: dict[str, Any] = json.loads(raw)
            if line.get("destination") in (None, "", "leases") or not line.get("account"):
                continue
            mono_ns = int(datetime.fromisoformat(line["at"]).timestamp() * 1e9) + to_monotonic_ns
            restored += _apply(line, desk_of(line["destination"], line["account"]), mono_ns)
    return restored


def _apply(line: dict[str, Any], desk: Desk, mono_ns: int) -> int:
    kind = line["kind"]
    if kind == "configured":
        desk.configure(merge_modes(desk.modes, line["change"], mono_ns))
        return 0
    desk.seed()
    if kind == "reversed":
        _set_state(desk, line["object_id"], "reversed", {})
    elif kind == "state_changed":
        _set_state(desk, line["object_id"], line["state"], line["fields"])
    elif kind == "key_cancelled":
        desk.restore_cancelled(line["key"])
    elif "thing" in line:
        desk.restore_thing(_thing(line, mono_ns), line.get("key"))
        return 1
    return 0


def _set_state(desk: Desk, object_id: str, state: str, fields: dict[str, Any]) -> None:
    thing = desk.truth.by_object_id(object_id)
    if thing is not None:
        thing.state, thing.fields = state, thing.fields | fields


def _thing(line: dict[str, Any], mono_ns: int) -> Thing:
    kept = line["thing"]
    return Thing(
        object_id=line["object_id"],
        kind=line.get("object_kind") or {"beacon": "beacon", "probe_note": "note"}[line["kind"]],
        account=line["account"],
        author=kept["author"],
        fields=kept["fields"],
        metadata=kept["metadata"],
        committed_at=datetime.fromisoformat(kept["committed_at"]),
        mono_ns=mono_ns,
        seq=kept["seq"],
        state=kept["state"],
        text=kept["text"],
    )
