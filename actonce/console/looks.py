"""How a status word looks: never by colour alone, each kind has a shape of its own (templates/shapes.html)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """`kind` names the colour, `shape` the drawing, `words` what is read."""

    kind: str
    shape: str
    words: str


_LOOKS: dict[str, dict[str, tuple[str, str]]] = {
    "task": {
        "queued": ("off", "ring"),
        "running": ("run", "half"),
        "waiting_for_approval": ("wait", "clock"),
        "held": ("held", "stop"),
        "quarantined": ("held", "stop"),
        "failed": ("bad", "cross"),
        "cancelled": ("off", "dash"),
        "complete": ("ok", "check"),
        "attested": ("wait", "question"),
        "unproven": ("held", "question"),
    },
    "operation": {
        "ready": ("off", "ring"),
        "dispatched": ("run", "half"),
        "unknown": ("wait", "question"),
        "acknowledged": ("run", "half"),
        "held": ("held", "stop"),
        "committed": ("ok", "check"),
        "refused": ("bad", "cross"),
        "closed": ("off", "dash"),
    },
    "dependency": {
        "up": ("ok", "check"),
        "degraded": ("wait", "half"),
        "down": ("bad", "cross"),
        "stale": ("wait", "question"),
        "unknown": ("wait", "question"),
        "nothing_to_ask": ("off", "dash"),
    },
    "approval": {
        "pending": ("wait", "clock"),
        "approved": ("ok", "check"),
        "consumed": ("ok", "check"),
        "rejected": ("bad", "cross"),
        "expired": ("held", "clock"),
        "withdrawn": ("off", "dash"),
        "changed": ("held", "question"),
        "superseded": ("off", "dash"),
    },
    "alert": {"firing": ("bad", "stop"), "pending": ("wait", "clock"), "resolved": ("ok", "check")},
    "verdict": {"committed": ("ok", "check"), "absent": ("off", "dash"), "ambiguous": ("wait", "question")},
    "memory": {
        "found": ("ok", "check"),
        "empty": ("off", "ring"),
        "remembered": ("ok", "check"),
        "unavailable": ("bad", "cross"),
    },
    "credential": {"active": ("ok", "check"), "expired": ("held", "clock"), "revoked": ("bad", "cross")},
    "working": {"yes": ("ok", "check"), "no": ("bad", "cross"), "unknown": ("wait", "question")},
}
_WORDS = {
    "waiting_for_approval": "waiting for approval",
    "attested": "complete by a person's word",
    "unproven": "complete without evidence",
    "nothing_to_ask": "nobody can ask",
}


def look(domain: str, word: str, words: str | None = None) -> Look:
    """The look of a word; one that is not known looks unknown, and is still told."""
    kind, shape = _LOOKS[domain].get(word, ("wait", "question"))
    return Look(kind, shape, words or _WORDS.get(word, word))
