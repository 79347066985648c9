"""The memory says `empty` only when it has just proven that it would show something (case g1)."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import pytest_asyncio

from actonce.contracts.errors import MemoryRefused, PayloadError
from actonce.contracts.memory import Empty, Found, Trouble, Unavailable
from actonce.memory import HashingEmbedder, Memory, proof
from actonce.memory.setting_up import rebuild_index, set_up
from actonce.stack import Stack
from actonce.testing.faults import Faults, Proxied, WireFault

DEADLINE_S = 1.0
# Past the deadline: thread switches and the closing of a socket on a busy machine.
LATE_S = 0.7
QUERY = "refund of a damaged vase"


@pytest_asyncio.fixture
async def dsn(fresh_dsn: str) -> str:
    set_up(fresh_dsn, HashingEmbedder())
    return fresh_dsn


@pytest_asyncio.fixture
async def memory(dsn: str) -> AsyncIterator[Memory]:
    async with opened(dsn) as opened_memory:
        await opened_memory.remember("acme", "refund:1", "refund of a vase", {"customer": "ada"})
        yield opened_memory


@asynccontextmanager
async def opened(dsn: str, **more: object) -> AsyncIterator[Memory]:
    one = Memory(dsn, **{"deadline_s": DEADLINE_S, **more})  # type: ignore[arg-type]
    try:
        yield one
    finally:
        await one.close()


async def sql(dsn: str, *statements: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as link:
        for statement in statements:
            await link.execute(statement)  # type: ignore[arg-type]


async def trouble(memory: Memory, tenant: str = "acme") -> Trouble:
    said = await memory.recall(tenant, QUERY)
    assert isinstance(said, Unavailable), said
    assert said.words
    return said.trouble


# What is remembered ----------------------------------------------------------------------------------------------


async def test_what_was_remembered_is_found_by_its_tenant_alone(memory: Memory) -> None:
    found = await memory.recall("acme", QUERY)
    assert isinstance(found, Found) and found.complete
    assert [(i.key, i.facts) for i in found.items] == [("refund:1", {"customer": "ada"})]
    assert isinstance(await memory.recall("other", QUERY), Empty)
    assert isinstance(await memory.recall("acme", QUERY, filter={"customer": "bob"}), Empty)
    assert isinstance(await memory.check(), Empty)


async def test_remembering_again_changes_nothing_and_another_content_is_refused(memory: Memory) -> None:
    again = await memory.remember("acme", "refund:1", "refund of a vase", {"customer": "ada"})
    assert again.status == "remembered" and not again.new
    with pytest.raises(MemoryRefused, match="something else"):
        await memory.remember("acme", "refund:1", "refund of a vase", {"customer": "eve"})
    for odd in ("half \ud83d", "nul \x00"):
        with pytest.raises(PayloadError, match="cannot keep"):
            await memory.recall("acme", odd)
        with pytest.raises(PayloadError, match="cannot keep"):
            await memory.remember("acme", "odd", "a text", {"odd": odd})
    with pytest.raises(MemoryRefused, match="ask for 1 to"):
        await memory.recall("acme", QUERY, k=1000)
    with pytest.raises(MemoryRefused, match="more than"):
        await memory.remember("acme", "long", "x" * 5000, {})


async def test_remembering_side_by_side_keeps_one(memory: Memory) -> None:
    said = await asyncio.gather(*(memory.remember("new", "k", "one thing", {"n": 1}) for _ in range(8)))
    assert [s.status for s in said] == ["remembered"] * 8 and sum(s.new for s in said if s.status == "remembered") == 1
    found = await memory.recall("new", "thing")
    assert isinstance(found, Found) and len(found.items) == 1


async def test_more_than_was_asked_for_is_said(memory: Memory) -> None:
    for number in range(4):
        await memory.remember("many", f"r{number}", f"refund of vase {number}", {})
    found = await memory.recall("many", QUERY, k=3)
    assert isinstance(found, Found) and (len(found.items), found.complete) == (3, False)


async def crowd(dsn: str) -> None:
    """2000 rows of another tenant, all over the place."""
    numbers = "(SELECT array_agg(random() - 0.5) FROM generate_series(1, 256) WHERE n > 0)::vector"
    await sql(
        dsn,
        "INSERT INTO actonce_memory.item (tenant, key, text, facts, embedding)"
        f" SELECT 'crowd', n::text, 'x', '{{}}', {numbers} FROM generate_series(1, 2000) n",
    )


async def test_a_search_among_many_rows_of_others_goes_on_until_it_has_ours(
    dsn: str, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An approximate index reads the part where a text would lie; what lies elsewhere is missing, without an error."""
    await crowd(dsn)
    async with opened(dsn, deadline_s=10.0) as patient:
        said = await patient.recall("acme", "nothing in common")
        assert isinstance(said, Found) and len(said.items) == 1
        await sql(dsn, *LISTS_50)
        assert await trouble(patient) == Trouble.INDEX_WRONG
        monkeypatch.setattr(proof, "LISTS", 50)
        assert {await trouble_or_found(patient, f"word{n}") for n in range(5)} & {
            Trouble.INDEX_INCOMPLETE,
            Trouble.CANARY_MISSING,
        }


