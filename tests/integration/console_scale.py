"""`python -m tests.integration.console_scale`: how long each page takes with 10,000 tasks and 100,000 operations.

Measured, not asserted: the machine decides as much as the code. Everything is in this process but PostgreSQL, so a
time is what the server takes for a page, its queries and its template. Prints one line for each page.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import psycopg

from actonce.ledger.migrate import migrate
from actonce.stack import Stack
from tests.integration.console_bench import console, form_of

TASKS, OPERATIONS, EVENTS = 10_000, 100_000, 600_000
ROUNDS = 15
LIMIT_S = 0.3  # what is aimed at
FILL = [
    f"""
INSERT INTO actonce.task (task_id, tenant, task_type, task_key, workflow_id, payload, payload_digest, state, reason,
    detail, since, recorded, outcome, created_at, released_at)
SELECT 'acme/refund/rf-' || n, 'acme', 'refund', 'rf-' || n, 'acme/refund/rf-' || n,
    jsonb_build_object('payment_id', 'pay_' || n, 'amount_minor', n, 'customer', 'c' || n % 3000 || '@example.com'),
    'd1:' || n, state, CASE state WHEN 'held' THEN 'not_visible' END, 'words about it', at, true,
    CASE WHEN state IN ('complete', 'failed') THEN '{{"summary": "done"}}'::jsonb END, at, at
FROM (SELECT n, now() - ({TASKS} - n) * interval '7 s' AS at, CASE WHEN n % 100 < 95 THEN 'complete' WHEN n % 100 = 95
    THEN 'failed' WHEN n % 100 = 96 THEN 'held' WHEN n % 100 = 97 THEN 'queued' ELSE 'running' END AS state
    FROM generate_series(1, {TASKS}) n) made""",
    f"""
INSERT INTO actonce.operation (tenant, destination, action, operation_id, task_id, step, iteration, payload,
    payload_digest, account, natural_key, contract_version, contract_digest, guarantee, state, reason, words, epoch,
    attempt, attempts, object_id, receipt, completion, issued_at, committed_at, acknowledged_at, created_at)
SELECT 'acme', (ARRAY['payments', 'tickets', 'mail'])[1 + n % 3], 'act', 'op1_' || md5(n::text),
    'acme/refund/rf-' || t, 'step-' || n % 10, 0, jsonb_build_object('amount_minor', n), 'd1:' || n, 'acct', 'nk' || n,
    1, 'c1:x', 'bounded', state, CASE state WHEN 'held' THEN 'not_visible' END, 'a route shows it', 1, 1, 1,
    CASE state WHEN 'committed' THEN 'obj_' || n END, '{{"source": "route:list"}}',
    CASE state WHEN 'committed' THEN 'read_back' END, at, CASE state WHEN 'committed' THEN at END, at, at
FROM (SELECT n, (n - 1) / 10 + 1 AS t, now() - ({OPERATIONS} - n) * interval '0.7 s' AS at,
    CASE WHEN (n - 1) / 10 % 100 = 95 AND n % 10 = 9 THEN 'held'
    WHEN (n - 1) / 10 % 100 = 94 AND n % 10 = 9 THEN 'refused'
    WHEN (n - 1) / 10 % 100 = 97 AND n % 10 = 9 THEN 'unknown' ELSE 'committed' END AS state
    FROM generate_series(1, {OPERATIONS}) n) made""",
    """
INSERT INTO actonce.attempt (tenant, destination, action, operation_id, epoch, attempt, nonce, generation, wire_key,
    owner, issued_at, not_after, late_arrival, outcome, outcome_at)
SELECT tenant, destination, action, operation_id, 1, 1, gen_random_uuid(), 0, operation_id, '{"host": "h", "pid": 1}',
    created_at, created_at + interval '10 s', 'bounded', 'acknowledged', created_at FROM actonce.operation""",
    """
INSERT INTO actonce.acknowledgement (tenant, destination, action, operation_id, epoch, attempt, object_id, receipt,
    state_before, contradicts, at)
SELECT tenant, destination, action, operation_id, 1, 1, object_id, '{}', 'dispatched', false, created_at
FROM actonce.operation WHERE object_id IS NOT NULL""",
    """
INSERT INTO actonce.verdict (tenant, destination, action, operation_id, epoch, attempt, version, outcome, words,
    readings, body, applied, at)
