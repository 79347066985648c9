"""The real worker with one protection taken out: what the drills must catch, each by its named finding.

    python -m drills.controls.broken NAME run|watch|entry|console

Each control replaces one function of the system and says what it takes away. A control that nobody notices makes the
drill invalid: then nothing shows that the drill can fail.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from actonce.testing.controls import resend_without_lookup, settle_rule_off
from actonce.testing.swapping import swap
from drills.controls.registry import CONTROLS, control

for shipped in (settle_rule_off, resend_without_lookup):
    control(shipped)


@control
def fresh_key_per_attempt() -> None:
    """Every attempt sends another key: the destination cannot see that it is the same operation."""

    def make(real: Any) -> Any:
        async def next_key(*args: Any) -> tuple[int, str]:
            generation, key = await real(*args)
            return generation, key[:-8] + secrets.token_hex(4)

        return next_key

    swap("actonce.ledger.permits", "_next_key", make)


@control
def intent_after_call() -> None:
    """The call first, its intent afterwards: what dies in between was never on record."""
    from actonce.contracts import clocks
    from actonce.effects import perform as module
    from actonce.ledger.permits import NoPermit

    async def perform(system: Any, request: Any) -> Any:
        destination = system.destination(request.destination, request.action)
        intent = module.intent_of(request, destination.contract)
        receipt = await destination.send(unguarded_call(system, destination.contract, intent))
        permit = await module.obtain_permit(system, intent, destination.contract, clocks.now_s())
        if isinstance(permit, NoPermit):
            return module.result_of(permit.operation, how="adopted")
        operation = await module.record_acknowledgement(system, permit, receipt, destination.contract)
        return module.result_of(operation, how="acknowledged")

    swap("actonce.effects.activities", "perform", lambda real: perform)


def unguarded_call(system: Any, contract: Any, intent: Any) -> Any:
    from datetime import timedelta

    from actonce.contracts import clocks
    from actonce.destinations.base import Call
    from actonce.effects.fence import Window

    async def nothing() -> None:
        return None

    end_s = clocks.now_s() + contract.timing.send_deadline_s
    window = Window("unguarded", system.timer, end_s, clocks.now_s(), nothing)
    return Call(
        tenant=intent.key.tenant,
        destination=intent.key.destination,
        action=intent.key.action,
        operation_id=intent.key.operation_id,
        key=intent.key.operation_id,
        payload=intent.payload,
        digest=intent.digest,
        account=contract.account,
        task_id=intent.task_id,
        epoch=1,
        attempt=1,
        not_after=datetime.now(UTC) + timedelta(seconds=contract.timing.permit_lifetime_s),
        window=window,
        time_left_s=lambda: end_s - clocks.now_s(),
    )


@control
def blind_retry() -> None:
    """A lost answer is answered by sending again, as an ordinary retry would."""
    from actonce.contracts import clocks

    def make(real: Any) -> Any:
        async def send_and_record(system: Any, destination: Any, permit: Any, window: Any, *more: Any) -> Any:
            result = await real(system, destination, permit, window, *more)
            if result.how != "unknown":
                return result
            again = type(window)(window.name, system.timer, window._deadline_s, clocks.now_s(), window._ask_ledger)
            again._check = _nothing
            return await real(system, destination, permit, again, *more)

        return send_and_record

    swap("actonce.effects.perform", "send_and_record", make)


async def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


@control
def single_route_lookup() -> None:
    """One route is asked, and believed."""

    def make(real: Any) -> Any:
        async def read_all(destination: Any, case: Any, clock: Any) -> Any:
            return [reading for reading in await real(destination, case, clock) if reading.route == "by_id"]

        return read_all

    swap("actonce.effects.reconcile", "read_all", make)
    swap("actonce.effects.combine", "witnesses", lambda real: lambda *args: [{"by_id"}, {"and nobody else"}])
    swap("actonce.effects.combine", "_one_is_a_counted_list", lambda real: lambda *args: True)


@control
def completeness_off() -> None:
    """A list that serves fewer rows than it declares counts as read to its end."""

    def make(real: Any) -> Any:
        def reading(*args: Any, **kwargs: Any) -> Any:
            found = real(*args, **kwargs)
            return found.model_copy(update={"complete": found.status == "read"})

        return reading

    swap("actonce.effects.routes", "_reading", make)


@control
def freshness_off() -> None:
    """A route need not show anything newer than the operation."""
    swap("actonce.effects.combine", "is_fresh", lambda real: lambda contract, reading, until: True)


@control
def visibility_off() -> None:
    """A route that shows nothing at all counts as able to see."""

    def make(real: Any) -> Any:
        def is_fresh(contract: Any, reading: Any, until: Any) -> bool:
            return real(contract, reading, until) or (reading.beacon_at is None and not reading.rows_received)

        return is_fresh

    swap("actonce.effects.combine", "is_fresh", make)


@control
def transit_left_out() -> None:
    """The wait ends with the permit's life and the processing: what is on the way is forgotten."""

    def make(real: Any) -> Any:
        def late_bound_s(contract: Any) -> Any:
            bound = real(contract)
            return bound - contract.late_arrival.transit_s if contract.late_arrival.kind == "bounded" else bound

        return late_bound_s

    swap("actonce.contracts.bounds", "late_bound_s", make)


