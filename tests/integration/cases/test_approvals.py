"""Approvals in the ledger and in the permit's transaction: exactly this, in time, once, one winner."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

import psycopg
import pytest

from actonce.contracts.approval import ApprovalAct, ApprovalRenewal, ApprovalVote
from actonce.contracts.errors import ApprovalRefused, DecisionRefused
from actonce.contracts.identity import OperationKey
from actonce.contracts.messages import DecisionRequest, IssueResult, OperationRequest
from actonce.destinations.base import Destination
from actonce.effects.approve import propose
from actonce.effects.decide import decide
from actonce.effects.perform import perform
from actonce.effects.system import System
from actonce.effects.watcher import watch_once
from actonce.ledger import approvals, decisions, gates, listing, tasks
from actonce.ledger.approvals import Approval
from actonce.testing.waiting import eventually
from tests.integration.cases.kit import Bench, Lab, key_of, side_by_side
from tests.integration.cases.test_lock_order import waits

WANTED = {"payments": {"approvals": [{"action": "refund", "over_minor": 1000}]}}


def wanting(**terms: Any) -> dict[str, Any]:
    return {"payments": {"approvals": [{"action": "refund", "over_minor": 1000, **terms}]}}


async def asked(bench: Bench, system: System, request: OperationRequest | None = None) -> Approval:
    """The task of the bench's operation, and its proposal."""
    request = request or bench.request()
    _, task_type, key = request.task_id.split("/")
    await tasks.accept(system.ledger, "default", task_type, key, {})
    await propose(system, request)
    (approval,) = await listing.approvals(system.ledger, state="pending")
    return approval


async def vote(system: System, approval: Approval, name: str = "olga", decision: Any = "approve") -> Approval:
    given = ApprovalVote(name=name, note="checked the invoice", digest=approval.digest)
    return await approvals.vote(system.ledger, approval.approval_id, decision, given)


async def press_resume(bench: Bench, system: System) -> str:
    """What a person does with the held operation: decide, and have it consumed."""
    await record_resume(bench, system)
    return (await decide(system, key_of(bench.request())))[1]


async def record_resume(bench: Bench, system: System) -> None:
    row = await bench.operation()
    key = OperationKey(row["tenant"], row["destination"], row["action"], row["operation_id"])
    body = {"action": "resume", "name": "olga", "reason": "approved anew"}
    stamp = {"expected_epoch": row["epoch"], "expected_version": row["version"]}
    await decisions.record(system.ledger, key, DecisionRequest.model_validate(body | stamp))


async def held_for(bench: Bench, result: IssueResult, reason: str) -> None:
    """Nothing was sent, and a person is called for exactly this."""
    assert (result.status, result.reason) == ("held", reason), result
    assert bench.requests() == [] and await bench.rows("attempt") == []
    (page,) = [p for p in await bench.rows("page") if p["closed_at"] is None and p["reason"] != "approval_pending"]
    assert page["reason"] == reason and page["severity"] == "page"
    assert f"docs/operations/{reason}.md" in page["body"]


async def kinds(bench: Bench) -> list[str]:
    return [r["kind"] for r in await bench.rows("audit") if r["kind"].startswith("approval.")]


@side_by_side
async def test_nothing_is_sent_before_it_is_approved_and_one_permit_consumes_the_approval(lab: Lab) -> None:
    async with lab.bench(contracts=WANTED) as bench:
        system = await bench.system()
        approval = await asked(bench, system)
        (task,) = await bench.rows("task")
        assert (task["state"], task["reason"]) == ("waiting_for_approval", "approval_pending")
        assert await bench.rows("operation") == []
        assert (await vote(system, approval)).state == "approved"
        assert (await perform(system, bench.request())).status == "committed"
        assert len(bench.requests()) == len(bench.effects()) == 1
        (row,) = await bench.rows("approval")
        assert row["state"] == "consumed" and row["decided_by"] == "olga"
        (attempt,) = await bench.rows("attempt")
        assert attempt["not_after"] <= row["expires_at"]
        assert await kinds(bench) == [
            "approval.proposed",
            "approval.click",
            "approval.approved",
            "approval.consumed",
        ]
        assert all(p["closed_at"] for p in await bench.rows("page"))


