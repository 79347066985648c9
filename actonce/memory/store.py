"""`Memory`: recall and remember, for tenants, with an answer that is never a silent nothing.

Promises: `recall` returns `Found`, `Empty` or `Unavailable(trouble, words)` by its deadline and raises nothing for
what the database or the network does. `Empty` is said only by an index that has just proven itself in the same
snapshot (see `proof`). `remember` is idempotent by (tenant, key). Does not retry: callers hold, and look again.
Does not lock anything: two tasks may recall before either remembers; what must be unique is the business of a natural
effect key at the destination.
"""

from __future__ import annotations

import asyncio
import functools
import json
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import psycopg
from psycopg.types.json import Jsonb

from actonce import migrating
from actonce.contracts.errors import MemoryRefused
from actonce.contracts.memory import (
    FACTS_BYTES_MAX,
    K_MAX,
    TEXT_BYTES_MAX,
    Empty,
    Found,
    Item,
    Remembered,
    Trouble,
    Unavailable,
)
from actonce.contracts.payload import check_storable
from actonce.memory import proof
from actonce.memory.embedding import Embedder, HashingEmbedder
from actonce.memory.proof import Question, Unproven, vector_text
from actonce.memory.setting_up import set_up
from actonce.memory.wire import Link, Links

DEADLINE_S = 3.0  # one recall takes about 10 ms; beyond this somebody waits for an answer that will not come
SET_UP_S = 20.0
CHECK_TENANT = "actonce:check"  # the prober's own, with a canary of its own
CANARY_KEY = "actonce:canary"
T = TypeVar("T")


