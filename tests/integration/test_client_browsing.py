"""Every command of the client that looks around, against a real entry on a ledger that has something of everything."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
import typer
from typer.testing import CliRunner

from actonce.client import app
from actonce.client.base import Given, given
from actonce.contracts.people import Role, Scope
from actonce.ledger import people, tokens
from actonce.ledger.migrate import migrate
from actonce.ledger.store import Ledger
from actonce.stack import Stack
from tests.databases import empty_database
from tests.integration.console_stage import MARKUP, Stage, stage
from tests.integration.entry_token import TOKEN, let_in
from tests.integration.test_entry_process import entry

pytestmark = pytest.mark.asyncio(loop_scope="module")
# What these change is tested where it is changed (test_entry_client.py, the drills).
ACTING = {"start", "follow", "resolve", "second", "ack", "approve", "reject", "withdraw", "renew", "deadline", "cancel"}
ACTING |= {"rotate", "revoke"}


@dataclass
class Desk:
    """Somebody at a terminal, the entry, and what was staged behind it."""

    on: Stage
    url: str
    secret: str  # the value of a token: it may be in no answer

    def types(self, *words: str, token: str = TOKEN) -> Any:
        """What a command ends with and prints."""
        env = {"ACTONCE_ENTRY_URL": self.url, "ACTONCE_ENTRY_TOKEN": token, "NO_COLOR": "1"}
        told = CliRunner().invoke(app, [self.named(word) for word in words], env=env)
        vars(given).update(vars(Given()))  # a process of its own would have ended with it
        return told

    def named(self, word: str) -> str:
        """`task:NAME`, `operation:NAME`, `approval:NAME` of the stage by their ids."""
        kind, _, name = word.partition(":")
        if kind == "operation" and name:
            return self.on.operations[name].operation_id
        return {"task": self.on.tasks, "approval": self.on.approvals}.get(kind, {}).get(name, word)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk(postgres_server: Stack) -> AsyncIterator[Desk]:
    async with empty_database(postgres_server.postgres.dsn) as dsn:
        migrate(dsn)
        let_in(dsn)
        async with Ledger(dsn) as ledger:
            on = await stage(ledger)
            await people.add_person(ledger, "iris", [Role.APPROVER], password="correct horse battery", by="setup")
            await people.disable(ledger, "iris", by="setup")
            _, secret = await tokens.create_token(ledger, "nightly", [Scope.READ], by="setup")
            slow = {"ACTONCE_STALE_AFTER_S": "86400", "ACTONCE_SECOND_PERSON": "permit_one_retry"}
            async with entry(dsn, ACTONCE_ENTRY_PORT="0", **slow) as (_, ready):
                yield Desk(on, ready["url"], secret)


SAYS: dict[str, list[str]] = {
    "overview": ["tasks held: 3", "held for route_unavailable", "open: page", "dependencies: down", "nobody can ask"],
    "search re_ada_refund": ["object at the destination", "committed", "op1_"],
    "search held@example.com": ["customer", "acme/refund/rf-held", "held"],
    "story task:held": ["Request accepted", "Plan made durable", "Permit consumed", "Held:"],
    "audit --task-id task:word --kind decision.": ["decision.recorded", "whole"],
    "audit --operation-id operation:ada.refund": ["operation.", "whole"],
    "list --state held": ["acme/refund/rf-held", "route_unavailable"],
    "list --natural-key held:refund": ["operation:held.refund", "payments"],
    "show task:held": ["acme/refund/rf-held  held", "refund: held", "do:"],
    "show operation:held.refund": ["issued", "committed not established", "HTTP 503 from the gateway", "do:"],
    "pages": ["open", "nobody has seen it"],
    "alerts --all": ["RouteDown", "procedure: docs/operations/route_unhealthy.md"],
    "dependencies": ["route:payments.statement", "down", "destination:mail", "nobody can ask"],
    "approvals": ["approval:large", "pending", "rejected"],
    "approvals approval:large": ["digest: ", "240000", "asked by desk-agent"],
    "release": ["refund", "batch", "wait"],
    "restore": ["epoch 1", "this ledger was never restored"],
    "credentials": ["payments-writer", "active", "bank-sftp", "expired", "svc-refunds"],
    "policy": ["permit_one_retry", "payments  version 3", "late arrival: bounded", "statement (log)"],
    "policy --reasons": ["route_unavailable", "mark_committed"],
    "authority": ["refund at bank: in force", "0 of 10 an hour", "0 of any number minor", "signed by ada"],
    "people": ["iris", "approver", "disabled", "password"],
    "tokens": ["nightly", "read", "the deployment"],
}


@pytest.mark.parametrize("command", SAYS)
async def test_it_tells_people_and_programs_the_same(desk: Desk, command: str) -> None:
    told = desk.types(*command.split())
    assert told.exit_code == 0, told.output
    lacking = [words for words in SAYS[command] if desk.named(words) not in told.stdout]
    assert not lacking, (lacking, told.stdout)
    as_json = desk.types(*command.split(), "--json")
    assert as_json.exit_code == 0 and json.loads(as_json.stdout), as_json.output
    assert desk.secret not in told.output + as_json.output and "\x1b" not in told.output


async def test_no_command_that_looks_around_is_missing_here() -> None:
    there = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert there - ACTING - {"access-policy"} == {command.split()[0] for command in SAYS}


async def test_access_policy_is_shown_and_where_there_is_none_that_is_said(desk: Desk) -> None:
    told = desk.types("access-policy")
    assert told.exit_code in (0, 3) and "polic" in told.output


async def test_words_of_others_stay_words(desk: Desk) -> None:
    told = desk.types("show", "task:markup")
    assert told.exit_code == 0
    assert MARKUP in desk.types("show", "operation:markup.refund", "--json").stdout.replace('\\"', '"')


async def test_who_may_only_read_is_told_what_is_missing(desk: Desk) -> None:
    for command in ("people", "tokens"):
        refused = desk.types(command, token=desk.secret)
        assert refused.exit_code == 3 and "admin" in refused.output
    assert desk.types("policy", token=desk.secret).exit_code == 0
    nobody = desk.types("story", "task:held", token="actonce_nobody")
    assert nobody.exit_code == 3 and "ACTONCE_ENTRY_TOKEN" in nobody.output
    assert desk.types("story", "acme/refund/none").exit_code == 3
