"""Controls of the drill `credential-expired`: leases and authorisation with one protection taken out."""

from __future__ import annotations

from typing import Any

from actonce.testing.swapping import swap
from drills.controls.registry import control

_NOTHING_IS_OVER = "NULL"  # what the fence is told of the permit's lease


@control
def no_lease_check() -> None:
    """What was leased once is used for ever: nobody asks whether it is in force."""
    from actonce.contracts.credential import Lease

    kept: dict[str, tuple[Any, str]] = {}

    def make_lease(real: Any) -> Any:
        async def lease(self: Any, credential: str, *args: Any, **more: Any) -> Any:
            if credential in kept:
                return kept[credential][0]
            found = await real(self, credential, *args, **more)
            if isinstance(found, Lease):
                kept[credential] = (found, self._slots[credential].secret)
            return found

        return lease

    async def check(*args: Any) -> None:
        return None

    swap("actonce.credentials.broker:Broker", "lease", make_lease)
    swap("actonce.credentials.broker:Broker", "secret_of", lambda real: lambda self, lease: kept[lease.credential][1])
    swap("actonce.ledger.authorising", "check", lambda real: check)
    swap("actonce.ledger.authorising", "OVER", lambda real: _NOTHING_IS_OVER)


@control
def resume_without_authorisation() -> None:
    """A held operation may be resumed at once, and nobody asks the access policy again."""
    from actonce.contracts.credential import Authorisation

    async def unmet(*args: Any) -> None:
        return None

    async def authorised(*args: Any) -> Authorisation:
        return Authorisation(True, "nobody asked")

    swap("actonce.ledger.authorising", "unmet", lambda real: unmet)
    swap("actonce.ledger.authorising", "authorised", lambda real: authorised)
    swap("actonce.ledger.authorising", "OVER", lambda real: _NOTHING_IS_OVER)


@control
def unauthorised_read_as_absent() -> None:
    """A route that answers 401 counts as read to its end, fresh, with nothing on it."""

    def make(real: Any) -> Any:
        async def read_route(destination: Any, route: Any, lookup: Any, case: Any, clock: Any) -> Any:
            reading = await real(destination, route, lookup, case, clock)
            if reading.error is None or "401" not in reading.error:
                return reading
            empty = {"status": "read", "complete": True, "error": None, "beacon_at": clock.now(), "as_of": clock.now()}
            return reading.model_copy(update={**empty, "declared_total": 0, "rows_received": 0, "pages": 1})

        return read_route

    async def shrug(*args: Any) -> None:
        return None

    swap("actonce.effects.routes", "read_route", make)
    swap("actonce.effects.routes", "tell_refused", lambda real: shrug)


@control
def every_refresh_by_itself() -> None:
    """Whoever wants a lease renewed asks the manager, also while somebody else does."""

    def make(real: Any) -> Any:
        async def refresh(self: Any, slot: Any) -> None:
            await self._refresh_once(slot)

        return refresh

    swap("actonce.credentials.broker:Broker", "_refresh", make)


@control
def leaking_tool() -> None:
    """The tool writes its credential into its log and into its receipt."""

    def make(real: Any) -> Any:
        async def send(self: Any, call: Any) -> Any:
            import structlog

            receipt = await real(self, call)
            structlog.get_logger("tool").info("sent", authorization=f"Bearer {call.secret()}")
            return receipt.model_copy(update={"detail": {**receipt.detail, "request": call.secret()}})

        return send

    swap("actonce.destinations.sandbox:SandboxAdapter", "send", make)
