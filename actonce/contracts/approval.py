"""What people approve: exactly what will run, by a digest of it, and on which terms.

The digest `a1` is over the RFC 8785 form of the tool, the acting account and principal, the whole payload, and what
the payload's references resolve to (the content behind a name, the account behind an alias). Reordered keys and
whitespace change nothing; anything else is another thing, and what was approved is not it.
"""

from __future__ import annotations

import base64
import hashlib
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import rfc8785
from pydantic import BaseModel, ConfigDict, Field

from actonce.contracts.errors import PayloadError
from actonce.contracts.identity import OperationKey

ID_VERSION = "ap1"
DIGEST_VERSION = "a1"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ApprovalTerms(_Frozen):
    """How many people have to approve, within which time, and whether one of them may be who asked."""

    approvers: int = Field(default=1, ge=1, le=20)
    valid_s: float = Field(default=3600.0, gt=0, le=90 * 86400)  # from the proposal; nothing moves it
    requester_may_approve: bool = False


class ApprovalRule(ApprovalTerms):
    """A contract's demand: these actions (above an amount, if one is given) need an approval."""

    action: str
    over_minor: int | None = None  # None: always
    amount_field: str = "amount_minor"

    def applies(self, action: str, payload: Mapping[str, Any]) -> bool:
        """An amount that is missing or no integer is not known to be small."""
        if action != self.action:
            return False
        amount = payload.get(self.amount_field)
        if self.over_minor is None or not isinstance(amount, int) or isinstance(amount, bool):
            return True
        return amount > self.over_minor


def terms_of(
    rules: Iterable[ApprovalRule], action: str, payload: Mapping[str, Any], asked: ApprovalTerms | None = None
) -> ApprovalTerms | None:
    """The strictest of every rule that applies and of what the caller asks for; None: no approval is needed."""
    found: list[ApprovalTerms] = [rule for rule in rules if rule.applies(action, payload)]
    found += [asked] if asked is not None else []
    if not found:
        return None
    return ApprovalTerms(
        approvers=max(t.approvers for t in found),
        valid_s=min(t.valid_s for t in found),
        requester_may_approve=all(t.requester_may_approve for t in found),
    )


class Proposal(_Frozen):
    """What is shown to people, and what the permit's transaction compares. Raises PayloadError without a digest."""

    tenant: str
    tool: str
    destination: str
    action: str
    account: str
    principal: str
    payload: dict[str, Any]
    resolved: dict[str, Any]  # what the payload's references are now
    terms: ApprovalTerms
    requested_by: str

    @property
    def what(self) -> dict[str, Any]:
        """The part that is approved."""
        return self.model_dump(mode="json", exclude={"terms", "requested_by"})

    @property
    def digest(self) -> str:
        try:
            canonical = rfc8785.dumps({"v": 1, **self.what})
        except (rfc8785.CanonicalizationError, UnicodeError) as error:
            raise PayloadError(f"what {self.tool} would do has no canonical form: {error}") from error
        return f"{DIGEST_VERSION}:{hashlib.sha256(canonical).hexdigest()}"


@dataclass(frozen=True)
class Unresolved:
    """What would run could not be read, so nobody can say whether it is what was approved."""

    terms: ApprovalTerms
    words: str


def same_person(name: str) -> str:
    """By what two names are compared: other spaces, capitals or code points for the same letters make nobody another.

    Letters that only look alike (a Cyrillic а) are other letters: who may decide at all is not decided by a name.
    """
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    seen = "".join(c for c in plain if unicodedata.category(c) != "Cf")  # joiners, marks of direction, soft hyphens
    return " ".join(seen.split())


def approval_id_of(key: OperationKey, round_: int) -> str:
    """`ap1_` + 32 characters [a-z2-7]: the same after a restore, so an old link never names another approval."""
    canonical = rfc8785.dumps([ID_VERSION, key.tenant, key.destination, key.action, key.operation_id, round_])
    return f"{ID_VERSION}_{base64.b32encode(hashlib.sha256(canonical).digest()[:20]).decode('ascii').lower()}"


def differences(approved: Any, found: Any, path: str = "") -> list[dict[str, Any]]:
    """Where two JSON values differ: [{"where", "approved", "found"}], for people."""
    if isinstance(approved, Mapping) and isinstance(found, Mapping):
        rows: list[dict[str, Any]] = []
        for name in sorted({*approved, *found}):
            where = f"{path}.{name}" if path else str(name)
            rows += differences(approved.get(name), found.get(name), where)
        return rows
    return [] if approved == found else [{"where": path, "approved": approved, "found": found}]


class ApprovalVote(BaseModel):
    """One person's voice about exactly one digest, as it is recorded."""

    model_config = ConfigDict(extra="ignore", str_strip_whitespace=True)

    name: str = Field(min_length=1, max_length=200)
    note: str = Field(default="", max_length=4000)
    digest: str = Field(description="the digest you were shown: another one is not what you decide about")


class ApprovalAct(BaseModel):
    """Withdraw an approval: who, and why."""

    model_config = ConfigDict(extra="ignore", str_strip_whitespace=True)

    name: str = Field(min_length=1, max_length=200)
    note: str = Field(min_length=1, max_length=4000)


class ApprovalRenewal(ApprovalAct):
    """Ask for a new one. After a change that was put right again, `as_approved` asks about what was approved before."""

    as_approved: bool = False
