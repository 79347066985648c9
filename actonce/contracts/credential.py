"""Who may act: leases of credentials, and the access policy. Facts only; a secret is never among them.

A *credential* is a named right to act at a destination, held by a principal. A *lease* is a short-lived instance of it
that one process got from the lease manager; its scope is what the manager granted. The *access policy* says who may do
what with which scope; `authorise` is the whole decision. A contract names a credential by the label that its write
path or its routes carry already, so that two routes with one label really share one credential.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from actonce.contracts.verdict import Reason

CredentialState = Literal["active", "expired", "revoked"]
"""`active`: processes may lease it. Else nobody gets a lease before a person has rotated it."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CredentialUse(_Frozen):
    """A credential that a contract needs, by the label of its write path or of its routes."""

    name: str = Field(min_length=1, max_length=200)
    scope: str = Field(min_length=1, max_length=200)  # what the lease and the policy must both grant
    min_left_s: float = Field(default=1.0, ge=0)  # of the lease, when a permit is taken


@dataclass(frozen=True)
class Lease:
    """One process's lease, by the ledger's clock. `lease_id` names it at the lease manager; it opens nothing."""

    lease_id: str
    credential: str
    principal: str
    scope: tuple[str, ...]
    issued_at: datetime
    expires_at: datetime
    generation: int  # of the credential; a rotation raises it
    parent: str | None = None  # what it dies with


@dataclass(frozen=True)
class NoLease:
    """Why there is no lease, as the hold's reason and words."""

    reason: Reason
    words: str
    stale: bool = False  # the credential is well, the lease that was named is not: a fresh one may do


class AccessRule(_Frozen):
    """One line of the policy: this principal may do these actions there, with this scope."""

    principal: str
    destination: str
    actions: frozenset[str] = Field(min_length=1)
    scope: str


class AccessPolicy(_Frozen):
    """Who may do what with which scope. What no rule allows is not allowed. Versions only grow."""

    version: int = Field(ge=1, lt=2**31)
    rules: tuple[AccessRule, ...] = ()

    @model_validator(mode="after")
    def _no_wildcard(self) -> AccessPolicy:
        words = [w for r in self.rules for w in (r.principal, r.destination, r.scope, *r.actions)]
        if any("*" in w for w in words):
            raise ValueError("a rule with `*` allows what nobody wrote down; name principals, actions and scopes")
        return self


@dataclass(frozen=True)
class Authorisation:
    """A decision of the policy, and why in words."""

    allowed: bool
    words: str


def authorise(
    policy: AccessPolicy, *, principal: str, destination: str, action: str, scope: str, granted: Collection[str]
) -> Authorisation:
    """May `principal` do this with a lease that grants `granted`? Both the lease and the policy must say so."""
    if scope not in granted:
        words = f"the lease grants {', '.join(sorted(granted)) or 'nothing'}, not {scope}"
        return Authorisation(False, words)
    for rule in policy.rules:
        if (rule.principal, rule.destination, rule.scope) == (principal, destination, scope) and action in rule.actions:
            return Authorisation(True, f"policy {policy.version} allows {action} at {destination} with {scope}")
    words = f"policy {policy.version} does not allow {principal} to {action} at {destination} with {scope}"
    return Authorisation(False, words)
