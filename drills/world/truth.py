"""What is true at a destination, and what each of its routes shows of it.

`Truth` is the one store that effects are committed to. Each route reads it through a view with its own lag and its
own lies; the lies are exactly the named ones of `RouteModes`, never an accident.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from actonce.testing.journal import iso_utc
from drills.world.modes import Modes, RouteModes, RouteName


def principal_of(account: str) -> str:
    """The author under which an account's own credentials write."""
    return f"prn-{account}"


@dataclass
class Thing:
    """One object at the destination."""

    object_id: str
    kind: str
    account: str
    author: str
    fields: dict[str, Any]
    metadata: dict[str, Any]
    committed_at: datetime  # the destination's own clock
    mono_ns: int
    seq: int
    state: str = "succeeded"
    text: str | None = None  # of notes and comments, which anybody may write

    def render(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "id": self.object_id,
            "object": self.kind,
            "account": self.account,
            "author": self.author,
            "state": self.state,
            "created_at": iso_utc(self.committed_at),
            **self.fields,
            "metadata": self.metadata,
        }
        if self.text is not None:
            body["text"] = self.text
        return body

    def record(self) -> dict[str, Any]:
        """Everything the journal must hold so that a restarted world still has it."""
        return {
            "seq": self.seq,
            "author": self.author,
            "fields": self.fields,
            "metadata": self.metadata,
            "committed_at": iso_utc(self.committed_at),
            "state": self.state,
            "text": self.text,
        }

    def markers(self) -> set[str]:
        return {str(v) for k, v in self.metadata.items() if k in ("key", "operation_id", "beacon_id")}

    def mentions(self, marker: str) -> bool:
        """A full-text index finds words anywhere; that is what makes look-alikes."""
        inside = [self.text or "", *(str(v) for v in self.fields.values())]
        return marker in self.markers() or any(marker in text for text in inside)


@dataclass
class Truth:
    """Everything one account holds, in commit order."""

    prefix: str
    account: str
    things: list[Thing] = field(default_factory=list)

    def now(self, skew_s: float) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=skew_s)

    def add(
        self,
        kind: str,
        fields: dict[str, Any],
        metadata: dict[str, Any],
        *,
        skew_s: float = 0.0,
        author: str | None = None,
        text: str | None = None,
        state: str = "succeeded",
    ) -> Thing:
        seq = max((t.seq for t in self.things), default=0) + 1
        thing = Thing(
            object_id=f"{kind[:3]}_{self.account}_{seq:05d}",
            kind=kind,
            account=self.account,
            author=author or principal_of(self.account),
            fields=fields,
            metadata=metadata,
            committed_at=self.now(skew_s),
            mono_ns=time.monotonic_ns(),
            seq=seq,
            state=state,
            text=text,
        )
        self.things.append(thing)
        return thing

    def by_object_id(self, object_id: str) -> Thing | None:
        return next((t for t in self.things if t.object_id == object_id), None)


@dataclass(frozen=True)
class View:
    """What one route can serve at one moment."""

    things: list[Thing]
    declared_total: int | None
    as_of: datetime | None


def look(truth: Truth, modes: Modes, name: RouteName, kind: str) -> View:
    """Return what route `name` shows now; `kind` is the type of object that effects are."""
    route = modes.route(name)
    now_ns = time.monotonic_ns()
    upto_ns = now_ns - int(route.lag_s * 1e9)
    if route.mode == "stale" and route.stale_since_ns is not None:
        upto_ns = min(upto_ns, route.stale_since_ns)
    as_of = truth.now(modes.clock_skew_s) - timedelta(seconds=(now_ns - upto_ns) / 1e9)
    if route.mode == "masked":
        return View([], 0, None)
    shown = [t for t in truth.things if t.mono_ns <= upto_ns]
    if route.mode in ("short_by_one", "short_no_total"):
        left = _without_one(shown, route, truth.account, kind)
        return View(left, len(shown) if route.mode == "short_by_one" else None, as_of)
    if route.mode == "denies":
        shown = [t for t in shown if not _ours(t, truth.account, kind, route.omit)]
    return View(shown, len(shown), as_of)


def _ours(thing: Thing, account: str, kind: str, operation_id: str | None) -> bool:
    if operation_id is not None:
        return thing.metadata.get("operation_id") == operation_id
    return thing.kind == kind and thing.author == principal_of(account) and bool(thing.markers())


def _without_one(shown: list[Thing], route: RouteModes, account: str, kind: str) -> list[Thing]:
    """Leave out our newest row; where there is none yet, the oldest row of anybody, so that it is always short."""
    ours = [t for t in shown if _ours(t, account, kind, route.omit)]
    victim = ours[-1] if ours else (shown[0] if shown else None)
    return [t for t in shown if t is not victim]