@control
def fence_off() -> None:
    """Nobody asks right before the send."""
    swap("actonce.effects.fence:Window", "_check", lambda real: _nothing)


@control
def kernel_timer_off() -> None:
    """A process that was frozen behind its fence goes on where it stood."""
    swap("actonce.effects.fence:FreezeTimer", "arm", lambda real: lambda self, token, deadline_s: None)


@control
def permit_without_nonce() -> None:
    """Whoever finds `dispatched` takes the permit for its own."""
    from actonce.contracts.lifecycle import State
    from actonce.ledger import permits

    def make(real: Any) -> Any:
        async def consume(connection: Any, operation: Any, *rest: Any) -> Any:
            if operation.state is State.DISPATCHED:
                return await permits._own(connection, operation, operation.nonce)
            return await real(connection, operation, *rest)

        return consume

    swap("actonce.ledger.permits", "_consume", make)


@control
def writes_without_compare() -> None:
    """A late record about an old attempt changes the current one."""
    swap("actonce.ledger.outcomes", "check_current", lambda real: lambda operation, permit: None)
    swap("actonce.ledger.verdicts", "compare", lambda real: lambda operation, expected: None)


@control
def hold_leaves_permit_usable() -> None:
    """A hold stops nobody who already has a permit."""
    swap("actonce.ledger.permits", "check_fence", lambda real: _nothing)


@control
def decision_before_bound() -> None:
    """An operator may permit a retry while the first request can still arrive."""
    swap("actonce.ledger.decisions", "_too_early", lambda real: _nothing)


@control
def acknowledgement_leaves_permit_usable() -> None:
    """A late acknowledgement is kept beside the operation and stops nobody who is about to take the next permit."""
    from actonce.contracts.lifecycle import State

    def make(real: Any) -> Any:
        async def accept(connection: Any, operation: Any, *rest: Any) -> Any:
            return operation if operation.state is State.READY else await real(connection, operation, *rest)

        return accept

    swap("actonce.ledger.outcomes", "_accept", make)


@control
def acknowledgement_contradicts_nothing() -> None:
    """A late acknowledgement is taken for the end of the matter, whatever has been sent or decided since."""
    swap("actonce.ledger.outcomes", "_contradiction", lambda real: lambda *args: None)