SELECT tenant, destination, action, operation_id, 1, 1, 1, 'committed', 'a route shows it', '[]', '{}', true, created_at
FROM actonce.operation""",
    """
INSERT INTO actonce.hold (tenant, destination, action, operation_id, task_id, reason, words, opened_at)
SELECT tenant, destination, action, operation_id, task_id, reason, 'no route shows it', created_at
FROM actonce.operation WHERE state = 'held'""",
    """
INSERT INTO actonce.page (incident, reason, title, body, operation_id, task_id, opened_at)
SELECT 'operation:' || operation_id, reason, 'held', 'held', operation_id, task_id, created_at
FROM actonce.operation WHERE state = 'held'""",
    f"""
INSERT INTO actonce.audit (kind, tenant, task_id, operation_id, body, at)
SELECT 'operation.permit', 'acme', task_id, operation_id, '{{"state": "dispatched"}}', created_at
FROM actonce.operation, generate_series(1, {EVENTS // OPERATIONS})""",
    """
UPDATE actonce.audit SET seq = audit_id, hash = md5(audit_id::text), previous_hash = md5((audit_id - 1)::text),
    sealed_at = at""",
    "VACUUM (ANALYZE)",
]


async def main() -> int:
    with tempfile.TemporaryDirectory(prefix="actonce-scale-") as folder:
        async with Stack.open(Path(folder), {"postgres"}) as stack:
            dsn = stack.postgres.dsn
            migrate(dsn)
            began = time.monotonic()
            with psycopg.connect(dsn, autocommit=True) as connection:
                for statement in FILL:
                    connection.execute(statement)
                count = "SELECT (SELECT count(*) FROM actonce.task), (SELECT count(*) FROM actonce.operation),"
                row = connection.execute(count + " (SELECT count(*) FROM actonce.audit)").fetchone()
            print(f"tasks, operations, audit events: {row}, filled in {time.monotonic() - began:.0f} s", flush=True)
            return await measure(dsn)


async def measure(dsn: str) -> int:
    """Print the median and the slowest of each page. Returns how many were slower than what is aimed at."""
    slow = 0
    task = quote("acme/refund/rf-4997", safe="")
    held = "op1_" + psycopg.connect(dsn).execute("SELECT md5('959')").fetchone()[0]  # type: ignore[index]
    async with console(dsn) as (_, http):
        addresses = [
            "/", "/tasks", "/tasks?state=complete", "/tasks?state=failed", "/tasks?state=held", "/tasks?tenant=none",
            f"/tasks/{task}", "/operations", "/operations?state=held", "/operations?state=refused",
            "/operations?destination=mail", "/operations?reason=not_visible", "/operations?natural_key=nk77",
            f"/operations/{held}", "/approvals", "/alerts", "/alerts?all=true", "/dependencies", "/release",
            "/credentials", "/audit", f"/audit?task_id={task}", "/audit?kind=task.", "/audit?kind=none", "/search",
        ]  # fmt: skip
        for name in ("/tasks", "/operations", "/audit"):
            addresses.append(await deep(http, name))
        for address in addresses:
            slow += await timed(address, lambda a=address: http.get(a))
        form = form_of((await http.get("/search")).text, "/search")
        for word in ("c77@example.com", "rf-77", "obj_777", "nothing at all"):
            sent = {"data": {**form, "word": word}, "headers": {"Origin": "http://console"}}
            slow += await timed(f"search {word}", lambda s=sent: http.post("/search", **s))
    print(f"slower than {LIMIT_S * 1000:.0f} ms: {slow}")
    return slow


async def deep(http, name: str) -> str:  # type: ignore[no-untyped-def]
    """The address of a page far back in a list."""
    address = name
    for _ in range(40):
        page = (await http.get(address)).text
        address = page.split('rel="next" href="')[1].split('"')[0].replace("&amp;", "&")
    return str(address)


async def timed(name: str, ask) -> bool:  # type: ignore[no-untyped-def]
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        answer = await ask()
        times.append(time.perf_counter() - began)
        assert answer.status_code in (200, 303), (name, answer.status_code, answer.text[:500])
    middle, worst = statistics.median(times), max(times)
    mark = "  SLOW" if middle > LIMIT_S else ""
    print(f"{middle * 1000:7.1f} ms  {worst * 1000:7.1f} ms  {name[:80]}{mark}", flush=True)
    return middle > LIMIT_S


if __name__ == "__main__":
    sys.exit(1 if asyncio.run(main()) else 0)
