"""What is said with every request that changes something: who, and why. Spaces are neither."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from actonce.entry.app import create_app
from actonce.entry.settings import EntrySettings

SAID = ("name", "why", "reason", "note", "by", "label", "person")


def bodies() -> Iterator[tuple[str, type[BaseModel]]]:
    """The model of every body that a route takes."""
    app = create_app(EntrySettings(ledger_dsn="postgresql://nobody@127.0.0.1:1/none"))  # type: ignore[arg-type]
    for route in _routes(app):
        if route.body_field is not None:
            given = route.body_field.field_info.annotation
            for one in (given, *get_args(given)):
                if isinstance(one, type) and issubclass(one, BaseModel):
                    yield f"{min(route.methods)} {route.path}", one


def _routes(of: Any) -> Iterator[APIRoute]:
    for route in of.routes:
        if isinstance(route, APIRoute):
            yield route
        elif hasattr(route, "original_router"):
            yield from _routes(route.original_router)


def test_nobody_and_no_reason_are_refused_at_every_route_also_as_spaces() -> None:
    taken, seen = [], 0
    for where, body in bodies():
        for field, info in body.model_fields.items():
            if field in SAID and info.is_required():
                seen += 1
                with pytest.raises(ValidationError) as caught:
                    body.model_validate({field: " \t\n "})
                if not any(e["loc"] == (field,) and e["type"] == "string_too_short" for e in caught.value.errors()):
                    taken.append(f"{where}: {field}")
    assert seen > 15 and taken == []