LISTS_50 = (
    "DROP INDEX actonce_memory.item_embedding",
    "CREATE INDEX item_embedding ON actonce_memory.item USING ivfflat (embedding vector_cosine_ops) WITH (lists = 50)",
)


async def trouble_or_found(memory: Memory, query: str) -> Trouble | None:
    said = await memory.recall("acme", query)
    return said.trouble if isinstance(said, Unavailable) else None


async def test_hundreds_of_nearly_equal_texts_stay_in_sight(dsn: str) -> None:
    """What an index by graph (HNSW) lost: 600 refunds that differ in two words, and the canary among them."""
    async with opened(dsn, deadline_s=10.0) as memory:
        for start in range(0, 600, 20):
            said = await asyncio.gather(
                *(
                    memory.remember("acme", f"r{n}", f"refund of payment p{n} for customer c{n}: damaged", {"n": n})
                    for n in range(start, start + 20)
                )
            )
            assert all(s.status == "remembered" for s in said), said
        for n in range(0, 600, 7):
            found = await memory.recall("acme", f"refund of payment p{n}", filter={"n": n})
            assert isinstance(found, Found) and [i.key for i in found.items] == [f"r{n}"], (n, found)


async def test_half_a_restore_is_noticed(dsn: str, memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary is there and the index shows every row the table has; one row of two is not in the table any more."""
    await memory.remember("acme", "refund:2", "refund of a plate", {"customer": "bob"})
    await sql(
        dsn,
        "ALTER TABLE actonce_memory.item DISABLE TRIGGER nothing_is_deleted",
        "DELETE FROM actonce_memory.item WHERE key = 'refund:1'",
        "ALTER TABLE actonce_memory.item ENABLE TRIGGER nothing_is_deleted",
    )
    said = await memory.recall("acme", QUERY, filter={"customer": "ada"})
    assert isinstance(said, Unavailable) and said.trouble == Trouble.ROWS_MISSING

    async def nothing(*args: object) -> None:
        return None

    monkeypatch.setattr(proof, "check_rows", nothing)  # the control: what it is for
    assert isinstance(await memory.recall("acme", QUERY, filter={"customer": "ada"}), Empty)


async def test_a_memory_of_an_earlier_release_is_brought_up_to_date(dsn: str, memory: Memory) -> None:
    """Its rows count from then on; its index is another, and is told to be rebuilt."""
    await sql(
        dsn,
        "DROP TRIGGER items_are_counted ON actonce_memory.item",
        "DROP TRIGGER tenants_are_counted ON actonce_memory.tenant",
        "ALTER TABLE actonce_memory.identity DROP COLUMN tenants",
        "ALTER TABLE actonce_memory.tenant DROP COLUMN items",
        "DELETE FROM public._yoyo_migration WHERE migration_id = '0002_memory_counts'",
        "DROP INDEX actonce_memory.item_embedding",
        "CREATE INDEX item_embedding ON actonce_memory.item USING hnsw (embedding vector_cosine_ops)",
    )
    async with opened(dsn, deadline_s=10.0) as newer:
        assert await trouble(newer) == Trouble.INDEX_WRONG
        await asyncio.to_thread(rebuild_index, dsn)
        assert isinstance(await newer.recall("acme", QUERY), Found)
        await newer.remember("acme", "refund:2", "refund of a plate", {})
    async with await psycopg.AsyncConnection.connect(dsn) as link:
        rows = await (await link.execute("SELECT items FROM actonce_memory.tenant WHERE tenant = 'acme'")).fetchone()
    assert rows == (3,)  # the canary, and two


# Case g1: broken in the database ---------------------------------------------------------------------------------

BROKEN = {
    "index dropped": ("DROP INDEX actonce_memory.item_embedding", Trouble.INDEX_MISSING),
    "index invalid": (
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'actonce_memory.item_embedding'::regclass",
        Trouble.INDEX_INVALID,
    ),
    "index of another kind": (
        "DROP INDEX actonce_memory.item_embedding;"
        "CREATE INDEX item_embedding ON actonce_memory.item USING ivfflat (embedding vector_l2_ops)"
        " WITH (lists = 1)",
        Trouble.INDEX_WRONG,
    ),
    "index that may miss rows: a graph": (
        "DROP INDEX actonce_memory.item_embedding;"
        "CREATE INDEX item_embedding ON actonce_memory.item USING hnsw (embedding vector_cosine_ops)",
        Trouble.INDEX_WRONG,
    ),
    "index that may miss rows: several lists": (
        "DROP INDEX actonce_memory.item_embedding;"
        "CREATE INDEX item_embedding ON actonce_memory.item USING ivfflat (embedding vector_cosine_ops)"
        " WITH (lists = 10)",
        Trouble.INDEX_WRONG,
    ),
    "index over a part": (
        "DROP INDEX actonce_memory.item_embedding; CREATE INDEX item_embedding ON actonce_memory.item"
        " USING ivfflat (embedding vector_cosine_ops) WITH (lists = 1) WHERE tenant = 'acme'",
        Trouble.INDEX_WRONG,
    ),
    "collection dropped": ("DROP TABLE actonce_memory.item", Trouble.COLLECTION_MISSING),
    "collection made anew": (
        "CREATE TABLE actonce_memory.fresh (LIKE actonce_memory.item INCLUDING ALL);"
        "DROP TABLE actonce_memory.item; ALTER TABLE actonce_memory.fresh RENAME TO item;"
        "DO $$ DECLARE old text; BEGIN SELECT indexrelid::regclass::text INTO old FROM pg_index JOIN pg_class c"
        " ON c.oid = indexrelid JOIN pg_am am ON am.oid = c.relam WHERE indrelid = 'actonce_memory.item'::regclass"
        " AND am.amname = 'ivfflat'; EXECUTE 'ALTER INDEX ' || old || ' RENAME TO item_embedding'; END $$",
        Trouble.CANARY_MISSING,
    ),
    "extension dropped": ("DROP EXTENSION vector CASCADE", Trouble.NO_EXTENSION),
    "dimension changed": (
        "ALTER TABLE actonce_memory.item DROP COLUMN embedding; ALTER TABLE actonce_memory.item"
        " ADD COLUMN embedding vector(3)",
        Trouble.EMBEDDER_CHANGED,
    ),
    "rows of items and tenants gone": (
        "ALTER TABLE actonce_memory.item DISABLE TRIGGER ALL; DELETE FROM actonce_memory.item;"
        "ALTER TABLE actonce_memory.tenant DISABLE TRIGGER ALL; DELETE FROM actonce_memory.tenant",
        Trouble.ROWS_MISSING,
    ),
    "everything dropped": ("DROP SCHEMA actonce_memory CASCADE", Trouble.COLLECTION_MISSING),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_case_g1_what_is_broken_is_unavailable_and_never_empty(dsn: str, memory: Memory, case: str) -> None:
    statements, expected = BROKEN[case]
    await sql(dsn, statements)
    assert await trouble(memory) == expected
    assert await trouble(memory, "somebody new") == expected if case != "collection made anew" else True
    async with opened(dsn) as another:
        assert await trouble(another) == expected


async def lose_rows_from_the_index(dsn: str, *statements: str) -> None:
    """What a build that broke off, or a damaged file, leaves: an index that looks whole and lacks rows."""
    flag = "UPDATE pg_index SET indisready = {} WHERE indexrelid = 'actonce_memory.item_embedding'::regclass"
    await sql(dsn, flag.format("false"))
    await sql(dsn, *statements)
    await sql(dsn, flag.format("true"))


async def test_an_index_that_lost_rows_is_noticed_and_a_rebuild_heals_it(dsn: str, memory: Memory) -> None:
    copy = (
        "INSERT INTO actonce_memory.item (tenant, key, text, facts, embedding) SELECT tenant, 'refund:2', text, facts,"
    )
    await lose_rows_from_the_index(dsn, copy + " embedding FROM actonce_memory.item WHERE key = 'refund:1'")
    assert await trouble(memory) == Trouble.INDEX_INCOMPLETE
    await asyncio.to_thread(rebuild_index, dsn)
    found = await memory.recall("acme", QUERY)
    assert isinstance(found, Found) and {i.key for i in found.items} == {"refund:1", "refund:2"}


async def test_a_lost_collection_does_not_come_back_empty_by_itself(dsn: str, memory: Memory) -> None:
    await sql(dsn, "DROP TABLE actonce_memory.item")
    assert isinstance(await memory.set_up(), str)
    assert await trouble(memory) == Trouble.COLLECTION_MISSING


# Negative controls: what each proof is for -----------------------------------------------------------------------


async def test_without_canary_and_count_a_collection_made_anew_reads_as_empty(
    dsn: str, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sql(dsn, BROKEN["collection made anew"][0])

    async def nothing(*args: object) -> None:
        return None

    monkeypatch.setattr(proof, "check_canary", nothing)
    assert await trouble(memory) == Trouble.ROWS_MISSING  # the second line
    monkeypatch.setattr(proof, "check_rows", nothing)
    assert isinstance(await memory.recall("acme", QUERY), Empty)  # and a refund was remembered there


async def test_without_the_count_an_index_that_lost_rows_reads_as_empty(
    dsn: str, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = "INSERT INTO actonce_memory.item (tenant, key, text, facts, embedding) SELECT tenant, 'lost', text,"
    row += " '{\"customer\": \"bob\"}', embedding FROM actonce_memory.item WHERE key = 'refund:1'"
    await lose_rows_from_the_index(dsn, row)
    monkeypatch.setattr(proof, "check_complete", lambda shown, held: None)
    assert isinstance(await memory.recall("acme", QUERY, filter={"customer": "bob"}), Empty)


async def test_without_the_catalog_check_a_dropped_index_is_still_seen_in_the_plan(
    dsn: str, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sql(dsn, BROKEN["index dropped"][0])

    async def nothing(*args: object) -> None:
        return None

    monkeypatch.setattr(proof, "check_catalog", nothing)
    assert await trouble(memory) == Trouble.INDEX_NOT_USED


# Another memory, another embedder --------------------------------------------------------------------------------


class Other(HashingEmbedder):
    name = "hashing-words-v2"


class Broken(HashingEmbedder):
    def embed(self, text: str) -> list[float]:
        raise RuntimeError("out of memory")


class Slow(HashingEmbedder):
    def embed(self, text: str) -> list[float]:
        time.sleep(2 * DEADLINE_S)
        return super().embed(text)


@pytest.mark.parametrize(
    ("embedder", "expected"),
    [
        (Other(), Trouble.EMBEDDER_CHANGED),
        (Broken(), Trouble.EMBEDDER_FAILED),
        (Slow(), Trouble.TIMEOUT),
    ],
    ids=["changed", "failing", "slow"],
)
async def test_an_embedder_that_does_not_fit_is_refused(
    dsn: str, memory: Memory, embedder: HashingEmbedder, expected: Trouble
) -> None:
    async with opened(dsn, embedder=embedder) as other:
        assert await trouble(other) == expected


async def test_another_memory_than_the_expected_one_is_refused_and_none_is_made(fresh_dsn: str) -> None:
    async with opened(fresh_dsn, memory_id=str(secrets.token_hex(16))) as pinned:
        assert await trouble(pinned) == Trouble.NOT_SET_UP
    set_up(fresh_dsn, HashingEmbedder())
    async with opened(fresh_dsn, memory_id="00000000-0000-0000-0000-000000000000") as pinned:
        assert await trouble(pinned) == Trouble.FOREIGN


async def test_a_new_database_is_set_up_at_the_first_question(fresh_dsn: str) -> None:
    async with opened(fresh_dsn, deadline_s=20.0) as memory:
        assert isinstance(await memory.recall("acme", QUERY), Empty)


# Case g1: broken on the way --------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def way(servers: Stack, memory: Memory) -> AsyncIterator[tuple[Proxied, str]]:
    """A proxy in front of the memory, and the DSN by way of it."""
    parts = urlsplit(memory.dsn)
    assert parts.hostname is not None and parts.port is not None
    faults = Faults(servers.toxiproxy_url, f"memory-{secrets.token_hex(4)}")
    try:
        proxy = await faults.proxy("pg", parts.hostname, parts.port)
        login, _, _ = parts.netloc.rpartition("@")
        yield proxy, urlunsplit(parts._replace(netloc=f"{login}@{proxy.host}:{proxy.port}"))
    finally:
        await faults.close()


async def bounded(ask: Callable[[], Awaitable[Trouble]]) -> Trouble:
    began = time.monotonic()
    said = await ask()
    assert time.monotonic() - began < DEADLINE_S + LATE_S
    return said


@pytest.mark.parametrize("connection", ["new", "kept"])
@pytest.mark.parametrize("stream", ["upstream", "downstream"])
async def test_case_g1_an_open_port_that_never_answers_is_unavailable_by_the_deadline(
    way: tuple[Proxied, str], connection: str, stream: str
) -> None:
    proxy, through = way
    async with opened(through) as memory:
        if connection == "kept":
            assert isinstance(await memory.recall("acme", QUERY), Found)
        toxic = await proxy.install(WireFault.SILENT, stream)  # type: ignore[arg-type]
        assert await bounded(lambda: trouble(memory)) == Trouble.TIMEOUT
        assert await bounded(lambda: trouble(memory)) == Trouble.TIMEOUT  # the next one connects anew
        await proxy.remove(toxic)
        assert isinstance(await memory.recall("acme", QUERY), Found)


async def test_case_g1_silence_in_the_middle_of_a_query_ends_at_the_deadline(
    dsn: str, way: tuple[Proxied, str]
) -> None:
    proxy, through = way
    async with opened(through) as memory, await psycopg.AsyncConnection.connect(dsn) as blocker:
        assert isinstance(await memory.recall("acme", QUERY), Found)
        await blocker.execute("LOCK TABLE actonce_memory.item IN ACCESS EXCLUSIVE MODE")
        asked = asyncio.create_task(bounded(lambda: trouble(memory)))
        await waits_for_a_lock(dsn)
        toxic = await proxy.install(WireFault.SILENT, "downstream")
        await blocker.rollback()
        assert await asked == Trouble.TIMEOUT
        await proxy.remove(toxic)
        assert isinstance(await memory.recall("acme", QUERY), Found)


async def waits_for_a_lock(dsn: str) -> None:
    from actonce.testing.waiting import eventually

    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as link:

        async def one_waits() -> bool:
            row = await (await link.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")).fetchone()
            return bool(row and row[0])

        await eventually(one_waits, within_s=5, what="the recall stands in its query")


async def test_case_g1_a_query_that_is_blocked_is_unavailable_by_the_deadline(dsn: str, memory: Memory) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as blocker:
        await blocker.execute("LOCK TABLE actonce_memory.item IN ACCESS EXCLUSIVE MODE")
        assert await bounded(lambda: trouble(memory)) == Trouble.TIMEOUT
    assert isinstance(await memory.recall("acme", QUERY), Found)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (WireFault.RESET, {Trouble.UNREACHABLE}),
        (WireFault.CLOSED, {Trouble.UNREACHABLE}),
        (WireFault.SLOW, {Trouble.TIMEOUT}),
    ],
)
async def test_case_g1_a_way_that_breaks_is_unavailable(
    way: tuple[Proxied, str], fault: WireFault, expected: set[Trouble]
) -> None:
    proxy, through = way
    async with opened(through) as memory:
        assert isinstance(await memory.recall("acme", QUERY), Found)
        toxic = await proxy.install(fault, "downstream")
        assert await bounded(lambda: trouble(memory)) in expected
        await proxy.remove(toxic)
        assert isinstance(await memory.recall("acme", QUERY), Found)


async def test_case_g1_wrong_password_refused_port_and_missing_database(dsn: str) -> None:
    parts = urlsplit(dsn)
    wrong = urlunsplit(parts._replace(netloc=f"{parts.username}:nonsense@{parts.hostname}:{parts.port}"))
    async with opened(wrong) as memory:
        assert await trouble(memory) == Trouble.LOGIN_REFUSED
    async with opened(urlunsplit(parts._replace(path="/nowhere"))) as memory:
        assert await trouble(memory) == Trouble.UNREACHABLE
    async with opened(urlunsplit(parts._replace(netloc=f"u:p@{parts.hostname}:1"))) as memory:
        assert await trouble(memory) == Trouble.UNREACHABLE


async def test_a_kept_connection_that_died_meanwhile_costs_nothing(dsn: str, memory: Memory) -> None:
    assert isinstance(await memory.recall("acme", QUERY), Found)
    await sql(
        dsn,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND datname = current_database()",
    )
    assert isinstance(await memory.recall("acme", QUERY), Found)


async def test_a_cancelled_recall_leaves_no_connection_behind(dsn: str, memory: Memory) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as blocker:
        await blocker.execute("LOCK TABLE actonce_memory.item IN ACCESS EXCLUSIVE MODE")
        asked = asyncio.create_task(memory.recall("acme", QUERY))
        await waits_for_a_lock(dsn)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    assert isinstance(await memory.recall("acme", QUERY), Found)
