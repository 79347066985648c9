"""`soak`: one deployment, tasks of every kind, a seeded random schedule of every fault, then quiet.

    python -m drills run soak [--minutes N] [--seed S]
    python -m drills run --resume DIR            go on with one that was stopped, in its own evidence folder

Each window of the schedule submits a few tasks and puts one fault to one of them; the next does not wait until it is
over. A strike that met nothing is reported and does not count; with fewer than four in five struck the soak is invalid.
After it comes a short soak of the system with one protection taken out, which must be caught.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from actonce.testing.disk import CannotMount, Disk
from drills.catalog import Job, Options, Plan
from drills.running import Identity
from drills.soak.drive import CONTROL, play
from drills.soak.schedule import KINDS
from drills.soak.state import SoakState

MINUTES = {"cut": 0.5, "quick": 1.0}
MINUTES_DEFAULT = 5.0
STRUCK_SHARE_MIN = 0.8  # a strike may come too late for its operation on a busy machine; more than that is no soak


class Soak:
    """The drill."""

    name = "soak"
    claim = (
        "Under a random schedule of every fault, for as long as it runs, no effect is made twice and none is lost; "
        "afterwards everything is settled, or held and paged, and the destinations' journal balances with the ledger."
    )

    def plan(self, options: Options) -> Plan:
        """The soak, and its control."""
        private = options.private or Path(tempfile.gettempdir())
        state = options.resume or self._fresh(options)
        return Plan(
            jobs=[Job("soak", partial(play, state=state, private=private))],
            left_out={kind: why for kind, why in impossible_here().items() if kind not in state.kinds},
            protections=[CONTROL],
            struck_share_min=STRUCK_SHARE_MIN,
            state=state,
            pictured=self.name,
        )

    @staticmethod
    def _fresh(options: Options) -> SoakState:
        minutes = options.minutes if options.minutes is not None else MINUTES.get(options.scope, MINUTES_DEFAULT)
        identity = Identity.fresh()
        out = options.out or Path()
        return SoakState(
            seed=options.seed,
            minutes=minutes,
            run_id=identity.run_id,
            secret=identity.secret,
            out=out,
            kinds=tuple(kind for kind in KINDS if kind not in impossible_here()),
        )


def impossible_here() -> dict[str, str]:
    """Kinds of faults that this machine cannot have, and why: they are listed as left out."""
    try:
        Disk.mount(1 << 16).close()
    except CannotMount as error:
        return {"audit:full": str(error)}
    return {}
