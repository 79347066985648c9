"""Routes about credentials and the access policy: list, rotate, revoke, change the policy. No secret passes here."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends
from pydantic import BaseModel, Field

from actonce.contracts.credential import AccessPolicy
from actonce.contracts.people import Scope
from actonce.entry.access import Who, guarded_router, needs
from actonce.entry.problems import documented, problem
from actonce.entry.state import Entry, entry_of
from actonce.entry.views import Said
from actonce.ledger import leases
from actonce.ledger.words import cli

router = guarded_router("/v1", "credentials")
Shared = Annotated[Entry, Depends(entry_of)]


class LeaseView(BaseModel):
    """A lease in force: metadata only."""

    lease_id: str
    principal: str
    scope: list[str]
    parent: str | None
    holder: str = Field(description="the process, as host:pid:start time")
    generation: int
    issued_at: datetime
    renewed_at: datetime | None
    expires_at: datetime
    checks: list[dict[str, Any]] | None = Field(description="decisions of the access policy about it, oldest first")


class CredentialView(BaseModel):
    """A credential and its leases in force."""

    name: str
    state: str = Field(description="`active`; `expired` or `revoked`: nobody gets a lease before a person rotates it")
    generation: int
    since: datetime
    why: str
    changed_by: str
    leases: list[LeaseView] = []
    what_to_do: list[str] = []


class CredentialChange(Said):
    """Who changes which credential, and why. `expected_generation`: the one that was looked at."""

    credential: str = Field(min_length=1)
    expected_generation: int = Field(ge=1, lt=2**31)
    name: str = Field(min_length=1, description="who does it")
    reason: str = Field(min_length=1)


class PolicyChange(Said):
    """The next access policy, whole."""

    policy: AccessPolicy
    name: str = Field(min_length=1, description="who does it")
    reason: str = Field(min_length=1)


class PolicyView(BaseModel):
    """The access policy in force."""

    version: int
    rules: list[dict[str, Any]]
    name: str
    reason: str
    at: datetime


def _view(row: dict[str, Any]) -> CredentialView:
    steps = []
    if row["state"] != "active":
        who = ("--expected-generation", str(row["generation"]), "--name", "YOU", "--reason", "WHY")
        steps = [f"read docs/operations/credential_{row['state']}.md", cli("rotate", row["name"], *who)]
    return CredentialView(**row, what_to_do=steps)


@router.get(
    "/credentials",
    summary="Credentials and their leases in force",
    response_model=list[CredentialView],
    responses=documented(503),
    openapi_extra=needs(Scope.READ),
)
async def list_credentials(entry: Shared) -> list[CredentialView]:
    """Metadata only: names, scopes, times, decisions of the access policy."""
    return [_view(row) for row in await leases.list_credentials(entry.ledger)]


@router.post(
    "/credentials/rotations",
    summary="Rotate a credential: every process leases it anew",
    response_model=CredentialView,
    responses=documented(404, 409, 422, 503),
    openapi_extra=needs(Scope.ACCESS),
)
async def rotate(body: CredentialChange, entry: Shared, who: Who) -> CredentialView:
    """Leases of the old generation get no permit from now on; each new lease is checked by the access policy.

    Processes notice within a renewal tick. Sending the same again changes nothing.
    """
    who.speaks_as(body.name)
    row = await leases.rotate(entry.ledger, body.credential, body.expected_generation, body.name, body.reason)
    return _view(row)


@router.post(
    "/credentials/revocations",
    summary="Revoke a credential: no permit is given under it any more",
    response_model=CredentialView,
    responses=documented(404, 409, 422, 503),
    openapi_extra=needs(Scope.ACCESS),
)
async def revoke(body: CredentialChange, entry: Shared, who: Who) -> CredentialView:
    """Unused permits are fenced; what passed its fence before may still send until its `not_after`."""
    who.speaks_as(body.name)
    row = await leases.revoke(entry.ledger, body.credential, body.expected_generation, body.name, body.reason)
    return _view(row)


@router.get(
    "/access-policy",
    summary="The access policy in force",
    response_model=PolicyView,
    responses=documented(404, 503),
    openapi_extra=needs(Scope.READ),
)
async def access_policy(entry: Shared) -> PolicyView:
    """Who may do what with which scope. While there is none, no leased credential may be used for an effect."""
    row = await leases.policy_in_force(entry.ledger)
    if row is None:
        raise problem(404, "no-access-policy", "There is no access policy", "Nothing is allowed until one is set.")
    return _policy(row)


@router.post(
    "/access-policy",
    summary="Put the next access policy in force",
    response_model=PolicyView,
    responses=documented(409, 422, 503),
    openapi_extra=needs(Scope.ACCESS),
)
async def set_access_policy(body: PolicyChange, entry: Shared, who: Who) -> PolicyView:
    """Its version must be higher than the one in force; leases in force are checked anew within a renewal tick."""
    who.speaks_as(body.name)
    return _policy(await leases.set_policy(entry.ledger, body.policy, body.name, body.reason))


def _policy(row: dict[str, Any]) -> PolicyView:
    return PolicyView(**{**row, "rules": row["body"]["rules"]})
