"""What a soak does to the ledger's store: the server refuses every write, reading goes on, and it is taken back."""

from __future__ import annotations

import psycopg
import pytest

from actonce.evidence.lines import Observation
from actonce.evidence.observations import carries
from actonce.ledger.migrate import migrate
from actonce.testing.export import LedgerReader
from drills.soak.ground import take_writes, try_to_write


async def store_refuses(dsn: str) -> bool:
    line = {"order": 1, "mono_ns": 1, "at": "2026-01-01T00:00:00Z", "source": "witness", "kind": "observation"}
    seen = {"cell": None, "name": "store_refuses", "target": "the ledger", "facts": await try_to_write(dsn)}
    return carries(Observation.model_validate({**line, **seen}))[0]


async def test_a_ledger_that_takes_no_writes_is_seen_as_that_and_read_all_the_same(fresh_dsn: str) -> None:
    server, database = fresh_dsn.rsplit("/", 1)[0] + "/postgres", fresh_dsn.rsplit("/", 1)[1]
    migrate(fresh_dsn)
    reader = LedgerReader(fresh_dsn)
    async with await psycopg.AsyncConnection.connect(fresh_dsn, autocommit=True) as connected:
        assert not await store_refuses(fresh_dsn) and await reader.rows("held") == []
        await take_writes(server, database, allowed=False)
        assert await store_refuses(fresh_dsn) and await reader.rows("held") == []
        with pytest.raises(psycopg.OperationalError):  # nobody goes on by a connection from before
            await connected.execute("SELECT 1")
    await take_writes(server, database, allowed=True)
    assert not await store_refuses(fresh_dsn) and await reader.rows("audit_of_effects") == []
    assert await reader.rows("audit_end") == [{"last": None, "unsealed": 0}]
    await reader.close()
