"""An audit event in the chain: its canonical form, its hash, and what can be wrong with a chain.

A sealed event is one line of RFC 8785 JSON; its hash is SHA-256 over that line without the hash, and the line holds the
hash of the event before it. So a chain can be checked from its lines alone, by any program, and the last hash stands
for everything before it. What this proves and what not: docs/adr/0005-the-audit-chain-is-sealed-after-the-commit.md.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import rfc8785

FORM = 1
_INT_MAX = 2**53 - 1  # beyond it numbers are not exact everywhere; they are written as text


class AuditDamaged(ValueError):
    """A line that is no sealed event, or whose hash is not that of its content."""


@dataclass(frozen=True)
class Event:
    """One row of `actonce.audit`, as it was written with the state that it describes."""

    audit_id: int
    at: datetime
    kind: str
    tenant: str | None
    task_id: str | None
    operation_id: str | None
    body: Mapping[str, Any]


@dataclass(frozen=True)
class Sealed:
    """An event with its place in the chain. `line` is its canonical form, without a newline."""

    seq: int
    hash: str
    previous_hash: str
    line: str
    kind: str
    at: str
    task_id: str | None = None
    operation_id: str | None = None


@dataclass(frozen=True)
class End:
    """The last event of a chain, or of a copy of it. `seq` 0 is the beginning."""

    seq: int
    hash: str


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with an audit trail. `code` is fixed (docs/guides/audit.md); `seq` where there is one."""

    code: str
    words: str
    seq: int | None = None

    def __str__(self) -> str:
        return f"{self.code}{f' seq={self.seq}' if self.seq is not None else ''}: {self.words}"


def genesis(ledger_id: str) -> str:
    """What a ledger's first event names as the hash before it, so that no other ledger's chain fits on it."""
    return hashlib.sha256(f"actonce.audit:{ledger_id}".encode()).hexdigest()


def seal(event: Event, seq: int, previous_hash: str) -> Sealed:
    """Give an event its place after `previous_hash`. Depends on nothing but its arguments."""
    content = {
        "form": FORM,
        "seq": seq,
        "previous_hash": previous_hash,
        "audit_id": event.audit_id,
        "at": event.at.astimezone(UTC).isoformat(timespec="microseconds"),
        "kind": event.kind,
        "tenant": event.tenant,
        "task_id": event.task_id,
        "operation_id": event.operation_id,
        "body": _exact(event.body),
    }
    return _sealed(content, _hash(content))


def parse(line: str) -> Sealed:
    """Read a line again. Raises AuditDamaged unless it is exactly what `seal` writes."""
    try:
        content = json.loads(line)
        told = content.pop("hash")
        found = _sealed(content, _hash(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AuditDamaged(f"not a sealed event ({type(error).__name__})") from error
    if found.hash != told:
        raise AuditDamaged(f"the content of seq {found.seq} has hash {found.hash[:12]}…, the line says {told!r:.20}")
    if found.line != line:
        raise AuditDamaged(f"seq {found.seq} is not in canonical form")
    return found


def _sealed(content: dict[str, Any], digest: str) -> Sealed:
    line = rfc8785.dumps({**content, "hash": digest}).decode()
    names = ("seq", "previous_hash", "kind", "at", "task_id", "operation_id")
    return Sealed(hash=digest, line=line, **{name: content[name] for name in names})


def _hash(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(rfc8785.dumps(dict(content))).hexdigest()


def _exact(value: Any) -> Any:
    """What RFC 8785 can write of a value, so that no event can stop the chain."""
    if isinstance(value, Mapping):
        return {str(k): _exact(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(v) for v in value]
    if isinstance(value, int | float) and not (math.isfinite(value) and abs(value) <= _INT_MAX):
        return str(value)
    return value


class Walk:
    """Checks a chain event by event, from `after` on. Goes on after a finding, so that one does not hide the next."""

    def __init__(self, after: End, jumps: frozenset[int] = frozenset()) -> None:
        """`jumps`: numbers at which a restore is on record as having gone on; the hashes must fit there as well."""
        self.end = after
        self.jumped: list[tuple[int, int]] = []  # (last before, first after) of each jump that was seen
        self._jumps = jumps

    def step(self, event: Sealed) -> list[Finding]:
        """What is wrong between the last event and this one."""
        expected = self.end.seq + 1
        findings = []
        if event.seq > expected and event.seq in self._jumps and event.previous_hash == self.end.hash:
            self.jumped.append((self.end.seq, event.seq))
        elif event.seq > expected:
            missing = f"{expected}" if event.seq == expected + 1 else f"{expected} to {event.seq - 1}"
            findings.append(Finding("gap", f"event {missing} is missing before {event.seq}", expected))
        elif event.seq < expected:
            findings.append(Finding("out_of_order", f"it comes after seq {self.end.seq}", event.seq))
        elif event.previous_hash != self.end.hash:
            words = f"it names {event.previous_hash[:12]}… as the hash before it, that of seq {self.end.seq} is "
            findings.append(Finding("broken_link", f"{words}{self.end.hash[:12]}…", event.seq))
        self.end = End(event.seq, event.hash)
        return findings
