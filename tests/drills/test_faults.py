"""Case i1: every fault shows on the wire what it did, before anything is judged with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import toxiproxy

from actonce.stack import Stack
from actonce.testing.faults import FaultError, Faults, WireFault
from actonce.testing.selftest import FAULTS, self_test, self_test_cut
from actonce.testing.tap import Tap


@pytest.fixture
async def faults(tmp_path: Path) -> AsyncIterator[Faults]:
    events: list[str] = []
    async with Stack.open(tmp_path, {"toxiproxy"}) as stack:
        made = Faults(stack.toxiproxy_url, "t", lambda kind, fields: events.append(kind))
        yield made
        await made.close()


async def test_each_fault_does_on_the_wire_what_it_is_named_for_case_i1(faults: Faults) -> None:
    for fault in FAULTS:
        for stream in ("upstream", "downstream"):
            found = await self_test(faults, fault, stream)  # type: ignore[arg-type]
            assert found.ok, found


async def test_a_cut_closes_refuses_and_heals_case_i1(faults: Faults) -> None:
    found = await self_test_cut(faults)
    assert found.ok, found


async def test_a_fault_without_effect_fails_its_self_test(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    # The vacuous pass that the self-test exists for: the toxic is installed on the wrong stream.
    real = faults.install

    async def wrong(proxy, fault, stream):  # type: ignore[no-untyped-def]
        return await real(proxy, fault, "upstream" if stream == "downstream" else "downstream")

    monkeypatch.setattr(faults, "install", wrong)
    found = await self_test(faults, WireFault.CLOSED, "downstream")
    assert not found.ok and "expected" in found.observed


async def test_a_proxy_that_is_gone_is_fatal(faults: Faults) -> None:
    proxy = await faults.proxy("gone", "127.0.0.1", 9)
    await faults.close()
    with pytest.raises(FaultError, match="not there"):
        await proxy.install(WireFault.CLOSED, "upstream")


async def test_a_status_that_the_client_library_lets_pass_is_fatal(faults: Faults) -> None:
    taken = await faults.proxy("taken", "127.0.0.1", 9)

    def listen_there_too() -> None:
        toxiproxy.Toxiproxy().create(upstream="127.0.0.1:9", name="bad", listen=f"127.0.0.1:{taken.port}")

    with pytest.raises(FaultError, match="answered 500"):
        await faults._do("listen twice", listen_there_too)


async def test_an_unreachable_toxiproxy_is_fatal() -> None:
    tap = Tap("nobody", "127.0.0.1", 9)
    await tap.start()
    await tap.refuse()  # a port that surely refuses: ours, reserved and not listening
    with pytest.raises(FaultError, match="could not create"):
        await Faults(f"http://127.0.0.1:{tap.port}", "x").proxy("p", "127.0.0.1", 9)
    await tap.close()
