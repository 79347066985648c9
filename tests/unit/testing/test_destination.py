"""The latch destination does what its module says, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from actonce.testing.destination import LatchDestination
from actonce.testing.waiting import NeverHappened, eventually


@pytest_asyncio.fixture
async def shop(tmp_path: Path) -> AsyncIterator[LatchDestination]:
    async with LatchDestination("shop", tmp_path, "run-1", page_size=2, read_timeout_s=0.3) as one:
        yield one


@pytest_asyncio.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
        yield client


def lines(shop: LatchDestination, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in shop.journal.path.read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]


async def order(http: httpx.AsyncClient, shop: LatchDestination, name: str, **headers: str) -> httpx.Response:
    body = {"name": name, "metadata": {"operation_id": f"op1_{name}", "key": f"op1_{name}"}}
    return await http.post(f"{shop.urls['write']}/v1/acme/orders", json=body, headers=headers)


async def test_what_is_made_is_on_the_list_with_its_total_and_under_its_key(
    shop: LatchDestination, http: httpx.AsyncClient
) -> None:
    made = [(await order(http, shop, name)).json()["id"] for name in "abc"]
    first = (await http.get(f"{shop.urls['list']}/v1/acme/orders")).json()
    rest = (await http.get(f"{shop.urls['list']}/v1/acme/orders", params={"cursor": first["next"]})).json()
    assert [row["id"] for row in first["data"] + rest["data"]] == made
    assert (first["total"], rest["next"]) == (3, None) and first["as_of"]
    by_key = (await http.get(f"{shop.urls['by_key']}/v1/acme/orders/by-key/op1_b")).json()
    assert [row["id"] for row in by_key["data"]] == [made[1]]
    assert (await http.get(f"{shop.urls['by_key']}/v1/acme/orders/{made[2]}")).json()["name"] == "c"
    assert (await http.get(f"{shop.urls['by_key']}/v1/acme/orders/nothing")).status_code == 404


async def test_each_path_is_served_on_its_own_port_only(shop: LatchDestination, http: httpx.AsyncClient) -> None:
    await order(http, shop, "a")
    assert (await http.get(f"{shop.urls['write']}/v1/acme/orders")).status_code == 405
    assert (await http.post(f"{shop.urls['list']}/v1/acme/orders", json={})).status_code == 405
    assert (await http.get(f"{shop.urls['list']}/v1/somebody/orders")).status_code == 404
    assert len(lines(shop, "effect")) == 1


async def test_at_committed_the_effect_is_on_record_and_no_byte_of_an_answer_has_left(
    shop: LatchDestination, http: httpx.AsyncClient
) -> None:
    held = shop.latch("committed", "op1_b")
    asked = asyncio.create_task(order(http, shop, "b"))
    await order(http, shop, "a")  # another operation passes
    assert (await held.hit())["operation_id"] == "op1_b"
    request_id = lines(shop, "latch")[0]["request_id"]
    assert "op1_b" in {line["operation_id"] for line in lines(shop, "effect")}
    assert request_id not in {line["request_id"] for line in lines(shop, "answer_begun")}
    await held.release()
    assert (await asked).status_code == 201


async def test_at_arrived_nothing_is_done_and_a_dropped_request_leaves_none(
    shop: LatchDestination, http: httpx.AsyncClient
) -> None:
    held = shop.latch("arrived")
    asked = asyncio.create_task(order(http, shop, "a"))
    await held.hit()
    assert lines(shop, "effect") == []
    await held.release(action="drop")
    with pytest.raises(httpx.RemoteProtocolError):
        await asked
    assert lines(shop, "effect") == [] and len(lines(shop, "dropped")) == 1


async def test_a_latch_that_nobody_reaches_never_passes_for_one_that_was_hit(shop: LatchDestination) -> None:
    with pytest.raises(NeverHappened, match="committed"):
        await shop.latch("committed", "op1_x").hit(within_s=0.1)


async def test_without_keys_the_same_request_twice_is_two_effects(
    shop: LatchDestination, http: httpx.AsyncClient
) -> None:
    for _ in range(2):
        await order(http, shop, "a", **{"Idempotency-Key": "k"})
    assert len(lines(shop, "effect")) == 2


async def test_keys_are_honoured_from_arrival_on_where_that_is_asked_for(
    tmp_path: Path, http: httpx.AsyncClient
) -> None:
    async with LatchDestination("bank", tmp_path, "run-1", honours_keys=True) as bank:
        held = bank.latch("committed")
        first = asyncio.create_task(order(http, bank, "a", **{"Idempotency-Key": "k"}))
        await held.hit()
        replay = await order(http, bank, "a", **{"Idempotency-Key": "k"})
        await held.release()
        assert replay.headers["Idempotent-Replayed"] == "true" and replay.json() == (await first).json()
        assert len(lines(bank, "effect")) == 1


async def test_a_request_that_is_not_complete_in_time_is_dropped_and_commits_nothing(shop: LatchDestination) -> None:
    host, port = "127.0.0.1", int(shop.urls["write"].rsplit(":", 1)[1])
    _, writer = await asyncio.open_connection(host, port)
    writer.write(b"POST /v1/acme/orders HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()
    await eventually(lambda: lines(shop, "request_incomplete"), within_s=5, what="the ingress gave up")
    writer.close()
    assert lines(shop, "effect") == []


async def test_it_proved_itself_controlled_on_every_port_before_it_was_used(shop: LatchDestination) -> None:
    assert {line["listener"] for line in lines(shop, "challenge")} == {"shop.write", "shop.list", "shop.by_key"}
