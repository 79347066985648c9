"""What a signed evidence folder shows of the contracts that were drilled in it: on that, authority is given.

Contract: `rehearsal` returns only what every drill of the folder, judged anew, has passed, with at least one control
caught, and signed as it is. It says under which contracts guarded operations were struck, and whether both after their
commit and before it; whose contracts these are it does not know.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from actonce.evidence.case import build
from actonce.evidence.folder import Evidence, load
from actonce.evidence.lines_caller import CallerContract
from actonce.evidence.record import EvidenceError
from actonce.evidence.signing import Signature, drills_in, folder_digest, result_of, signatures
from actonce.evidence.strike import strikes

AFTER = frozenset({"effect_committed"})
BEFORE = frozenset({"request_not_arrived", "effect_not_committed"})


@dataclass
class Drilled:
    """A contract, and how many guarded operations under it the faults struck."""

    name: str
    digest: str
    body: dict[str, Any]
    after_commit: int = 0
    before_commit: int = 0


@dataclass
class Rehearsal:
    """A folder that passed. `oldest_at`: when its first drill ended."""

    sha256: str
    signatures: list[Signature]
    oldest_at: datetime
    releases: set[str] = field(default_factory=set)
    contracts: list[Drilled] = field(default_factory=list)


def rehearsal(folder: Path) -> Rehearsal:
    """What the folder shows. Raises EvidenceError with the drill and what is wrong with it."""
    folder = folder.resolve()
    signed = signatures(folder)
    if not signed:
        raise EvidenceError(
            f"{folder} is machine-witnessed only: nobody signed it as it is now; look at it, then "
            f"`python -m drills sign {folder} --name YOU --saw WHAT`"
        )
    ended: list[datetime] = []
    controls = 0
    releases: set[str] = set()
    found: dict[str, Drilled] = {}
    for drill in drills_in(folder):
        result = result_of(drill)
        if result not in ("passed", "caught"):
            raise EvidenceError(f"{drill} is {result}; authority rests on drills that all passed")
        evidence = load(drill)
        controls += sum(cell.control is not None for cell in evidence.cells.values())
        ended.append(datetime.fromisoformat(evidence.drill.finished_at or ""))
        releases.add(evidence.drill.versions.get("actonce", "unknown"))
        _add(evidence, found)
    if not controls:
        raise EvidenceError(f"{folder} has no negative control, so nothing shows that its drills can fail")
    return Rehearsal(folder_digest(folder), signed, min(ended), releases, list(found.values()))


def _add(evidence: Evidence, found: dict[str, Drilled]) -> None:
    """Count the guarded operations of this drill that were struck, by the contract each was begun under."""
    bodies = {line.digest: line for line in evidence.of(CallerContract)}
    case = build(evidence)
    struck: dict[tuple[str, str], str] = {(hit.cell, hit.operation_id): hit.status for hit in strikes(case)}
    seen: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for key, story in case.stories.items():
        digest = story.row.contract_digest if story.row is not None else None
        if story.cell.arm == "guarded" and struck.get(key) == "struck" and digest in bodies:
            proof = set(story.cell.fault.proof)
            seen[digest][0] += bool(proof & AFTER)
            seen[digest][1] += bool(proof & BEFORE)
    for digest, (after, before) in seen.items():
        line = bodies[digest]
        one = found.setdefault(digest, Drilled(line.name, digest, line.body))
        one.after_commit += after
        one.before_commit += before
