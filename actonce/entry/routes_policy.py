"""What this deployment's policy is: contracts as workers recorded them, authority, second persons, reason codes.

Promises: only what is on record or set here; nothing is computed that the system does not itself go by. Reads only.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends
from pydantic import BaseModel, Field

from actonce.contracts.contract import Contract
from actonce.contracts.messages import DecisionAction
from actonce.contracts.people import Scope
from actonce.contracts.reasons import POLICIES, Severity
from actonce.entry.access import guarded_router, needs
from actonce.entry.problems import documented
from actonce.entry.state import Entry, entry_of
from actonce.ledger import authority
from actonce.ledger import policy as ledger_policy

router = guarded_router("/v1", "policy")
Shared = Annotated[Entry, Depends(entry_of)]


class ContractView(BaseModel):
    """One destination's contract, as a worker recorded it. `contract` null: this release cannot read that one."""

    name: str
    version: int
    digest: str
    first_seen: datetime
    operations: int = Field(description="that are stamped with it and not settled")
    contract: dict[str, Any] | None
    body: dict[str, Any] = Field(description="as it was recorded")


class ReasonView(BaseModel):
    """One reason code: whose it is, how loud, what may be done, when tasks go on."""

    reason: str
    owner: str
    severity: Severity
    meaning: str
    actions: list[DecisionAction]
    resumes_when: str
    procedure: str = Field(description="path in the repository")


class AuthorityView(BaseModel):
    """What a task type may do at a destination that is no sandbox, what it was given on, and what was used of it."""

    authority_id: int
    destination: str
    task_type: str
    in_force: bool = Field(description="not ended, not expired, and given for this release")
    amount_field: str
    amount_max_minor: int | None = Field(description="of one operation, in minor units; null, here and below: no cap")
    per_hour_max: int | None
    count_max: int | None = Field(description="of all operations that were ever permitted")
    total_max_minor: int | None
    uses: int = Field(description="operations permitted so far, under this authority and those before it")
    in_hour: int
    spent_minor: int
    granted_at: datetime
    granted_by: str
    reason: str
    expires_at: datetime
    ended_at: datetime | None
    ended_by: str | None
    ended_why: str | None
    contract_digest: str
    release: str
    evidence_digest: str = Field(description="sha256 of the evidence folder")
    evidence_at: datetime
    signed_by: str
    saw: str


class PolicyReport(BaseModel):
    """Everything that decides what may run and who must agree."""

    second_person: list[DecisionAction] = Field(description="decisions that somebody else must confirm")
    contracts: list[ContractView] = Field(description="newest of each destination first")
    authority: list[AuthorityView] = Field(description="newest first; a destination that is a sandbox needs none")
    reasons: list[ReasonView]


@router.get(
    "/policy",
    summary="The deployment's policy: contracts, authority, second persons, reason codes",
    response_model=PolicyReport,
    responses=documented(503),
    openapi_extra=needs(Scope.READ),
)
async def policy(entry: Shared) -> PolicyReport:
    """Contracts as workers recorded them; which destinations a worker of now serves, the ledger does not know."""
    return PolicyReport(
        second_person=list(entry.settings.second_person),
        contracts=[_contract(one) for one in await ledger_policy.contracts(entry.ledger)],
        authority=[AuthorityView.model_validate(row) for row in await authority.standing(entry.ledger)],
        reasons=[
            ReasonView(
                reason=row.reason.value,
                owner=row.owner,
                severity=row.severity,
                meaning=row.meaning,
                actions=list(row.actions),
                resumes_when=row.resumes_when,
                procedure=row.procedure,
            )
            for row in POLICIES.values()
        ],
    )


def _contract(found: ledger_policy.Recorded) -> ContractView:
    known: Contract | None = found.contract
    return ContractView(
        name=found.name,
        version=found.version,
        digest=found.digest,
        first_seen=found.first_seen,
        operations=found.operations,
        contract=known.model_dump(mode="json") if known else None,
        body=found.body,
    )
