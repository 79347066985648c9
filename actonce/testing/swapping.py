"""Replacing one attribute of the system, for controls and stops."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any


def swap(where: str, name: str, make: Callable[[Any], Any]) -> None:
    """Replace one attribute of a module, or of a class in it (`module:Class`), by `make(what was there)`.

    Raises AttributeError when there is no such thing, and TypeError when what is put there cannot be called as what
    was there: a control that changes nothing, or only breaks, must not start.
    """
    module, _, inside = where.partition(":")
    owner: Any = importlib.import_module(module)
    owner = getattr(owner, inside) if inside else owner
    real = getattr(owner, name)
    made = make(real)
    _check_callable_alike(f"{where}.{name}", real, made)
    setattr(owner, name, made)


def _check_callable_alike(what: str, real: Any, made: Any) -> None:
    """A replacement that was left behind when its original got a parameter would fail at its first call, far away."""
    try:
        wanted, given = inspect.signature(real), inspect.signature(made)
    except (TypeError, ValueError):
        return  # no function, or one that tells no signature
    parameters = wanted.parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return  # what another swap put there: it does not tell how it is called
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    try:
        given.bind(*(None for _ in positional), **{p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY})
    except TypeError as error:
        raise TypeError(
            f"{what} takes {wanted}, its replacement takes {given}: {error}; change the replacement"
        ) from error
