"""Approvals through the entry's door and the client: exactly what would run, one winner, the truth about each click."""

from __future__ import annotations

from typing import Any

from actonce.contracts.approval import ApprovalTerms, Proposal
from actonce.contracts.identity import OperationKey, derive_operation_id
from actonce.contracts.people import Role, Scope
from actonce.ledger import approvals, people, tokens
from actonce.ledger.approvals import Approval
from actonce.ledger.store import many
from actonce.stack import Stack
from actonce.testing.waiting import eventually
from tests.integration.entry_bench import Bench, bench
from tests.integration.test_entry_client import client, desk

TASK = "default/single/h-1"


async def proposed(on: Bench, *, valid_s: float = 600, **terms: Any) -> Approval:
    await on.start("h-1")
    key = OperationKey("default", "payments", "refund", derive_operation_id("default", TASK, "refund", 0))
    proposal = Proposal(
        tenant="default",
        tool="payments.refund",
        destination="payments",
        action="refund",
        account="acct",
        principal="svc",
        payload={"amount_minor": 100},
        resolved={"invoice": "sha256:aa"},
        terms=ApprovalTerms(valid_s=valid_s, **terms),
        requested_by="ada",
    )
    return await approvals.propose(on.ledger, key, TASK, "refund", proposal)


async def click(on: Bench, approval: Approval, verb: str, name: str = "olga", **more: Any) -> Any:
    body = {"name": name, "note": "looked", "digest": approval.digest, **more}
    return await on.http.post(f"/v1/approvals/{approval.approval_id}/{verb}", json=body)


async def test_what_would_run_is_shown_with_its_digest_and_the_ledgers_deadline(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2) as on:
        approval = await proposed(on)
        (listed,) = (await on.http.get("/v1/approvals", params={"state": "pending"})).json()
        shown = (await on.http.get(f"/v1/approvals/{approval.approval_id}")).json()
        for view in (listed, shown):
            assert view["what"] == approval.proposal.what and view["digest"] == approval.digest
            assert 590 < view["seconds_left"] <= 600
        task = await on.show(TASK)
        assert task["state"] == "waiting_for_approval" and approval.approval_id in task["why"]
        assert any(
            "python -m actonce.client approve" in step and approval.digest in step for step in task["what_to_do"]
        )
        assert (await on.http.get("/v1/approvals", params={"state": "approved"})).json() == []
        unknown = await on.http.get("/v1/approvals/ap1_nothing")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_approval")


async def test_who_starts_a_task_asks_for_it_whomever_its_payload_names(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2, token_cache_s=0) as on:
        shown = {}
        for name in ("Olga", "Ben"):
            await people.add_person(on.ledger, name, [Role.ADMIN], password=None, by="tests")
            _, value = await tokens.create_token(
                on.ledger, name, [Scope.START, Scope.READ, Scope.APPROVE], by="tests", person=name
            )
            shown[name] = {"Authorization": f"Bearer {value}"}
        started = await on.start("h-1", {"amount_minor": 100, "requested_by": "ada"}, **shown["Olga"])
        assert started.json()["submitted_by"] == "Olga"
        await on.start("h-1", {"amount_minor": 100, "requested_by": "ada"}, **shown["Ben"])  # the same task again
        approval = await proposed(on)
        assert approval.requested_by == "ada"
        path = f"/v1/approvals/{approval.approval_id}/approve"
        codes = []
        for name in ("Olga", "Ben"):
            body = {"name": name, "note": "looked", "digest": approval.digest}
            said = (await on.http.post(path, json=body, headers=shown[name])).json()
            codes.append(said.get("code") or said["state"])
        assert codes == ["requester", "approved"]
        async with on.ledger.transaction() as connection:
            [event] = await many(connection, "SELECT body FROM actonce.audit WHERE kind = 'task.accepted'")
        assert event["body"]["submitted_by"] == "Olga"


async def test_the_decision_is_a_row_before_the_workflow_is_told(servers: Stack, fresh_dsn: str) -> None:
    async with bench(fresh_dsn, servers.temporal_address) as on:
        approval = await proposed(on)
        told = await click(on, approval, "approve")
        assert (told.status_code, told.json()["state"], told.json()["workflow_told"]) == (200, "approved", True)
        assert on.temporal is not None
        events = [e async for e in on.temporal.get_workflow_handle(TASK).fetch_history_events()]
        assert sum(e.HasField("workflow_execution_signaled_event_attributes") for e in events) == 1


