"""`actonce.testing.swapping`: what is put in the place of a function can be called as that function is."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from actonce.testing.swapping import swap


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    def send(call: str, permit: str, *, again: bool = False) -> str:
        return f"{call} {permit} {again}"

    made = ModuleType("a_module_to_swap_in")
    made.send = send  # type: ignore[attr-defined]
    made.LIMIT = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def test_a_replacement_that_takes_what_the_original_takes_is_put_in_place(module: ModuleType) -> None:
    swap(module.__name__, "send", lambda real: lambda *args, **more: real(*args, **more).upper())
    assert module.send("a", "b", again=True) == "A B TRUE"
    swap(module.__name__, "LIMIT", lambda real: real + 1)
    assert module.LIMIT == 4


@pytest.mark.parametrize("left_behind", [lambda call: None, lambda call, permit: None, lambda call, permit, *, x: None])
def test_a_replacement_that_was_left_behind_is_refused_and_nothing_is_swapped(
    module: ModuleType, left_behind: Any
) -> None:
    real = module.send
    with pytest.raises(TypeError, match=r"a_module_to_swap_in\.send takes .*; change the replacement"):
        swap(module.__name__, "send", lambda _: left_behind)
    assert module.send is real


def test_what_is_not_there_cannot_be_replaced(module: ModuleType) -> None:
    with pytest.raises(AttributeError):
        swap(module.__name__, "gone", lambda real: real)