@side_by_side
async def test_without_its_gate_the_very_same_operation_is_sent_unapproved(lab: Lab) -> None:
    """The negative control: what holds it is the gate, and nothing else that these tests set up."""

    async with lab.bench(contracts=WANTED) as bench, lab.bench(contracts=WANTED) as other:
        guarded = gates._approved

        async def open_gate(connection: Any, *more: Any) -> Any:
            """Open for one ledger: other cases run beside this one."""
            return gates.Pass() if connection.info.dbname == other.database else await guarded(connection, *more)

        system, unguarded = await bench.system(), await other.system()
        await asked(bench, system)
        await held_for(bench, await perform(system, bench.request()), "approval_required")
        patch = pytest.MonkeyPatch()
        patch.setattr(gates, "_approved", open_gate)
        try:
            await perform(unguarded, other.request())
        finally:
            patch.undo()
        assert len(other.effects()) == 1


@side_by_side
async def test_a_permit_that_nobody_was_asked_for_is_refused_and_people_are_asked(lab: Lab) -> None:
    """A worker that proposes nothing (an older one, or a contract that demands it since today) sends nothing."""
    async with lab.bench(contracts=WANTED) as bench:
        system = await bench.system()
        await held_for(bench, await perform(system, bench.request()), "approval_required")
        (approval,) = await listing.approvals(system.ledger, state="pending")
        with pytest.raises(DecisionRefused, match="decide it") as early:
            await press_resume(bench, system)
        assert early.value.code == "condition_not_met"
        await vote(system, approval)
        assert await press_resume(bench, system) == "resume: applied"
        assert (await bench.operation())["reason"] is None
        assert (await perform(system, bench.request())).status == "committed"
        assert len(bench.effects()) == 1


def pointing_at(files: Mapping[str, str]) -> Any:
    """A destination whose payload names a file and an alias; `files` says what they are now."""

    def change(destination: Destination) -> Destination:
        async def resolve(action: str, payload: Mapping[str, Any], deadline_s: float) -> Mapping[str, Any]:
            return {"file": files["file"], "account": files["account"]}

        return dataclasses.replace(destination, resolve=resolve) if destination.contract.approvals else destination

    return change


@side_by_side
async def test_changed_file_or_account_after_approval_is_refused_paged_and_shown(lab: Lab) -> None:
    """Case e1."""
    for name in ("file", "account"):
        async with lab.bench(contracts=WANTED) as bench:
            files = {"file": "sha256:aa", "account": "acct_9"}
            system = await bench.system(change=pointing_at(files))
            approval = await asked(bench, system)
            await vote(system, approval)
            files[name] = "something else"
            await held_for(bench, await perform(system, bench.request()), "approval_changed")
            changed, _ = await approvals.record(system.ledger, approval.approval_id)
            assert changed.state == "changed" and changed.found is not None
            assert changed.found.resolved[name] == "something else"
            with pytest.raises(DecisionRefused, match="renew"):
                await press_resume(bench, system)
            renewed = await approvals.renew(
                system.ledger, approval.approval_id, ApprovalRenewal(name="ada", note="the invoice was corrected")
            )
            assert (renewed.digest, renewed.round) == (changed.found.digest, 2)
            with pytest.raises(DecisionRefused, match="decide it"):
                await press_resume(bench, system)
            await vote(system, renewed)
            assert await press_resume(bench, system) == "resume: applied"
            assert (await perform(system, bench.request())).status == "committed"
            assert len(bench.effects()) == 1 and "approval.changed" in await kinds(bench)


@side_by_side
async def test_reordered_keys_are_what_was_approved(lab: Lab) -> None:
    """Case e1."""
    async with lab.bench(contracts=WANTED) as bench:
        system = await bench.system()
        await vote(system, await asked(bench, system))
        turned = bench.request(payload=dict(reversed(bench.request().payload.items())))
        assert (await perform(system, turned)).status == "committed"


