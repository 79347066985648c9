"""The wire and the destination: requests arrive late or never, are worked on, and take effect or do not.

A request that is lost is one that never arrives in its time, so losing needs no step of its own: what has not
arrived when its time is up is gone.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.rows import flag
from tests.model.world import Effect, Request, Rules, World

Steps = Iterator[tuple[str, World]]


def steps(rules: Rules, world: World) -> Steps:
    previous = None
    for request in world.net:
        if request == previous:
            continue
        previous = request
        rest = list(world.net)
        rest.remove(request)
        if request.phase == "way":
            yield from _arrive(rules, world, request, rest)
        else:
            yield from _apply(rules, world, request, rest)


def _with(world: World, rest: list[Request], *more: Request) -> World:
    return world._replace(net=tuple(sorted([*rest, *more])))


def _registered(world: World, generation: int) -> bool:
    return any(g == generation for g, _ in world.keys)


def _late(world: World, request: Request) -> bool:
    return world.clocks[2] > request.deadline


def can_commit(rules: Rules, world: World, request: Request) -> bool:
    """False for a request that the destination will refuse whenever it comes: nothing can tell it from a lost one."""
    if rules.enforces == "deadline_on_arrival" and request.phase == "way" and _late(world, request):
        return False
    if rules.enforces == "deadline_at_commit" and _late(world, request):
        return False
    return not (rules.cancel_atomic and request.generation in world.cancelled)


def _arrive(rules: Rules, world: World, request: Request, rest: list[Request]) -> Steps:
    name = f"the request under permit {request.permit}"
    gone = _with(world, rest)
    if rules.enforces == "deadline_on_arrival" and _late(world, request):
        yield f"{name} arrives after its deadline and is refused", gone
        return
    if request.generation in world.cancelled:
        yield f"{name} arrives under a cancelled key and is refused", gone
        return
    if rules.keys != "none" and _registered(world, request.generation):
        yield f"{name} arrives and is answered by its key", gone
        return
    working = _with(world, rest, request._replace(phase="work", left=rules.processing_real))
    if rules.keys == "arrival":
        working = working._replace(keys=tuple(sorted([*world.keys, (request.generation, 0)])))
    yield f"{name} arrives", working
    if rules.refuses:
        yield f"{name} arrives and is declined", _answer(gone, request, "declined")
        yield f"{name} arrives and is turned away unprocessed", _answer(gone, request, "turned")


def _answer(world: World, request: Request, phase: str) -> World:
    listening = ("sent", "lost")
    return world._replace(
        execs=tuple(
            sorted(
                e._replace(phase=phase) if e.permit == request.permit and e.phase in listening else e
                for e in world.execs
            )
        )
    )


def _apply(rules: Rules, world: World, request: Request, rest: list[Request]) -> Steps:
    name = f"the request under permit {request.permit}"
    gone = _with(world, rest)
    if rules.enforces == "deadline_at_commit" and _late(world, request):
        yield f"{name} is refused at its commit: the deadline has passed", gone
        return
    if rules.cancel_atomic and request.generation in world.cancelled:
        yield f"{name} is refused at its commit: the key is cancelled", gone
        return
    after = gone._replace(effects=tuple(sorted([*world.effects, Effect(request.permit, request.generation, 0)])))
    if rules.keys == "commit":
        if rules.enforces == "cancel_by_key" and _registered(world, request.generation):
            yield f"{name} is answered by its key", gone
            return
        if not _registered(world, request.generation):
            after = after._replace(keys=tuple(sorted([*world.keys, (request.generation, 0)])))
    if request.permit <= world.covered:
        after = flag(rules, after, "P2")
    if len(after.effects) > 1 and not after.wrong:
        after = flag(rules, after, "P1")
    yield f"EFFECT: {name} commits", after