class Memory:
    """The memory of one process. `memory_id`: refuse every other, and set nothing up."""

    def __init__(
        self,
        dsn: str,
        embedder: Embedder | None = None,
        *,
        deadline_s: float = DEADLINE_S,
        memory_id: str | None = None,
    ) -> None:
        self.dsn = dsn
        self.embedder: Embedder = embedder or HashingEmbedder()
        self.deadline_s = deadline_s
        self.expected_id = memory_id
        self._links = Links(dsn)

    async def close(self) -> None:
        await self._links.close()

    async def recall(
        self, tenant: str, query: str, k: int = 10, filter: Mapping[str, Any] | None = None
    ) -> Found | Empty | Unavailable:
        """The `k` items nearest to `query` whose facts contain `filter`.

        Raises MemoryRefused and PayloadError for a question that cannot be asked.
        """
        if not 1 <= k <= K_MAX:
            raise MemoryRefused(f"k is {k}; ask for 1 to {K_MAX} items")
        check_storable({"query": query, "tenant": tenant}, "recall")
        ask = _json("filter", filter or {}, FACTS_BYTES_MAX)

        async def recalled(ends_s: float) -> Found | Empty:
            vector, canary = await self._embed(ends_s, query, canary_text(tenant))
            question = Question(tenant, vector, k, ask)
            own = Question(tenant, canary, 1, "{}", canary=True)
            return await self._links.run(lambda link: self._ask(link, question, own), _left_s(ends_s))

        return await self._told(recalled)

    async def remember(self, tenant: str, key: str, text: str, facts: Mapping[str, Any]) -> Remembered | Unavailable:
        """Keep `text` and `facts` under `key`, once. Raises MemoryRefused when the key says something else already."""
        check_storable({"key": key, "text": text, "tenant": tenant}, "remember")
        if len(text.encode()) > TEXT_BYTES_MAX:
            raise MemoryRefused(f"{key}: the text has more than {TEXT_BYTES_MAX} bytes; keep a shorter one")
        if key == CANARY_KEY:
            raise MemoryRefused(f"{key} is the canary's key")
        body = json.loads(_json("facts", facts, FACTS_BYTES_MAX))

        async def remembered(ends_s: float) -> Remembered:
            vector, canary = await self._embed(ends_s, text, canary_text(tenant))
            row = (tenant, key, text, body, vector)
            return await self._links.run(lambda link: self._keep(link, row, canary), _left_s(ends_s))

        return await self._told(remembered)

    async def check(self) -> Empty | Unavailable:
        """Really recall, as a tenant that remembers nothing: `Empty` is what a healthy memory says."""
        said = await self.recall(CHECK_TENANT, "is anybody there", 1)
        if isinstance(said, Found):
            return Unavailable(trouble=Trouble.FAILED, words=f"tenant {CHECK_TENANT} remembers {said.items[0].key}")
        return said

    # Within the deadline.

    async def _told(self, ask: Callable[[float], Awaitable[T]]) -> T | Unavailable:
        """Ask; whatever goes wrong outside of the caller is `Unavailable`. A new or older memory is set up first."""
        ends_s = time.monotonic() + self.deadline_s
        try:
            try:
                return await ask(ends_s)
            except psycopg.errors.UndefinedColumn:  # set up by an earlier release
                make: Callable[[], object] = functools.partial(migrating.apply, self.dsn, "actonce.memory")
            except Unproven as why:
                if why.trouble is not Trouble.NOT_SET_UP or self.expected_id is not None:
                    raise
                make = functools.partial(set_up, self.dsn, self.embedder)
            await asyncio.wait_for(_in_thread(make), _left_s(ends_s))
            return await ask(ends_s)
        except Unproven as why:
            return Unavailable(trouble=why.trouble, words=why.words)
        except TimeoutError:
            return Unavailable(trouble=Trouble.TIMEOUT, words=f"no answer within {self.deadline_s:g} s")
        except (psycopg.Error, OSError) as error:
            return Unavailable(trouble=_trouble_of(error), words=_words(error))

    async def set_up(self) -> str | Unavailable:
        """Make the memory if there has never been one; otherwise change nothing. Returns its memory_id."""
        if self.expected_id is not None:
            return self.expected_id
        try:
            return await asyncio.wait_for(_in_thread(lambda: set_up(self.dsn, self.embedder)), SET_UP_S)
        except Unproven as why:
            return Unavailable(trouble=why.trouble, words=why.words)
        except TimeoutError:
            return Unavailable(trouble=Trouble.TIMEOUT, words=f"could not be set up within {SET_UP_S:g} s")
        except (psycopg.Error, OSError) as error:
            return Unavailable(trouble=_trouble_of(error), words=_words(error))

    async def _embed(self, ends_s: float, *texts: str) -> list[str]:
        """Embed in a thread. Raises Unproven for whatever a model does, TimeoutError at the deadline."""
        work = asyncio.to_thread(lambda: [list(map(float, self.embedder.embed(text))) for text in texts])
        try:
            vectors = await asyncio.wait_for(work, _left_s(ends_s))
        except TimeoutError:
            raise
        except Exception as error:  # whatever a model's library raises: without a vector nothing can be asked
            raise Unproven(Trouble.EMBEDDER_FAILED, f"{self.embedder.name}: {_words(error)}") from error
        if any(len(vector) != self.embedder.dimension for vector in vectors):
            raise Unproven(
                Trouble.EMBEDDER_FAILED, f"{self.embedder.name} did not give {self.embedder.dimension} numbers"
            )
        return list(map(vector_text, vectors))

    async def _ask(self, link: Link, question: Question, canary: Question) -> Found | Empty:
        """One recall: its tenant is known (or made known first), then everything in one snapshot."""
        await self._make_known(link, canary.tenant, canary.vector)
        async with link.transaction():
            await link.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            await link.execute(proof.SETTINGS, {"timeout_ms": str(int(self.deadline_s * 1000))})
            memory_id, token = await self._identity(link, question.tenant)
            await proof.check_catalog(link, self.embedder.dimension)
            await proof.check_plan(link, question)
            await proof.check_canary(link, canary, token)
            await proof.check_rows(link, question.tenant)
            rows, complete = await proof.search(link, question)
        if not rows:
            return Empty(memory_id=memory_id)
        return Found(items=tuple(map(_item, rows)), complete=complete, memory_id=memory_id)

    async def _keep(self, link: Link, row: tuple[str, str, str, Any, str], canary: str) -> Remembered:
        tenant, key, text, facts, vector = row
        await self._make_known(link, tenant, canary)
        async with link.transaction():
            memory_id, _ = await self._identity(link, tenant)
            cursor = await link.execute(
                "INSERT INTO actonce_memory.item (tenant, key, text, facts, embedding) VALUES (%s, %s, %s, %s, %s)"
                " ON CONFLICT DO NOTHING RETURNING key",
                (tenant, key, text, Jsonb(facts), vector),
            )
            new = await cursor.fetchone() is not None
            kept = await (
                await link.execute(
                    "SELECT text, facts FROM actonce_memory.item WHERE tenant = %s AND key = %s", (tenant, key)
                )
            ).fetchone()
        if kept is None or (kept["text"], kept["facts"]) != (text, facts):
            raise MemoryRefused(f"{key} of tenant {tenant!r} says something else already; use another key")
        return Remembered(new=new, memory_id=memory_id)

    async def _identity(self, link: Link, tenant: str) -> tuple[str, str | None]:
        """Return (memory_id, the tenant's canary token or None if it was never here). Raises Unproven."""
        try:
            cursor = await link.execute(
                "SELECT memory_id, embedder, dimension, tenants, (SELECT canary FROM actonce_memory.tenant"
                " WHERE tenant = %s) AS token, (SELECT count(*) FROM actonce_memory.tenant) AS tenants_held"
                " FROM actonce_memory.identity",
                (tenant,),
            )
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
            raise Unproven(Trouble.NOT_SET_UP, "this database holds no memory") from error
        row = await cursor.fetchone()
        if row is None:
            raise Unproven(Trouble.NOT_SET_UP, "this database holds no memory")
        if self.expected_id not in (None, str(row["memory_id"])):
            raise Unproven(Trouble.FOREIGN, f"this is memory {row['memory_id']}, expected is {self.expected_id}")
        if row["tenants_held"] < row["tenants"]:
            raise Unproven(
                Trouble.ROWS_MISSING,
                f"the memory knows {row['tenants_held']} of its {row['tenants']} tenants; restore it from a backup",
            )
        if (row["embedder"], row["dimension"]) != (self.embedder.name, self.embedder.dimension):
            raise Unproven(
                Trouble.EMBEDDER_CHANGED,
                f"the collection was embedded by {row['embedder']} ({row['dimension']} dimensions), this process uses "
                f"{self.embedder.name} ({self.embedder.dimension}); set the old one, or embed everything again",
            )
        return str(row["memory_id"]), str(row["token"]) if row["token"] else None

    async def _make_known(self, link: Link, tenant: str, vector: str) -> None:
        """Give a tenant that was never here its canary, once. One whose canary is lost does not get another."""
        _, token = await self._identity(link, tenant)
        if token is not None:
            return
        await proof.check_catalog(link, self.embedder.dimension)
        async with link.transaction():
            cursor = await link.execute(
                "INSERT INTO actonce_memory.tenant (tenant, canary) VALUES (%s, %s) ON CONFLICT DO NOTHING"
                " RETURNING canary",
                (tenant, uuid.uuid4()),
            )
            made = await cursor.fetchone()
            if made is not None:
                await link.execute(
                    "INSERT INTO actonce_memory.item (tenant, key, text, facts, embedding, canary)"
                    " VALUES (%s, %s, %s, %s, %s, true)",
                    (tenant, CANARY_KEY, canary_text(tenant), Jsonb({"token": str(made["canary"])}), vector),
                )


