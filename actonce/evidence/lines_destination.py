"""Lines from a destination's own append-only journal."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from actonce.evidence.line import Line


class DestinationLine(Line):
    """`journal` names the append-only journal, `seq` is the line's own number in it, from 1 without a
    gap."""

    of_source: ClassVar[str] = "destination"
    destination: str
    account: str | None = None
    journal: str
    seq: int = Field(ge=1)


class Request(DestinationLine):
    """A request arrived. `role` tells a send of the effect from reads and journaled side acts."""

    of_kind: ClassVar[str] = "request"
    request_id: str
    key: str | None = None
    operation_id: str | None = None
    subject: str | None = None
    method: str
    path: str
    role: Literal["effect", "read", "beacon", "probe", "cancel", "reversal", "other"] = "effect"


class Effect(DestinationLine):
    """An effect was committed. Beacons, probes and reversals are not effects: they have their own kinds."""

    of_kind: ClassVar[str] = "effect"
    object_id: str
    request_id: str
    key: str | None = None
    operation_id: str | None = None
    subject: str | None = None
    digest: str | None = None
    amount_minor: int | None = None
    state: str


class OfRequest(DestinationLine):
    """What became of a request that arrived."""

    request_id: str


class AnswerBegun(OfRequest):
    """The destination began to write its answer."""

    of_kind: ClassVar[str] = "answer_begun"
    status: int


class AnswerFailed(OfRequest):
    """The destination could not write its answer."""

    of_kind: ClassVar[str] = "answer_failed"
    why: str = ""


class AnswerReplaced(OfRequest):
    """Something on the way (the sandbox's own gateway) answered in the destination's place."""

    of_kind: ClassVar[str] = "answer_replaced"
    status: int


class Dropped(OfRequest):
    """The request arrived and was thrown away before anything was committed."""

    of_kind: ClassVar[str] = "dropped"
    why: str = ""


class Refused(OfRequest):
    """The destination declined the request."""

    of_kind: ClassVar[str] = "refused"
    why: str


class Reversed(DestinationLine):
    """An effect was undone. It still counts as an effect: undoing a duplicate does not unmake it."""

    of_kind: ClassVar[str] = "reversed"
    object_id: str


class Latch(DestinationLine):
    """The destination stopped at a named point and told the drill."""

    of_kind: ClassVar[str] = "latch"
    name: str
    request_id: str


class Challenge(DestinationLine):
    """The destination answered this run's challenge: it is a controlled target."""

    of_kind: ClassVar[str] = "challenge"
    run_id: str


class Connection(DestinationLine):
    """Somebody connected; no request is known yet."""

    of_kind: ClassVar[str] = "connection"


class RequestIncomplete(DestinationLine):
    """A request began and never became complete (a slow or cut sender, an enforced read timeout)."""

    of_kind: ClassVar[str] = "request_incomplete"


class Beacon(DestinationLine):
    """A beacon object of ours was committed: no effect of an operation."""

    of_kind: ClassVar[str] = "beacon"


class ProbeNote(DestinationLine):
    """The reference probe's harmless note on an existing object: no effect of an operation."""

    of_kind: ClassVar[str] = "probe_note"


class KeyCancelled(DestinationLine):
    """A key was cancelled atomically: nothing can commit under it any more."""

    of_kind: ClassVar[str] = "key_cancelled"
    key: str


class LeaseEvent(DestinationLine):
    """What the lease manager did: `event` is issued, renewed, denied, ended, gone, refused, away or configured."""

    of_kind: ClassVar[str] = "lease"
    event: str
    purpose: str | None = None
    lease_id: str | None = None
    why: str | None = None


class JournalNote(DestinationLine):
    """Anything else the destination says about itself (mode changes, planted rows, latch releases)."""

    of_kind: ClassVar[str] = "note"
    text: str


class JournalEnd(Line):
    """The journal's own declared number of lines, read after the last cell: rows received must equal it."""

    of_source: ClassVar[str] = "destination"
    of_kind: ClassVar[str] = "journal_end"
    journal: str
    lines: int = Field(ge=0)