@side_by_side
async def test_what_cannot_be_read_again_is_not_what_was_approved(lab: Lab) -> None:
    async with lab.bench(contracts=WANTED) as bench:
        files = {"file": "sha256:aa", "account": "acct_9"}
        system = await bench.system(change=pointing_at(files))
        await vote(system, await asked(bench, system))
        del files["file"]
        result = await perform(system, bench.request())
        await held_for(bench, result, "approval_changed")
        assert "cannot be read (KeyError" in result.detail


@side_by_side
async def test_the_tool_is_given_what_was_resolved_and_compared(lab: Lab) -> None:
    async with lab.bench(contracts=WANTED) as bench:
        given: list[Mapping[str, Any]] = []

        def change(destination: Destination) -> Destination:
            pointed = pointing_at({"file": "sha256:aa", "account": "acct_9"})(destination)

            async def send(call: Any) -> Any:
                given.append(call.resolved)
                return await destination.send(call)

            return dataclasses.replace(pointed, send=send)

        system = await bench.system(change=change)
        await vote(system, await asked(bench, system))
        await perform(system, bench.request())
        assert given == [{"file": "sha256:aa", "account": "acct_9"}]


async def over(bench: Bench, approval: Approval) -> None:
    async def check() -> bool:
        async with await psycopg.AsyncConnection.connect(bench.dsn) as link:
            row = await (await link.execute("SELECT clock_timestamp() > %s", (approval.expires_at,))).fetchone()
        return bool(row and row[0])

    await eventually(check, within_s=10, what="the approval's time is over", every_s=0.05)


@side_by_side
async def test_click_after_the_expiry_is_recorded_as_a_click_and_never_shown_as_approved(lab: Lab) -> None:
    """Case e2: the clock crosses the expiry before the click."""
    async with lab.bench(contracts=wanting(valid_s=0.5)) as bench:
        system = await bench.system()
        approval = await asked(bench, system)
        await over(bench, approval)
        (shown,) = await listing.approvals(system.ledger)
        assert shown.state == "expired", "before anybody noticed, too"
        for _ in range(2):
            with pytest.raises(ApprovalRefused) as late:
                await vote(system, approval)
            assert late.value.code == "expired"
        after, clicks = await approvals.record(system.ledger, approval.approval_id)
        assert after.state == "expired" and after.decided_by is None and after.approvals_given == 0
        assert [(c["name"], c["decision"], c["effect"]) for c in clicks] == [("olga", "approve", "expired")]
        await held_for(bench, await perform(system, bench.request()), "approval_expired")
        assert {"approval.expired", "approval.click"} <= set(await kinds(bench))
        assert "approval.approved" not in await kinds(bench)


@side_by_side
async def test_expiry_between_click_and_execution_sends_nothing(lab: Lab) -> None:
    """Case e2: approved in time, executed too late."""
    async with lab.bench(contracts=wanting(valid_s=1.0)) as bench:
        system = await bench.system()
        approval = await asked(bench, system)
        await vote(system, approval)
        await over(bench, approval)
        await held_for(bench, await perform(system, bench.request()), "approval_expired")
        (shown,) = await listing.approvals(system.ledger)
        assert (shown.state, shown.consumed_at) == ("expired", None)


@side_by_side
async def test_a_permit_ends_with_its_approval(lab: Lab) -> None:
    async with lab.bench(contracts=wanting(valid_s=2.0)) as bench:
        system = await bench.system()
        approval = await asked(bench, system)
        await vote(system, approval)
        await perform(system, bench.request())
        (attempt,) = await bench.rows("attempt")
        assert attempt["not_after"] == approval.expires_at


