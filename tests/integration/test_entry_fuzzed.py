"""The entry's own description turned against it: whatever is asked, no server error, and an answer as described.

The service runs as a process on a real ledger and a real Temporal. Every second request is about things that are there
(a task, a held operation, a page, an approval, as they are on record), so that what is generated also gets past the
first question. It is the same in every run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio
import schemathesis
from hypothesis import HealthCheck, settings
from psycopg import sql
from pydantic import SecretStr
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from actonce.contracts.approval import ApprovalTerms, Proposal
from actonce.contracts.identity import OperationKey, derive_operation_id
from actonce.entry.app import create_app
from actonce.entry.settings import EntrySettings
from actonce.ledger import approvals
from actonce.stack import Stack
from tests.integration.entry_bench import bench, contract
from tests.integration.entry_token import SHOWN

ROOT = Path(__file__).parents[2]
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]
EXAMPLES_MAX = 5  # for each operation, beside one case for every bound in its schema
TASK = "default/single/there"


@dataclass(frozen=True)
class Running:
    url: str
    log: Path
    there: dict[str, Any]  # path parameter or member of a body → what fits something on record


async def _put_something_there(dsn: str) -> dict[str, Any]:
    async with bench(dsn, None, start_deadline_s=0.2) as on:
        await on.start("there")
        operation = await on.held(TASK, contract(bounded=False))
        key = OperationKey("default", "payments", "refund", derive_operation_id("default", TASK, "other", 0))
        proposal = Proposal(
            tenant="default",
            tool="payments.refund",
            destination="payments",
            action="refund",
            account="acct",
            principal="svc",
            payload={"amount_minor": 100},
            resolved={},
            terms=ApprovalTerms(valid_s=3600),
            requested_by="ada",
        )
        approval = await approvals.propose(on.ledger, key, TASK, "other", proposal)
    return {
        "task_id": TASK,
        "task_type": "single",
        "page_id": 1,
        "decision_id": 1,
        "operation_id": operation.operation_id,
        "expected_epoch": operation.epoch,
        "expected_version": operation.version,
        "approval_id": approval.approval_id,
        "digest": approval.digest,
        "expected_deadline": None,
    }


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def entry(servers: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with await psycopg.AsyncConnection.connect(servers.ledger_dsn, autocommit=True) as link:
        await link.execute(sql.SQL("CREATE DATABASE fuzzed"))
    dsn = servers.ledger_dsn.rsplit("/", 1)[0] + "/fuzzed"
    there = await _put_something_there(dsn)
    log = tmp_path_factory.mktemp("entry") / "entry.log"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ACTONCE_", "TEMPORAL_"))}
    env |= {"ACTONCE_LEDGER_DSN": dsn, "ACTONCE_ENTRY_PORT": "0", "ACTONCE_TASK_QUEUE": "fuzzed"}
    env |= {"TEMPORAL_ADDRESS": servers.temporal_address}
    command = [sys.executable, "-m", "actonce.entry"]
    with log.open("w") as file, subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=file) as it:
        try:
            assert it.stdout is not None
            line = it.stdout.readline()
            assert line, log.read_text()
            yield Running(json.loads(line)["url"], log, there)
        finally:
            it.kill()


described = create_app(EntrySettings(ledger_dsn=SecretStr("postgresql://nobody"))).openapi()  # contacts nobody
fuzzed = schemathesis.openapi.from_dict(
    described, config=SchemathesisConfig.from_dict({"seed": 1, "generation": {"deterministic": True}})
)
numbers = count()


def _test_of(label: str) -> Callable[..., None]:
    """The test of one operation, with an id of its own: of equal ones, processes that share tests run only one."""

    @fuzzed.include(name=label).parametrize()
    @settings(max_examples=EXAMPLES_MAX, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def test(case: Case, entry: Running) -> None:
        """Whatever is asked is answered as described, and never with a server error."""
        if next(numbers) % 2:
            case.path_parameters = {name: entry.there.get(name, value) for name, value in case.path_parameters.items()}
            if isinstance(case.body, dict):
                case.body = {name: entry.there.get(name, value) for name, value in case.body.items()}
        case.call_and_validate(base_url=entry.url, checks=CHECKS, headers=SHOWN)
        if case.method != "GET":
            assert case.call(base_url=entry.url).status_code in (401, 404, 405), "a write without a token"

    return test


for _path, _methods in described["paths"].items():
    for _method in _methods:
        _label = f"{_method.upper()} {_path}"
        globals()[f"test_answers_as_described_{re.sub('[^a-z]+', '_', _label.lower()).strip('_')}"] = _test_of(_label)


def test_no_refusal_was_logged_as_an_error(entry: Running) -> None:
    """After all of the above. What is refused is no fault of the service, and a log full of them hides the faults."""
    assert next(numbers) > 200
    said = entry.log.read_text()
    assert "Traceback" not in said and '"unexpected"' not in said, said[-3000:]