def canary_text(tenant: str) -> str:
    """What the canary of a tenant says, and is asked for by."""
    return f"canary of {tenant}"


def _left_s(ends_s: float) -> float:
    return max(0.0, ends_s - time.monotonic())


def _item(row: Mapping[str, Any]) -> Item:
    values = {name: row[name] for name in ("key", "text", "facts", "distance")}
    return Item(**values, remembered_at=row["remembered_at"].isoformat())


def _json(what: str, value: Mapping[str, Any], bytes_max: int) -> str:
    check_storable(value, what)
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise MemoryRefused(f"the {what} cannot be kept as JSON: {error}") from error
    if len(text.encode()) > bytes_max:
        raise MemoryRefused(f"the {what} have more than {bytes_max} bytes as JSON; keep less")
    return text


def _trouble_of(error: Exception) -> Trouble:
    if isinstance(error, psycopg.errors.QueryCanceled):
        return Trouble.TIMEOUT
    words = str(error)
    refused = ("password authentication failed", "no pg_hba.conf entry", "role ", "authentication failed")
    if isinstance(error, psycopg.OperationalError) and "FATAL" in words and any(w in words for w in refused):
        return Trouble.LOGIN_REFUSED  # libpq hands the server's refusal of a login over without its code
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, OSError)):
        return Trouble.UNREACHABLE
    if isinstance(error, psycopg.errors.UndefinedTable):
        return Trouble.COLLECTION_MISSING
    if 'extension "vector" is not available' in words or 'type "vector" does not exist' in words:
        return Trouble.NO_EXTENSION
    return Trouble.FAILED


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


async def _in_thread(work: Callable[[], T]) -> T:
    """In a daemon thread: one that hangs on a silent server must not keep the process from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(act: Callable[[], None]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: None if done.done() else act())

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            failure = error
            tell(lambda: done.set_exception(failure))
        else:
            tell(lambda: done.set_result(result))

    threading.Thread(target=run, daemon=True, name="actonce-memory").start()
    return await done
