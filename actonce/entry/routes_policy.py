"""What this deployment's policy is: contracts as workers recorded them, second persons, the table of reason codes.

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


class PolicyReport(BaseModel):
    """Everything that decides what may run and who must agree."""

    second_person: list[DecisionAction] = Field(description="decisions that somebody else must confirm")
    contracts: list[ContractView] = Field(description="newest of each destination first")
    reasons: list[ReasonView]


@router.get(
    "/policy",
    summary="The deployment's policy: contracts, second persons, reason codes",
    response_model=PolicyReport,
    responses=documented(503),
    openapi_extra=needs(Scope.READ),
)
async def policy(entry: Shared) -> PolicyReport:
    """Contracts as workers recorded them; which destinations a worker of now serves, the ledger does not know."""
    return PolicyReport(
        second_person=list(entry.settings.second_person),
        contracts=[_contract(one) for one in await ledger_policy.contracts(entry.ledger)],
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
