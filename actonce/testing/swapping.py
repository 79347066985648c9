"""Replacing one attribute of the system, for controls and stops."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def swap(where: str, name: str, make: Callable[[Any], Any]) -> None:
    """Replace one attribute of a module, or of a class in it (`module:Class`), by `make(what was there)`.

    Raises AttributeError when there is no such thing: a control that changes nothing must not start.
    """
    module, _, inside = where.partition(":")
    owner: Any = importlib.import_module(module)
    owner = getattr(owner, inside) if inside else owner
    setattr(owner, name, make(getattr(owner, name)))
