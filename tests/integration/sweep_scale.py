"""Sweep a hundred thousand effects, half of them without a record, and say how much memory and time it took.

    python -m tests.integration.sweep_scale

Not a test: it takes minutes and its numbers are this machine's. Exit status 1 when the memory grows with the number of
effects (more than `GROWS_MAX_MB` over what the process had after the first pages) or when the totals are wrong.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from actonce.contracts.identity import derive_operation_id
from actonce.contracts.verdict import Page, Row
from actonce.destinations.base import Destination, Lookup
from actonce.effects.sweep import LEDGER_DEADLINE_S, sweep
from actonce.ledger.migrate import migrate
from actonce.ledger.sweeping import Totals
from actonce.stack import Stack
from tests.integration.restore_bench import LISTABLE, Shelf, past_bounds, process, quarantine

EFFECTS = 100_000
PAGE = 250
GROWS_MAX_MB = 40
DIGEST = LISTABLE.digest_of("do", {"amount": 1})
COLUMNS = (
    "tenant, destination, action, operation_id, task_id, step, iteration, payload, payload_digest, account,"
    " contract_version, contract_digest, guarantee, state, epoch, attempt, attempts, object_id, completion, issued_at,"
    " committed_at"
)


def id_of(number: int) -> str:
    return derive_operation_id("t", f"t/odd/{number}", "only", 0)


def rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Endless(Shelf):
    """Makes its rows when they are asked for: what grows here is the sweep's."""

    first_mb = 0.0

    async def read(self, look: Lookup, cursor: str | None) -> Page:
        assert look.everything, "nothing is to be reconciled here"
        start = int(cursor or 0)
        if start == 20 * PAGE and not self.first_mb:
            self.first_mb = rss_mb()
        upto = min(start + PAGE, EFFECTS)
        shown = {"kind": "thing", "account": "acct", "own_field": True, "by_us": True, "digest": DIGEST}
        return Page(
            rows=tuple(
                Row.model_validate({**shown, "object_id": f"thing-{n}", "marker": id_of(n)}) for n in range(start, upto)
            ),
            rows_received=upto - start,
            declared_total=EFFECTS,
            next_cursor=str(upto) if upto < EFFECTS else None,
            as_of=datetime.now(UTC),
        )


def fill(dsn: str) -> None:
    """Every second effect has its record."""
    now = datetime.now(UTC)
    insert = f"COPY actonce.operation ({COLUMNS}) FROM STDIN"
    with psycopg.connect(dsn) as link, link.cursor() as cursor, cursor.copy(insert) as copy:
        for n in range(0, EFFECTS, 2):
            asked = ("t", "odd", "do", id_of(n), f"t/odd/{n}", "only", 0, "{}", DIGEST, "acct", 1, "c1:x", "bounded")
            copy.write_row((*asked, "committed", 1, 1, 1, f"thing-{n}", "read_back", now, now))
    with psycopg.connect(dsn, autocommit=True) as link:
        link.execute("ANALYZE")


async def main() -> int:
    with tempfile.TemporaryDirectory(prefix="actonce-sweep-") as folder:
        async with Stack.open(Path(folder), {"postgres"}) as stack:
            dsn = stack.postgres.dsn
            migrate(dsn)
            fill(dsn)
            shelf = Endless()
            reads = {route.name: shelf.read for route in LISTABLE.routes}
            listable = Destination(LISTABLE, send=shelf.send, routes=reads, lists_all=frozenset({"list"}))
            async with process(dsn, listable) as system:
                restore = await quarantine(dsn, datetime.now(UTC))
                await past_bounds(dsn, restore)
                system.ledger.deadline_s = LEDGER_DEADLINE_S
                began = time.monotonic()
                done = await sweep(system, tell=lambda words: print(words, flush=True))
                took = time.monotonic() - began
            half = EFFECTS // 2
            expected = [Totals("odd", half, 0, 0, half, half, 0, ledger_side=half, destination_side=EFFECTS)]
            grew = rss_mb() - shelf.first_mb
            print(
                f"{EFFECTS} effects in {took:.0f} s; {rss_mb():.0f} MB at most, {grew:.1f} MB more than after 20 pages"
            )
            if done.totals != expected:
                print(f"WRONG: {done.totals}")
            return 0 if done.totals == expected and grew < GROWS_MAX_MB else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
