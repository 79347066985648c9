"""Plays a soak: window after window, then everything must settle, be looked at, and be exported.

Contract: a window whose strike came to nothing leaves a note, and the next one follows: whether enough struck is for
the judge. After the last window nothing is broken any more; every task reaches its end or is held, a probe
succeeds, a quiet period follows. After each window the state on disk is enough to go on in another process.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from actonce.contracts.identity import derive_operation_id
from actonce.evidence import Cell as CellLine
from actonce.evidence import Expected, PlannedTask
from actonce.testing.export import FINAL, export_ledger, export_task
from actonce.testing.settling import quiet, tasks_ended
from actonce.testing.site import Invalid
from drills import auditing, doors, leasing
from drills.console.seeing import DONE, missed, see
from drills.console.seeing import Wanted as Shown
from drills.rig import Run
from drills.script import ENDS, SUBMIT_S, Wanted
from drills.soak import ground, people, strikes
from drills.soak.cell import SoakCell, soak_spec
from drills.soak.schedule import OVER_MINOR, Window, window
from drills.soak.state import SoakState
from drills.table import CONTROL_SETTLE_S, STEP, TENANT, probe

SETTLE_S = 240.0  # backlogs of the last windows, on two cores, and one reconcile-after (6 s) for each that was struck
APPROVAL_VALID_S = 3600.0  # an approval that expires is another drill
# The system may hold what it cannot know (a mail whose reply was lost); it may never be wrong.
EXPECTED = Expected(outcomes=["committed", "held"], effects=(0, 1))
CHECKED = {"leased": True, "audit": "counted"}  # see actonce.evidence: of every guarded window
CONTROL, CONTROL_FINDING, CONTROL_WINDOWS = "resend_without_lookup", "duplicate op", 3
NUMBER, CONTROL_NUMBER = 1, 2
SETTINGS = {
    "destinations": ["payments", "tickets", "mail"],
    "contracts": {
        "payments": {"approvals": [{"action": "refund", "over_minor": OVER_MINOR, "valid_s": APPROVAL_VALID_S}]},
    },
}


async def play(run: Run, state: SoakState, private: Path) -> None:
    """The guarded soak, and after it (so that whatever kills us finds one thing to go on with) its control."""
    await play_soak(run, state, private)
    try:
        await play_control(run, state.seed)
    except Exception as error:
        _broke_off(run, error)


async def play_soak(run: Run, state: SoakState, private: Path) -> None:
    """The guarded soak."""
    state.lives += 1
    state.save(private)
    run.tail.kinds = frozenset({"lease", "refused"})  # what its strikes look at; a soak must not grow in memory
    first = _windows_on_record(run)
    next_window = partial(window, state.seed, key=f"{run.run_id}-{NUMBER}", kinds=state.kinds)
    played = [next_window(number) for number in range(first)]
    for one in played:  # what an earlier life planned is still this run's to account for
        _place(run, one)
    begun, before_s = time.monotonic(), state.played_s
    upcoming = next_window(first)

    def goes_on() -> bool:
        return not played or state.played_s < state.minutes * 60

    try:
        name = upcoming.name if goes_on() else played[-1].name
        async with SoakCell(run, soak_spec(name, NUMBER, None, SETTINGS, ground.ground(state)), state) as cell:
            state.save(private)  # with the addresses of what outlives this process
            try:
                await people.allow(cell)
                if played:  # the window that was cut off: what of it was not submitted yet; the key makes it once
                    await submit(cell, played[-1].tasks)
                while goes_on():
                    await _play(cell, upcoming)
                    played.append(upcoming)
                    state.played_s = before_s + time.monotonic() - begun
                    state.save(private)
                    upcoming = next_window(len(played))
                await _afterwards(cell, played)
            except Exception as error:  # what was seen until then is exported all the same
                _broke_off(run, error)
            state.done()  # what is exported once must not be exported by another life
            await _export(cell, played, {_probe_id(cell)})
        await leasing.search(cell, for_run=True)
    except Exception as error:
        _broke_off(run, error)
        state.done()  # its record gets an end
    ground.put_away(state)


def _broke_off(run: Run, error: Exception) -> None:
    """On record; the judge sees that nothing was shown. A soak that is only stopped (cancelled) does not come here."""
    run.writer.append("drill", "note", None, text=f"broke off: {type(error).__name__}: {error}")


def _probe_key(cell: SoakCell) -> str:
    return f"{cell.run.run_id}-{NUMBER}-probe"


def _probe_id(cell: SoakCell) -> str:
    return derive_operation_id(TENANT, f"{TENANT}/single/{_probe_key(cell)}", STEP, 0)


async def play_control(run: Run, seed: int) -> None:
    """A short soak of the system with one protection taken out, under lost answers alone."""
    key = f"{run.run_id}-{CONTROL_NUMBER}"
    windows = [window(seed, number, key, ("answer_lost:closed",)) for number in range(CONTROL_WINDOWS)]
    spec = soak_spec(_named(windows[0]), CONTROL_NUMBER, CONTROL, SETTINGS)
    async with SoakCell(run, spec, None) as cell:
        for one in windows:
            await _play(cell, one, control=CONTROL)
        ends = (*ENDS, "held")
        wanted = {task.task_id: ends for one in windows for task in one.tasks}
        await tasks_ended(cell, wanted, within_s=CONTROL_SETTLE_S)
        await _export(cell, windows, set())


def _windows_on_record(run: Run) -> int:
    return sum(not name.startswith("control:") for name in run.writer.cells)


def _named(one: Window, control: str | None = CONTROL) -> str:
    return one.name if control is None else f"control:{control}.{one.name}"


def _place(run: Run, one: Window, control: str | None = None) -> None:
    for task in one.tasks:
        run.places[task.task_id] = _named(one, control)
        run.places |= {operation.operation_id: _named(one, control) for operation in task.operations}


async def _play(cell: SoakCell, one: Window, control: str | None = None) -> None:
    """One window: on record before anything of it happens."""
    cell.name = _named(one, control)
    _place(cell.run, one, control)
    cell.run.writer.cell(_line(cell, one, control))
    cell.run.writer.append("drill", "note", cell.name, text=f"window {one.number}: {one.kind}")
    missed = False
    try:
        await strikes.play(cell, one, lambda tasks: submit(cell, tasks))
    except Exception as error:  # whatever it was: with too many of these the soak is invalid
        missed, text = True, f"did not strike: {type(error).__name__}: {error}"
        cell.run.writer.append("drill", "note", cell.name, text=text)
    finally:
        await cell.calm()
    await cell.top_up()
    if missed:
        await submit(cell, one.tasks)  # those that it did not come to; the key makes each once
    await people.tend(cell)
    rows = await cell.ledger.rows("held")
    held = [str(row["operation_id"]) for row in rows if row["reason"] not in people.KEY_REASONS]
    if control is None:
        await _try_early_resume(cell, held)
        await _see_hold(cell, held)
    cell.flush()


def _line(cell: SoakCell, one: Window, control: str | None) -> CellLine:
    strangers = [task.task_id for task in one.tasks if task.task_type == "refund"]  # a customer of its own each
    return CellLine(
        cell=cell.name,
        params={
            "fault": one.kind,
            "window": one.number,
            **(CHECKED if control is None else {}),
            "strangers": strangers,
        },
        arm="guarded" if control is None else f"control:{control}",
        control=control,
        expected_finding=None if control is None else CONTROL_FINDING,
        expected=EXPECTED,
        operations=[operation for task in one.tasks for operation in task.operations],
        tasks=[PlannedTask(task_id=task.task_id, states=list(task.ends)) for task in one.tasks],
        task_ids=[task.task_id for task in one.tasks],
        fault=strikes.fault_of(one, cell),
    )


async def submit(cell: SoakCell, tasks: Iterable[Wanted]) -> list[str]:
    """Start tasks through the entry service, each asked for until it is accepted: the entry may be cut off itself.

    Raises Invalid when one is not accepted within 40 tries.
    """
    accepted = []
    async with doors.http(cell, SUBMIT_S) as http:
        for task in tasks:
            headers = {"Idempotency-Key": task.key, "Actonce-Tenant": TENANT}
            for _ in range(40):
                try:
                    answer = await http.post(f"/v1/tasks/{task.task_type}", json=task.payload, headers=headers)
                    said = f"{answer.status_code} {answer.text[:200]}"
                    if answer.status_code in (200, 202):
                        accepted.append(task.task_id)
                        break
                except httpx.HTTPError as error:
                    said = f"{type(error).__name__}: {error}"
                await asyncio.sleep(0.5)  # as its Retry-After asks of any caller
            else:
                raise Invalid(f"{task.task_id} was not accepted: {said}")
    return accepted


# after the last window ----------------------------------------------------------------------------------------------


async def _afterwards(cell: SoakCell, played: list[Window]) -> None:
    tasks = [task for one in played for task in one.tasks]
    await _all_at_an_end(cell, tasks)
    await probe(cell, _probe_key(cell), for_run=True)
    await quiet(cell, {operation.operation_id for task in tasks for operation in task.operations}, for_run=True)
    await _views(cell)


async def _all_at_an_end(cell: SoakCell, tasks: list[Wanted]) -> None:
    """People go on doing what they are asked for while the last tasks come to where they are."""
    tending = asyncio.create_task(_go_on_tending(cell))
    try:
        await tasks_ended(cell, {task.task_id: task.ends for task in tasks}, within_s=SETTLE_S)
    finally:
        tending.cancel()
        await asyncio.gather(tending, return_exceptions=True)


async def _go_on_tending(cell: SoakCell) -> None:
    while True:
        await people.tend(cell)
        await asyncio.sleep(1.0)  # a person looks now and then


async def _views(cell: SoakCell) -> None:
    """What everyone sees when it is over."""
    rows = await cell.ledger.rows("operation")
    states = Counter(str(row["state"]) for row in rows)
    held = [row for row in rows if row["state"] == "held"]
    doors.record_view(
        cell,
        "state",
        dict(states),
        ("every operation is final or held", not set(states) - {*FINAL, "held"}, str(dict(states))),
    )
    told = {page.about()["operation_id"] for page in cell.run.sink.of(cell.channel)}
    untold = [row["operation_id"] for row in held if row["operation_id"] not in told and cell.life == 1]
    doors.record_view(
        cell,
        "alerts",
        {"pages": len(cell.run.sink.of(cell.channel)), "held": len(held)},
        ("a person was told of everything that is held", not untold, ", ".join(untold) or f"{len(held)} are held"),
    )
    ended = next(row for row in await cell.ledger.rows("task") if row["state"] == "complete")
    await doors.user_view(cell, str(ended["task_id"]), state={"complete"})
    if not cell.hold_seen:
        missed(cell, "hold", "nothing that only a person can end was held while it played")
    await see(cell, "after", str(ended["task_id"]), None, DONE, also=("/operations", "/dependencies"))
    await doors.dependencies_view(cell)
    listed = await doors.client(cell, "list", "--state", "held", "--json")
    doors.record_view(
        cell,
        "operator",
        listed.json if listed.code == 0 else listed.err[-400:],
        ("an operator can list what waits for a person", listed.code == 0, listed.err.strip()[-200:]),
    )
    await _try_early_resume(cell, [str(row["operation_id"]) for row in await cell.ledger.rows("hold")])
    folder = cell.extras["log"].folder if "log" in cell.extras else None
    await ground.caught_up(cell)
    status, said = await auditing.verify(cell, folder, ground.VERIFY_S)
    whole = ("`actonce audit verify` says that the trail is whole", status == 0, said[-300:])
    doors.record_view(cell, "state", {"verify": said[-2000:]}, whole)


async def _try_early_resume(cell: SoakCell, operation_ids: list[str]) -> None:
    """Once in a life: somebody wants to go on with what was held, without anything that would permit it."""
    found = [operation_id for operation_id in operation_ids if operation_id != "None"]
    if found and not cell.resume_tried:
        cell.resume_tried = True
        codes = ("not_permitted", "condition_not_met", "too_early", "not_held", "stale")
        await doors.try_to_resume(cell, found[0], "it takes so long", *codes, action="resume")


async def _see_hold(cell: SoakCell, operation_ids: list[str]) -> None:
    """Once in a life, and while that is held: what the console shows of it. It may be settled while it is looked at."""
    found = [row for one in operation_ids if (row := await cell.ledger.operation(one)) is not None]
    if found and not cell.hold_seen:
        cell.hold_seen = True
        shown = Shown(frozenset({"held", "running", *ENDS}), frozenset({"held", *FINAL}))
        await see(cell, "hold", str(found[0]["task_id"]), str(found[0]["operation_id"]), shown, also=("/alerts",))


async def _export(cell: SoakCell, played: list[Window], probes: set[str]) -> None:
    def place(row: dict[str, Any]) -> str:
        return cell.run.place(row.get("operation_id"), row.get("task_id")) or cell.name

    await export_ledger(cell.ledger, cell.run.writer, place, probes)
    if cell.extras:  # the guarded one's
        await ground.count_copies(cell)
    for one in played:
        for task in one.tasks:
            where = cell.run.places[task.task_id]
            await export_task(cell.run.temporal, cell.ledger, cell.run.writer, where, task.task_id)