async def test_the_second_is_told_who_was_first_and_the_first_may_click_again(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2) as on:
        approval = await proposed(on)
        first = await click(on, approval, "approve")
        assert first.status_code == 200 and first.json()["workflow_told"] is False
        second = await click(on, approval, "reject", name="bo")
        assert second.status_code == 409 and second.headers["content-type"] == "application/problem+json"
        problem = second.json()
        assert (problem["code"], problem["decided_by"]) == ("already_decided", "olga")
        assert problem["decided_at"] and problem["title"] == "Already decided"
        assert (await click(on, approval, "approve")).status_code == 200
        other = await click(on, approval, "approve", digest="a1:other")
        assert (other.status_code, other.json()["code"]) == (409, "changed")
        nameless = await click(on, approval, "approve", name=" ")
        assert nameless.status_code == 422


async def test_expired_is_shown_as_expired_by_the_ledgers_clock_alone(fresh_dsn: str) -> None:
    """Case e2, through the door: nobody has noticed it yet, and it is never shown as approved."""
    async with bench(fresh_dsn, None, start_deadline_s=0.2) as on:
        approval = await proposed(on, valid_s=1.0)
        assert (await click(on, approval, "approve")).json()["state"] == "approved"

        async def over() -> bool:
            view = (await on.http.get(f"/v1/approvals/{approval.approval_id}")).json()
            assert view["state"] in ("approved", "expired")
            return bool(view["state"] == "expired" and view["seconds_left"] == 0)

        await eventually(over, within_s=5, what="expired by the clock", every_s=0.1)
        late = await click(on, approval, "approve", name="bo")
        assert (late.status_code, late.json()["code"]) == (409, "expired")
        view = (await on.http.get(f"/v1/approvals/{approval.approval_id}")).json()
        assert [(c["name"], c["effect"]) for c in view["clicks"]] == [("olga", "counted"), ("bo", "expired")]
        assert (await on.show(TASK))["state"] == "waiting_for_approval"
        renewed = await on.http.post(
            f"/v1/approvals/{approval.approval_id}/renew", json={"name": "olga", "note": "it was late"}
        )
        assert (renewed.status_code, renewed.json()["code"]) == (409, "not_held")


async def test_withdrawn_is_withdrawn_and_says_by_whom(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2) as on:
        approval = await proposed(on)
        await click(on, approval, "approve")
        gone = await click(on, approval, "withdraw", note="wrong customer")
        assert (gone.json()["state"], gone.json()["ended_by"], gone.json()["ended_why"]) == (
            "withdrawn",
            "olga",
            "wrong customer",
        )
        assert (await click(on, approval, "withdraw", note="wrong customer")).status_code == 200
        assert (await click(on, approval, "withdraw", name="bo")).json()["code"] == "not_open"


async def test_page_alone_leads_an_approver_to_the_decision(fresh_dsn: str) -> None:
    """A fresh process that has the page's text, and what that names, and nothing else."""
    async with desk(fresh_dsn) as (url, on):
        approval = await proposed(on)
        (page,) = (await client("pages", "--json", "--entry", url)).json
        assert page["severity"] == "warning" and page["reason"] == "approval_pending"
        approval_id = page["body"].split("python -m actonce.client approvals ")[1].split()[0]
        shown = await client("approvals", approval_id, "--entry", url)
        assert shown.status == 0 and '"amount_minor": 100' in shown.out and "sha256:aa" in shown.out
        digest = shown.out.split("digest: ")[1].split()[0]
        words = (approval_id, "--name", "olga", "--note", "the invoice fits", "--digest", digest, "--entry", url)
        said = await client("approve", *words)
        assert said.status == 0 and "is approved" in said.out, said.err
        again = await client("reject", approval_id, "--name", "bo", "--digest", digest, "--entry", url)
        assert again.status == 3 and "Already decided" in again.err and "olga" in again.err
        listed = await client("approvals", "--state", "approved", "--entry", url)
        assert approval.approval_id in listed.out and "1 of 1" in listed.out
        assert (await client("pages", "--json", "--entry", url)).json == []
