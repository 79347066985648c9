"""A copy of a deployment reaches sandboxes and nothing else, whatever its workers are given."""

from __future__ import annotations

import psycopg
import pytest

from actonce.contracts.contract import Contract
from actonce.contracts.errors import RouteUnavailable
from actonce.contracts.verdict import Page, Receipt
from actonce.destinations.base import Call, Destination, Lookup, Registry
from actonce.effects.perform import perform
from actonce.effects.system import compose
from actonce.ledger import gates
from actonce.ledger.migrate import migrate
from actonce.ledger.store import read_operation
from tests.integration.odd_bench import contract, key_of, request
from tests.integration.test_authority import REAL, grant


class World:
    """Counts what reaches it."""

    def __init__(self, of: Contract) -> None:
        self.sent = self.read = 0
        self.registry = Registry([Destination(of, send=self._send, routes={"list": self._list})])

    async def _send(self, call: Call) -> Receipt:
        async with call.window():
            self.sent += 1
        return Receipt(object_id="x", digest=call.digest)

    async def _list(self, look: Lookup, cursor: str | None) -> Page:
        self.read += 1
        return Page()


@pytest.fixture
def dsn(fresh_dsn: str) -> str:
    migrate(fresh_dsn)
    return fresh_dsn


def cloned(dsn: str) -> None:
    with psycopg.connect(dsn) as link:
        link.execute("UPDATE actonce.identity SET clone_of = 'production'")


async def test_a_clone_sends_nothing_to_what_is_no_sandbox_not_even_with_authority(dsn: str) -> None:
    world = World(REAL)
    cloned(dsn)
    async with compose(dsn, world.registry) as system:
        await grant(system.ledger)
        await perform(system, request(1))
        async with system.ledger.transaction() as connection:
            held = await read_operation(connection, key_of(request(1)))
            assert held is not None and (held.state, held.reason) == ("held", "no_authority")
            assert "clone of production" in str(await gates.unmet(connection, held))
        with pytest.raises(RouteUnavailable, match="clone of production"):
            await system.destination("odd").routes["list"](None, None)  # type: ignore[arg-type]
    assert (world.sent, world.read) == (0, 0)


async def test_control_what_is_no_clone_sends_on_the_same_authority(dsn: str) -> None:
    world = World(REAL)
    async with compose(dsn, world.registry) as system:
        await grant(system.ledger)
        await perform(system, request(1))
    assert world.sent == 1


async def test_the_permit_is_refused_also_in_a_process_that_was_there_before(dsn: str) -> None:
    """Whose registry still has the way: the gate in the permit's transaction is enough."""
    world = World(REAL)
    async with compose(dsn, world.registry) as system:
        await grant(system.ledger)
        cloned(dsn)
        await perform(system, request(1))
    assert world.sent == 0


async def test_a_clone_may_use_its_sandboxes(dsn: str) -> None:
    world = World(contract())
    cloned(dsn)
    async with compose(dsn, world.registry) as system:
        await perform(system, request(1))
        await system.destination("odd").routes["list"](None, None)  # type: ignore[arg-type]
    assert (world.sent, world.read) == (1, 1)