@side_by_side
async def test_later_permits_check_the_approval_again_and_do_not_consume_it_twice(lab: Lab) -> None:
    async with lab.bench(contracts=WANTED) as bench:
        system = await bench.system()
        approval = await asked(bench, system)
        await vote(system, approval)
        await bench.configure(revoked={"write": "401"})  # provably not accepted: the next permit is asked for
        assert (await perform(system, bench.request())).status == "ready"
        await approvals.withdraw(system.ledger, approval.approval_id, ApprovalAct(name="olga", note="wrong customer"))
        result = await perform(system, bench.request())
        assert (result.status, result.reason) == ("held", "approval_withdrawn")
        assert bench.effects() == [] and len(await bench.rows("attempt")) == 1
        assert (await kinds(bench)).count("approval.consumed") == 1


@side_by_side
async def test_watcher_expires_what_nobody_decided_and_calls_a_person_without_temporal(lab: Lab) -> None:
    async with lab.bench(contracts=wanting(valid_s=0.3)) as bench:
        system = await bench.system()
        approval = await asked(bench, system)
        await over(bench, approval)
        assert (await watch_once(system))["expired"] == 1
        assert (await watch_once(system))["expired"] == 0
        (page,) = [p for p in await bench.rows("page") if p["closed_at"] is None]
        assert (page["reason"], page["severity"]) == ("approval_expired", "page")
        (task,) = await bench.rows("task")
        assert task["state"] == "waiting_for_approval" and "which is expired" in task["detail"]
        await held_for(bench, await perform(system, bench.request()), "approval_expired")


@side_by_side
async def test_twenty_at_once_have_one_winner_and_everybody_else_is_told_who(lab: Lab) -> None:
    """Case h2, at the ledger: one winner; repeats of the winner succeed; losers get `already decided`."""
    async with lab.bench(contracts=WANTED) as bench:
        system = await bench.system()
        approval = await asked(bench, system)
        clicks = [(f"person-{n}", "approve" if n % 2 else "reject") for n in range(20)]

        async def click(name: str, decision: str) -> tuple[str, str, str]:
            try:
                after = await vote(system, approval, name, decision)
            except ApprovalRefused as refused:
                assert refused.decided_by is not None and refused.decided_at is not None
                return name, decision, f"{refused.code} by {refused.decided_by}"
            return name, decision, after.state

        ends = await asyncio.gather(*(click(*c) for c in clicks))
        winners = [e for e in ends if e[2] in ("approved", "rejected")]
        ((winner, decision, state),) = winners
        assert state == {"approve": "approved", "reject": "rejected"}[decision]
        assert {e[2] for e in ends} - {state} == {f"already_decided by {winner}"}
        assert (await vote(system, approval, winner, decision)).state == state
        _, recorded = await approvals.record(system.ledger, approval.approval_id)
        assert [c["name"] for c in recorded if c["effect"] == "counted"] == [winner] and len(recorded) == 20


@side_by_side
async def test_two_people_are_two_people_and_the_requester_is_none_of_them(lab: Lab) -> None:
    async with lab.bench(contracts=wanting(approvers=2)) as bench:
        system = await bench.system()
        approval = await asked(bench, system, bench.request(requested_by="ada"))
        for name, code in (("Ada", "requester"), ("olga", None), ("OLGA ", None)):
            try:
                after = await vote(system, approval, name)
                assert code is None and (after.state, after.approvals_given) == ("pending", 1)
            except ApprovalRefused as refused:
                assert refused.code == code
        with pytest.raises(ApprovalRefused) as twice:
            await vote(system, approval, "olga", "reject")
        assert twice.value.code == "voted"
        await held_for(bench, await perform(system, bench.request()), "approval_required")
        after = await vote(system, approval, "bo")
        assert (after.state, after.decided_by) == ("approved", "olga, bo")


@side_by_side
async def test_a_vote_about_another_digest_is_not_counted(lab: Lab) -> None:
    async with lab.bench(contracts=WANTED) as bench:
        system = await bench.system()
        approval = await asked(bench, system)
        other = ApprovalVote(name="olga", digest="a1:something-else")
        with pytest.raises(ApprovalRefused) as refused:
            await approvals.vote(system.ledger, approval.approval_id, "approve", other)
        assert refused.value.code == "changed"
        (shown,) = await listing.approvals(system.ledger)
        assert shown.state == "pending"


