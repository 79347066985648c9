"""The controls there are, by name."""

from __future__ import annotations

from collections.abc import Callable

CONTROLS: dict[str, Callable[[], None]] = {}


def control(function: Callable[[], None]) -> Callable[[], None]:
    """Register a control under its function's name."""
    CONTROLS[function.__name__] = function
    return function
