"""Servers that a person pointed us at: used and checked, never started, stopped or killed."""

from __future__ import annotations

import httpx
import psycopg
from temporalio.client import Client
from temporalio.service import RPCError

from actonce.stack.errors import StackError
from actonce.stack.settings import StackSettings
from actonce.stack.temporal import check_elsewhere
from actonce.stack.toxiproxy import toxiproxy_version


def is_elsewhere(name: str, settings: StackSettings) -> bool:
    """True when the part's setting names a server of the person's own."""
    return {
        "postgres": bool(settings.ledger_dsn),
        "temporal": settings.temporal_elsewhere,
        "toxiproxy": bool(settings.toxiproxy_url),
    }[name]


async def check(name: str, settings: StackSettings) -> str:
    """Reach it and say what it is. Raises StackError naming the setting when it cannot be used."""
    if name == "postgres":
        return await _postgres(str(settings.ledger_dsn))
    if name == "temporal":
        return await _temporal(settings)
    return await _toxiproxy(str(settings.toxiproxy_url))


async def _postgres(dsn: str) -> str:
    try:
        async with await psycopg.AsyncConnection.connect(dsn, connect_timeout=5) as connection:
            row = await (await connection.execute("SHOW synchronous_commit")).fetchone()
            info = connection.info
            version = f"PostgreSQL {info.server_version // 10000} at {info.host}:{info.port}/{info.dbname}"
    except psycopg.Error as error:
        raise StackError(f"ACTONCE_LEDGER_DSN cannot be used: {error}") from error
    if row is None or row[0] in ("off", "local"):
        raise StackError(
            f"ACTONCE_LEDGER_DSN: synchronous_commit is {row and row[0]} there. A permit that a crash forgets is a "
            "duplicate: set it to on."
        )
    return version


async def _temporal(settings: StackSettings) -> str:
    try:
        config = settings.temporal_config()
        client = await Client.connect(**config)
        await check_elsewhere(client)
    except (RuntimeError, RPCError) as error:
        raise StackError(
            f"Temporal as TEMPORAL_ADDRESS or the profile says cannot be used: {error}. Check address, namespace, "
            "TLS and key with `temporal --profile … operator cluster health`."
        ) from error
    return f"Temporal at {config.get('target_host')}, namespace {client.namespace}"


async def _toxiproxy(url: str) -> str:
    try:
        return f"Toxiproxy {await toxiproxy_version(url)} at {url}"
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise StackError(f"ACTONCE_TOXIPROXY_URL {url} cannot be used: {error!r}") from error