@side_by_side
async def test_a_policy_that_became_stricter_counts_at_execution(lab: Lab) -> None:
    async with lab.bench(contracts=WANTED) as bench:
        system = await bench.system()
        await vote(system, await asked(bench, system))
        stricter = await bench.system(contracts=bench.settings.contracts | wanting(approvers=2))
        result = await perform(stricter, bench.request())
        await held_for(bench, result, "approval_required")
        assert "the policy wants 2" in result.detail


@side_by_side
async def test_asking_twice_asks_nobody_twice_and_moves_no_deadline(lab: Lab) -> None:
    async with lab.bench(contracts=WANTED) as bench:
        system, other = await bench.system(), await bench.system()
        first = await asked(bench, system)
        await asyncio.gather(*(propose(s, bench.request()) for s in (system, other) for _ in range(5)))
        (again,) = await listing.approvals(system.ledger)
        assert (again.approval_id, again.expires_at) == (first.approval_id, first.expires_at)
        assert len(await bench.rows("page")) == 1 and await kinds(bench) == ["approval.proposed"]


@side_by_side
async def test_deadline_content_and_clicks_cannot_be_rewritten_in_the_database(lab: Lab) -> None:
    async with lab.bench(contracts=WANTED) as bench:
        system = await bench.system()
        await vote(system, await asked(bench, system))
        for change, refused in (
            ("UPDATE actonce.approval SET expires_at = expires_at + interval '1 h'", "never changed"),
            ("UPDATE actonce.approval SET digest = 'a1:x'", "never changed"),
            ("UPDATE actonce.approval_vote SET decision = 'reject'", "never changed"),
            ("DELETE FROM actonce.approval_vote", "never deleted"),
        ):
            async with await psycopg.AsyncConnection.connect(bench.dsn) as link:
                with pytest.raises(psycopg.errors.RaiseException, match=refused):
                    await link.execute(change)  # type: ignore[arg-type]


@side_by_side
async def test_nobody_is_asked_about_a_cancelled_task(lab: Lab) -> None:
    async with lab.bench(contracts=WANTED) as bench:
        system = await bench.system()
        approval = await asked(bench, system)
        await tasks.cancel(system.ledger, approval.task_id)
        (shown,) = await listing.approvals(system.ledger)
        assert (shown.state, shown.ended_by) == ("withdrawn", "its task")
        with pytest.raises(ApprovalRefused) as late:
            await vote(system, approval)
        assert late.value.code == "not_open"
        assert (await perform(system, bench.request())).status == "closed"
        assert all(p["closed_at"] for p in await bench.rows("page"))


@side_by_side
async def test_a_change_that_was_put_right_is_approved_anew_as_it_was(lab: Lab) -> None:
    async with lab.bench(contracts=WANTED) as bench:
        files = {"file": "sha256:aa", "account": "acct_9"}
        system = await bench.system(change=pointing_at(files))
        first = await asked(bench, system)
        await vote(system, first)
        files["file"] = "sha256:bb"
        await perform(system, bench.request())
        files["file"] = "sha256:aa"
        renewal = ApprovalRenewal(name="ada", note="the old file is back", as_approved=True)
        renewed = await approvals.renew(system.ledger, first.approval_id, renewal)
        assert renewed.digest == first.digest
        await vote(system, renewed)
        await press_resume(bench, system)
        assert (await perform(system, bench.request())).status == "committed"


@side_by_side
async def test_a_vote_and_a_permit_that_ends_in_a_hold_do_not_wait_for_each_other(lab: Lab) -> None:
    async with lab.bench(contracts=WANTED) as bench:
        system = await bench.system()
        approval = await asked(bench, system)
        async with await psycopg.AsyncConnection.connect(bench.dsn) as link:
            await link.execute("LOCK TABLE actonce.hold IN SHARE MODE")  # the permit has read and not written its hold
            permit = asyncio.ensure_future(perform(system, bench.request()))
            await waits(bench, 1)
            click = asyncio.ensure_future(vote(system, approval))
            await waits(bench, 2)
        assert (await permit).status == "held"
        assert (await click).state == "approved"
