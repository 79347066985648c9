"""A ledger with something of everything that the console shows, made by the ledger's own functions.

No worker, no destination: what processes would have reported is reported here. Times are the ledger's, so everything
happened just now.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from psycopg.types.json import Jsonb

from actonce.contracts.approval import ApprovalTerms, ApprovalVote, Proposal
from actonce.contracts.contract import Bounded, Contract, Route, WritePath
from actonce.contracts.identity import OperationKey, derive_operation_id
from actonce.contracts.memory import Empty, Found, Item, Trouble, Unavailable
from actonce.contracts.messages import DecisionRequest, TaskReport
from actonce.contracts.payload import payload_digest
from actonce.contracts.verdict import Outcome, Reading, Reason, Receipt, Verdict
from actonce.contracts.verdict import Row as Shown
from actonce.ledger import alerts, approvals, authority, decisions, memory_use, outcomes, pages, tasks, verdicts, watch
from actonce.ledger.audit_chain import seal_once
from actonce.ledger.permits import Intent, Owner, Permit, take_permit
from actonce.ledger.store import Ledger, Operation, lock_operation
from actonce.version import __version__

MARKUP = '<script>alert("owned")</script><img src=x onerror=alert(1)>"\'&{{7*7}}'
OWNER = Owner("worker-7.example", "boot", 4242, 1.0)

CONTRACT = Contract(
    name="payments",
    version=3,
    actions=frozenset({"refund"}),
    account="acct_shop",
    object_kind="refund",
    business_fields=("payment_id?", "amount_minor", "currency?"),
    late_arrival=Bounded(transit_s=60, enforced_by="the gateway"),
    completion="read_back",
    write=WritePath(network="api", store="primary", credential="writer"),
    routes=(
        Route(name="by_id", kind="by_id", network="api", store="primary", credential="reader", lag_s=0),
        Route(
            name="list",
            kind="list",
            network="report",
            store="replica",
            credential="auditor",
            lag_s=2,
            declares_total=True,
            claims_independence=True,
        ),
        Route(name="statement", kind="log", network="sftp", store="ledger", credential="bank", lag_s=900),
    ),
    sandbox=True,
)


@dataclass
class Stage:
    """What was staged, by name."""

    ledger: Ledger
    tasks: dict[str, str] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    approvals: dict[str, str] = field(default_factory=dict)

    async def task(self, name: str, *, task_type: str = "refund", running: bool = True, **payload: Any) -> str:
        """Accept a task (and let a worker have it)."""
        body = {
            "payment_id": f"pay_{name}",
            "amount_minor": 4900,
            "currency": "EUR",
            "customer": f"{name}@example.com",
            "reason": "the kettle arrived broken",
        } | payload
        task, _ = await tasks.accept(self.ledger, "acme", task_type, f"rf-{name}", body)
        self.tasks[name] = task.task_id
        if running:
            async with self.ledger.transaction() as connection:
                await connection.execute(
                    "UPDATE actonce.task SET released_at = clock_timestamp(), recorded = true WHERE task_id = %s",
                    (task.task_id,),
                )
            await tasks.started(self.ledger, task.task_id)
            steps = [{"step": step} for step in ("refund", "ticket", "notice")]
            await tasks.save_plan(self.ledger, task.task_id, {"steps": steps})
        return task.task_id

    def key(self, name: str, step: str = "refund") -> OperationKey:
        return OperationKey("acme", "payments", "refund", derive_operation_id("acme", self.tasks[name], step, 0))

    async def permit(self, name: str, step: str = "refund", **fields: Any) -> Permit:
        """Intent and permit of one step."""
        payload = {"payment_id": f"pay_{name}", "amount_minor": 4900, "currency": "EUR"} | fields
        key = self.key(name, step)
        digest = payload_digest(tool="t", destination=key.destination, action="refund", account="acct", fields=payload)
        intent = Intent(key, self.tasks[name], step, 0, payload, digest, natural_key=f"{name}:{step}")
        permit = await take_permit(self.ledger, intent, CONTRACT, OWNER, uuid.uuid4())
        assert isinstance(permit, Permit), permit
        return permit

    async def committed(self, name: str, step: str = "refund", **fields: Any) -> Operation:
        """Sent, acknowledged, read back."""
        permit = await self.permit(name, step, **fields)
        object_id = f"re_{name}_{step}"
        await outcomes.acknowledge(self.ledger, permit, Receipt(object_id=object_id), CONTRACT)
        case = await verdicts.open_case(self.ledger, permit.operation.key, CONTRACT)
        verdict = Verdict(
            outcome=Outcome.COMMITTED,
            words=f"route list shows {object_id} with our key, account and digest",
            receipt=Receipt(object_id=object_id, source="route:list", digest=permit.operation.payload_digest),
        )
        readings = [reading("by_id", object_id), reading("list", object_id, total=41)]
        done = await verdicts.record_verdict(self.ledger, case, verdict, readings, CONTRACT)
        self.operations[f"{name}.{step}"] = done
        return done

    async def unknown(self, name: str, step: str = "refund", **fields: Any) -> Permit:
        """Sent; the answer never came, and the routes do not tell yet."""
        permit = await self.permit(name, step, **fields)
        await outcomes.record_loss(self.ledger, permit, "unknown", "ReadTimeout: no answer within 12 s")
        await self.read(permit, Reason.TOO_EARLY, "the effect may still happen; nothing shows it yet", page=False)
        return permit

    async def held(self, name: str, step: str = "refund", **fields: Any) -> Operation:
        """Sent; the answer never came; a route is down. A person is called."""
        permit = await self.unknown(name, step, **fields)
        words = "route statement gives no usable answer (503); by_id and list show nothing"
        await self.read(permit, Reason.ROUTE_UNAVAILABLE, words, page=True)
        async with self.ledger.transaction() as connection:
            operation = await lock_operation(connection, permit.operation.key)
        assert operation is not None
        self.operations[f"{name}.{step}"] = operation
        return operation

    async def read(self, permit: Permit, reason: Reason, words: str, *, page: bool) -> None:
        case = await verdicts.open_case(self.ledger, permit.operation.key, CONTRACT)
        flagged = {"list": "shows nothing newer than 40 s ago"} if page else {}
        verdict = Verdict(outcome=Outcome.AMBIGUOUS, reason=reason, words=words, page=page, flagged=flagged)
        failed = Reading(
            route="statement",
            status="unavailable",
            started_at=now(),
            finished_at=now(),
            error="HTTP 503 from the gateway",
        )
        await verdicts.record_verdict(
            self.ledger, case, verdict, [reading("by_id"), reading("list", total=40, whole=not page), failed], CONTRACT
        )  # fmt: skip

    async def ask(self, name: str, *, valid_s: float = 3600.0, **fields: Any) -> str:
        """People are asked about a step."""
        payload = {"payment_id": f"pay_{name}", "amount_minor": 240_000, "currency": "EUR"} | fields
        proposal = Proposal(
            tenant="acme", tool="payments.refund", destination="payments", action="refund", account="acct_shop",
            principal="svc-refunds", payload=payload, resolved={"payment": {"captured_minor": 240_000}},
            terms=ApprovalTerms(approvers=1, valid_s=valid_s), requested_by="desk-agent",
        )  # fmt: skip
        asked = await approvals.propose(self.ledger, self.key(name), self.tasks[name], "refund", proposal)
        self.approvals[name] = asked.approval_id
        return asked.approval_id

    async def report(self, name: str, state: Any, summary: str) -> None:
        await tasks.report(self.ledger, TaskReport(task_id=self.tasks[name], state=state, summary=summary))


def now() -> datetime:
    return datetime.now(UTC)


def reading(route: str, object_id: str | None = None, *, total: int | None = None, whole: bool = True) -> Reading:
    """What a route showed."""
    at = now()
    found = []
    if object_id:
        shown = {"object_id": object_id, "kind": "refund", "account": "acct_shop", "marker": "k", "state": "succeeded"}
        found = [Shown(**shown, own_field=True, by_us=True, digest=None, committed_at=at)]
    return Reading(
        route=route,
        status="read",
        candidates=tuple(found),
        rows_received=total if total is not None else len(found),
        declared_total=(total if whole else total + 1) if total is not None else None,
        pages=1,
        complete=whole,
        as_of=at - timedelta(seconds=1) if route == "list" and whole else None,
        started_at=at,
        finished_at=at,
    )


async def register_contract(ledger: Ledger) -> None:
    async with ledger.transaction() as connection:
        await connection.execute(
            "INSERT INTO actonce.contract (name, digest, version, body) VALUES (%s, %s, %s, %s)",
            (CONTRACT.name, CONTRACT.digest, CONTRACT.version, Jsonb(CONTRACT.model_dump(mode="json"))),
        )


async def stage(ledger: Ledger) -> Stage:
    """Everything at once."""
    on = Stage(ledger)
    await register_contract(ledger)
    await _ended(on)
    await _open(on)
    await _asked(on)
    await _remembering(on)
    await _deployment(ledger)
    shown = authority.Shown(CONTRACT.digest, __version__, "e" * 64, datetime.now(UTC), "ada", "one refund each time")
    caps, life = authority.Caps(5000, 10, 100), timedelta(days=30)
    await authority.grant(ledger, "bank", "refund", caps, shown, by="olga", reason="first week", life=life)
    while await seal_once(ledger):
        pass
    return on


async def _ended(on: Stage) -> None:
    for name in ("ada", "bo", "cleo"):
        await on.task(name)
        for step in ("refund", "ticket", "notice"):
            await on.committed(name, step)
        await on.report(name, "complete", "refunded, ticket opened, customer notified")
    await on.task("declined")
    permit = await on.permit("declined")
    await outcomes.record_loss(on.ledger, permit, "refused", "402 the payment was charged back already")
    await on.report("declined", "failed", "the destination declined the refund: charged back already")
    await on.task("nothing")  # reported complete, and no operation of it shows an effect
    await on.report("nothing", "complete", "done, says the task")
    await on.task("word")
    operation = await on.held("word")
    await _decide(on, operation, "mark_committed", "re_by_phone")
    await on.report("word", "complete", "refunded")


async def _decide(on: Stage, operation: Operation, action: Any, object_id: str | None = None) -> None:
    """As a person decides: from the moment on at which it may be decided."""
    async with on.ledger.transaction() as connection:
        await connection.execute(
            "UPDATE actonce.operation SET decide_at = clock_timestamp(), may_commit_until = clock_timestamp()"
            " WHERE operation_id = %s",
            (operation.operation_id,),
        )
    request = DecisionRequest(
        action=action,
        name="noor",
        reason="the bank's desk read the refund to me over the phone",
        evidence="call with settlements desk, ticket 8841",
        object_id=object_id,
        expected_epoch=operation.epoch,
        expected_version=operation.version,
    )
    decision = await decisions.record(on.ledger, operation.key, request)
    fresh = Verdict(outcome=Outcome.AMBIGUOUS, reason=Reason.ROUTE_UNAVAILABLE, words="the statement is still down")
    await decisions.consume(on.ledger, decision, fresh)


async def _open(on: Stage) -> None:
    await on.task("held")
    await on.held("held")
    await on.task("markup", reason=MARKUP, customer=MARKUP, payment_id=MARKUP)
    await on.held("markup", payment_id=MARKUP)
    await on.task("flying")
    await on.unknown("flying")
    await on.task("running")
    await on.committed("running")
    await on.task("later", running=False)
    await on.task("batch-1", task_type="batch", running=False)
    await on.task("stuck")
    async with on.ledger.transaction() as connection:
        await pages.hold_task(connection, on.tasks["stuck"], "refund", Reason.STEP_FAILING, "KeyError: 'iban'")


async def _asked(on: Stage) -> None:
    for name in ("large", "gone", "no"):
        await on.task(name, amount_minor=240_000)
    await on.ask("large", note=MARKUP)
    await on.ask("gone", valid_s=0.05)
    rejected = await on.ask("no")
    record, _ = await approvals.record(on.ledger, rejected)
    vote = ApprovalVote(name="iris", note="the customer was refunded in cash", digest=record.digest)
    await approvals.vote(on.ledger, rejected, "reject", vote)


async def _remembering(on: Stage) -> None:
    memory = str(uuid.uuid4())
    found = Item(key="k", text="refund of pay_1", facts={"amount_minor": 100}, distance=0.2, remembered_at="2026-01-01")
    said: dict[str, Any] = {
        "ada": Found(items=(found,), complete=True, memory_id=memory),
        "bo": Empty(memory_id=memory),
        "stuck": Unavailable(trouble=Trouble.TIMEOUT, words="no answer within 3 s"),
    }
    for name, answer in said.items():
        await memory_use.record(
            on.ledger, task_id=on.tasks[name], step="earlier_refunds", kind="recall", said=answer, hold=name == "stuck"
        )


READINGS: list[tuple[str, Any, str, str, str]] = [
    ("ledger", "up", "wrote this reading and read it back", "", "everything"),
    ("temporal", "up", "described the namespace through the frontend", "", "starting and continuing tasks"),
    (
        "pollers:actonce",
        "up",
        "asked Temporal who asks for work on this task queue",
        "2 workers",
        "tasks of this queue",
    ),
    ("route:payments.list", "up", "read this route", "41 rows of 41 declared on 1 pages", "reconciling at payments"),
    ("route:payments.statement", "down", "read this route", "503 Service Unavailable", "reconciling at payments"),
    ("destination:mail", "unknown", "read its routes", "it has no route: nobody can see whether it is there", "send"),
    ("memory", "degraded", "asked for the canary through the index", "answers take 2.7 s", "tasks that need it"),
    ("watch:evaluator", "up", "every rule was looked at", "", "alerts"),
]


async def _deployment(ledger: Ledger) -> None:
    for name, state, how, detail, blocks in READINGS:
        await watch.set_dependency(
            ledger,
            name=name,
            kind=name.partition(":")[0],
            state=state,
            how=how,
            detail=detail,
            blocks=blocks,
            measures={"routes": 0.0} if name == "destination:mail" else {},
        )
    async with ledger.transaction() as connection:
        await connection.execute("INSERT INTO actonce.credential (name) VALUES ('payments-writer')")
        await connection.execute(
            "INSERT INTO actonce.credential (name, state, why, changed_by)"
            " VALUES ('bank-sftp', 'expired', 'its lease was not renewed', 'worker-7')"
        )
        await connection.execute(
            "INSERT INTO actonce.lease"
            " (lease_id, credential, generation, principal, scope, holder, issued_at, expires_at) VALUES ('lease_01',"
            " 'payments-writer', 1, 'svc-refunds', '{refund}', 'worker-7:4242:1', now(), now() + interval '9 min')"
        )
    down = alerts.Seen(
        name="RouteDown",
        labels={"route": "payments.statement"},
        reason=Reason.ROUTE_UNHEALTHY,
        value=1,
        for_s=0,
        summary="Route payments.statement is down",
        description="An operation whose answer is lost at payments would be held.",
    )
    await alerts.record(ledger, [down])
