"""Every proof of a fault: proven, refuted, and missing, each on its own small record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from actonce.evidence.case import build
from actonce.evidence.folder import load
from actonce.evidence.record import Proof as ProofName
from actonce.evidence.strike import PROOFS, scene, strikes
from tests.unit.evidence.builders import Run, plan, send, toxic

Setup = Callable[[Run], object]


def prove(folder: Path, kind: str, setup: Setup, **fault: Any) -> tuple[bool | None, str]:
    """What one proof says of a run with the one cell `x`."""
    run = Run()
    plan(run, "x")["fault"] |= {"signals": ["SIGKILL"], "cut_proxies": ["db"], **fault}
    setup(run)
    case = build(load(run.write(folder)))
    proof = PROOFS[kind](scene(case.evidence, case.stories["x", "op1_x"]))
    return proof.proven, proof.why


def nothing(run: Run) -> None:
    run.add("drill", "note", "x", 1, text="nothing happened")


def sent(run: Run, second: float = 1, bytes_up: int = 200) -> None:
    about = {"proxy": "write_x", "bytes_up": bytes_up, "bytes_down": 0}
    run.add("wire", "caller_connection", "x", second, **about)


def signal(run: Run, second: float, name: str = "SIGKILL", pid: int = 100) -> None:
    run.add("process", "signalled", "x", second, pid=pid, start_time=5, role="worker", signal=name)


def exited(run: Run, second: float, returncode: int = -9, start_time: int = 5) -> None:
    run.add("process", "exited", "x", second, pid=100, start_time=start_time, role="worker", returncode=returncode)


def outcome(run: Run, kind: str, second: float = 1.5, **fields: Any) -> None:
    run.journal(kind, "x", second, request_id="req_x_1", **fields)


def cut(run: Run, start: float, end: float) -> None:
    run.add("wire", "proxy_disabled", "x", start, proxy="db")
    run.add("wire", "proxy_enabled", "x", end, proxy="db")


def does(*steps: Callable[..., object] | tuple[Any, ...]) -> Setup:
    """A setup from steps, each a function or (function, *arguments)."""

    def setup(run: Run) -> None:
        nothing(run)
        for step in steps:
            if isinstance(step, tuple):
                step[0](run, *step[1:])
            else:
                step(run)

    return setup


def arrives(run: Run, second: float = 1) -> None:
    send(run, "x", second, effect=False)


def commits(run: Run, second: float = 1) -> None:
    send(run, "x", second)


def installed(run: Run, start: float, end: float, stream: str = "downstream") -> None:
    toxic(run, "x", start, end, stream)


def replaced(run: Run) -> None:
    outcome(run, "answer_replaced", status=502)


def late_effect(run: Run, second: float) -> None:
    about = {"operation_id": "op1_x", "object_id": "re_x", "state": "committed"}
    outcome(run, "effect", second, **about)


def answered(run: Run, second: float = 1.2) -> None:
    outcome(run, "answer_begun", second, status=202)


def stopped(run: Run, second: float) -> None:
    run.add("process", "state", "x", second, pid=100, start_time=5, role="worker", state="T")


HELD = {"signals": [], "proof": ["request_sent", "request_held", "cut_active"]}


def held_and_sent_again(cut_at: float) -> Setup:
    """The first is held from 1 to 5 s; the second takes another way and arrives at 3 s, the first after its release."""

    def setup(run: Run) -> None:
        does((installed, 1, 5, "upstream"), (sent, 1.5), (cut, cut_at, cut_at + 2))(run)
        run.add(
            "wire", "caller_connection", "x", 2.9, proxy="clean_x", bytes_up=200, bytes_down=90, operation_id="op1_x"
        )
        arrives(run, 3)
        arrives(run, 5.5)

    return setup


FREEZE = {"signals": ["SIGSTOP", "SIGCONT"], "frozen_min_s": 2.0}
CASES: list[tuple[str, bool | None, Setup, dict[str, Any]]] = [
    ("request_arrived", True, does(arrives), {}),
    ("request_arrived", None, nothing, {}),
    ("request_sent", True, does(sent), {}),
    ("request_sent", False, does((sent, 1, 0)), {}),
    ("request_sent", None, nothing, {}),
    ("request_not_arrived", True, does((installed, 1, 3, "upstream"), (arrives, 4)), {}),
    ("request_not_arrived", True, does((installed, 1, 3, "upstream")), {}),
    ("request_not_arrived", False, does((installed, 1, 3, "upstream"), (arrives, 2)), {}),
    ("request_not_arrived", False, does((installed, 1, 3, "upstream"), (arrives, 0.5)), {}),
    ("request_not_arrived", None, does((installed, 1, 3, "downstream")), {}),
    ("request_held", True, does((installed, 1, 3, "upstream"), (sent, 2), (arrives, 3.5)), {}),
    ("request_held", False, does((installed, 1, 3, "upstream"), (sent, 2), (arrives, 2)), {}),
    ("request_held", None, does((installed, 1, 3, "upstream"), (sent, 2)), {}),
    ("request_held", None, does((installed, 1, 3, "upstream"), (arrives, 3.5)), {}),
    ("effect_committed", True, does(commits), {}),
    ("effect_committed", False, does(arrives), {}),
    ("effect_committed", None, nothing, {}),
    ("effect_not_committed", True, does(arrives, (outcome, "dropped")), {}),
    ("effect_not_committed", True, does(arrives, replaced), {}),
    ("effect_not_committed", False, does(commits), {}),
    ("effect_not_committed", None, does(arrives), {}),
    ("effect_late", True, does(arrives, answered, (late_effect, 5)), {}),
    ("effect_late", True, does((installed, 0.5, 3), arrives, (late_effect, 5)), {}),
    ("effect_late", False, does(arrives, (late_effect, 1.1), answered), {}),
    ("effect_late", None, does(arrives, (late_effect, 5)), {}),
    ("answer_not_delivered", True, does((installed, 0.5, 3), commits), {}),
    ("answer_not_delivered", True, does(commits, (outcome, "answer_failed")), {}),
    ("answer_not_delivered", True, does(commits, replaced), {}),
    ("answer_not_delivered", True, does(commits, (signal, 1.005)), {}),
    ("answer_not_delivered", True, does(arrives, (signal, 1.1)), {}),
    ("answer_not_delivered", False, does(commits), {}),
    ("answer_not_delivered", False, does(commits, (installed, 2, 3)), {}),
    ("answer_not_delivered", False, does(commits, (installed, 0.5, 3, "upstream")), {}),
    ("answer_not_delivered", False, does(commits, (signal, 1.5)), {}),
    ("answer_not_delivered", False, does(commits, (signal, 1.005, "SIGTERM")), {"signals": ["SIGTERM"]}),
    ("answer_not_delivered", None, does(arrives), {}),
    ("answer_replaced", True, does(commits, replaced), {}),
    ("answer_replaced", False, does(commits), {}),
    ("answer_replaced", None, does(arrives), {}),
    ("signal_delivered", True, does(arrives, (signal, 1.5)), {}),
    ("signal_delivered", True, does((sent, 1), (signal, 1.5)), {}),
    ("signal_delivered", True, does((signal, 0.5), arrives), {"anchor": "before_send"}),
    ("signal_delivered", False, does((signal, 1.5), arrives), {"anchor": "before_send"}),
    ("signal_delivered", False, does((signal, 0.5), arrives), {}),
    ("signal_delivered", False, does(commits, (signal, 1.5)), {}),
    ("signal_delivered", None, does(arrives), {}),
    ("signal_delivered", None, does((signal, 0.5)), {}),
    ("signal_delivered", None, does(arrives, (signal, 1.5, "SIGTERM")), {}),
    ("signal_delivered", None, does(arrives, (signal, 2, "SIGSTOP"), (signal, 3, "SIGCONT", 7)), FREEZE),
    ("process_exited", True, does(arrives, (signal, 1.5), (exited, 1.6)), {}),
    ("process_exited", False, does(arrives, (signal, 1.5), (exited, 1.6, 0)), {}),
    ("process_exited", None, does(arrives, (signal, 1.5), (exited, 1.6, -9, 99)), {}),
    ("process_exited", None, does(arrives, (signal, 1.5), (exited, 1.1)), {}),
    ("process_exited", None, does(arrives), {}),
    ("process_frozen", True, does((signal, 1, "SIGSTOP"), (stopped, 2), (signal, 4, "SIGCONT")), FREEZE),
    ("process_frozen", False, does((signal, 1, "SIGSTOP"), (stopped, 2), (signal, 2.5, "SIGCONT")), FREEZE),
    ("process_frozen", None, does((signal, 1, "SIGSTOP"), (signal, 4, "SIGCONT")), FREEZE),
    ("process_frozen", None, does((signal, 1, "SIGSTOP"), (stopped, 2)), FREEZE),
    ("cut_active", True, does(commits, (cut, 0.5, 3)), {}),
    ("cut_active", True, does(arrives, (signal, 1.5), (cut, 1.4, 3)), {}),
    ("cut_active", True, does((installed, 1, 3, "upstream"), (sent, 1.5), (cut, 2, 5)), {"signals": []}),
    ("cut_active", True, held_and_sent_again(cut_at=2), HELD),
    ("cut_active", False, held_and_sent_again(cut_at=3.2), HELD),
    ("cut_active", False, does(commits, (cut, 2, 3)), {}),
    ("cut_active", None, does(commits), {}),
    ("cut_active", None, does((cut, 1, 2)), {}),
]


@pytest.mark.parametrize(
    ("kind", "proven", "setup", "fault"), CASES, ids=[f"{n}-{c[0]}-{c[1]}" for n, c in enumerate(CASES)]
)
def test_a_proof_is_proven_refuted_or_missing(
    kind: str, proven: bool | None, setup: Setup, fault: dict[str, Any], tmp_path: Path
) -> None:
    said, why = prove(tmp_path, kind, setup, **fault)
    assert said is proven, why


def test_every_kind_of_proof_has_a_case_of_each_answer_that_it_can_give() -> None:
    assert set(PROOFS) == set(get_args(ProofName))
    for kind in set(PROOFS) - {"observed"}:  # test_observations.py
        answers = {case[1] for case in CASES if case[0] == kind}
        assert answers >= {True, None}, kind
        assert False in answers or kind == "request_arrived", kind


@pytest.mark.parametrize(
    ("setup", "status"),
    [
        (does((installed, 0.5, 3), commits), "struck"),
        (does(commits), "installed but did not strike"),
        (does(nothing), "indeterminate"),
    ],
)
def test_only_all_proofs_together_make_a_strike(setup: Setup, status: str, tmp_path: Path) -> None:
    run = Run()
    plan(run, "x")
    setup(run)
    case = build(load(run.write(tmp_path)))
    assert [strike.status for strike in strikes(case)] == [status]


def test_what_the_system_says_of_itself_can_refute_and_never_prove(tmp_path: Path) -> None:
    def claims(run: Run) -> None:
        about = {"operation_id": "op1_x", "epoch": 1, "attempt": 1, "nonce": "n", "not_after": None}
        about |= {"issued_at": "2026-01-01T12:00:01+00:00", "outcome": "unknown", "owner_pid": 101}
        run.add("caller", "attempt", "x", 9, **about)

    assert prove(tmp_path / "a", "signal_delivered", does(arrives, (signal, 1.5), claims))[0] is False
    assert prove(tmp_path / "b", "request_sent", does(claims))[0] is None