@control
def decision_without_reading() -> None:
    """A decision is applied on what its maker saw; nobody looks once more."""
    from actonce.contracts.verdict import Outcome, Reason, Verdict

    def make(real: Any) -> Any:
        async def read_fresh(system: Any, key: Any) -> Any:
            case, _, _ = await real(system, key)
            return case, Verdict(outcome=Outcome.AMBIGUOUS, reason=Reason.ROUTE_UNAVAILABLE, words="not read"), []

        return read_fresh

    swap("actonce.effects.decide", "read_fresh", make)


@control
def decision_over_a_verdict() -> None:
    """A decision is applied to whatever the operation has become: neither its version nor the state is compared."""
    from actonce.contracts.lifecycle import TRANSITIONS, Event, State

    swap("actonce.ledger.decisions", "_result", lambda real: lambda *args, **more: "applied")
    TRANSITIONS[(State.COMMITTED, Event.PERMIT_ONE_RETRY)] = State.READY


@control
def ambiguous_as_absent() -> None:
    """What cannot be known counts as not done."""
    from actonce.contracts.verdict import Outcome

    def make(real: Any) -> Any:
        def combine(*args: Any) -> Any:
            verdict = real(*args)
            if verdict.outcome is Outcome.AMBIGUOUS and verdict.page:
                return verdict.model_copy(update={"outcome": Outcome.ABSENT, "reason": None, "page": False})
            return verdict

        return combine

    swap("actonce.effects.combine", "combine", make)


@control
def complete_on_202() -> None:
    """An answer that only says "accepted" counts as done."""
    from actonce.contracts.errors import Unknown
    from actonce.contracts.verdict import Receipt

    def make_send(real: Any) -> Any:
        async def send(self: Any, call: Any) -> Any:
            try:
                return await real(self, call)
            except Unknown as error:
                if "answered 202" in str(error):
                    return Receipt(object_id=f"accepted-{call.operation_id}", digest=call.digest)
                raise

        return send

    def make_accept(real: Any) -> Any:
        async def accept(connection: Any, operation: Any, receipt: Any, contract: Any, *rest: Any) -> Any:
            by_receipt = contract.model_copy(update={"completion": "receipt"})
            return await real(connection, operation, receipt, by_receipt, *rest)

        return accept

    swap("actonce.destinations.sandbox:SandboxAdapter", "send", make_send)
    swap("actonce.ledger.outcomes", "_accept", make_accept)


@control
def http_retries_on() -> None:
    """The HTTP client sends again when its connection breaks."""
    import httpx

    _again_on(lambda answer, error: isinstance(error, (httpx.RemoteProtocolError, httpx.ReadError)))


@control
def redirects_followed() -> None:
    """The HTTP client follows a redirect with the same request."""
    _again_on(lambda answer, error: answer is not None and 300 <= answer.status < 400)


def _again_on(again: Callable[[Any, Any], bool]) -> None:
    def make(real: Any) -> Any:
        async def exchange(client: Any, request: Any, bytes_max: int) -> Any:
            answer, failure = None, None
            try:
                answer = await real(client, request, bytes_max)
            except Exception as error:
                failure = error
            if request.method == "POST" and again(answer, failure):
                request.extensions.pop("trace", None)  # the second sending is below the fence, as a library's is
                return await real(client, request, bytes_max)
            if failure is not None:
                raise failure
            return answer

        return exchange

    swap("actonce.destinations.http", "_exchange", make)


def register_all() -> None:
    """Import every module that has controls; each registers its own."""
    from drills.controls import access, approving, forgetting, lying, unaudited, waiting  # noqa: F401


def main(arguments: list[str]) -> None:
    """Take the protection out, then be the program."""
    import worker
    from drills.controls import stops

    register_all()
    if len(arguments) != 2 or arguments[0] not in CONTROLS:
        raise SystemExit(f"usage: broken NAME run|watch|entry|console; names: {', '.join(CONTROLS)}")
    CONTROLS[arguments[0]]()
    stops.install_from_environment()
    if arguments[1] in ("entry", "console"):
        import runpy

        program = f"actonce.{arguments[1]}"
        sys.argv = [program]
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    worker.main(arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
