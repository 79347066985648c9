"""Lists of the entry in pages: a `Link` header names the next page, as RFC 8288 writes it; without one it was the last.

The body is the plain list. A cursor is opaque; it is of one list, and stays good whatever is added meanwhile.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from actonce.entry.problems import documented

LIMIT_MAX = 1000
CURSOR_LENGTH_MAX = 2000

Cursor = Annotated[
    str | None, Query(max_length=CURSOR_LENGTH_MAX, description="goes on after this page: from its `Link` header")
]
Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX)]
_LINK: dict[str, Any] = {
    "Link": {"description": 'the next page, `<…>; rel="next"`; absent on the last one', "schema": {"type": "string"}}
}


def link_next(request: Request, response: Response, cursor: str | None) -> None:
    """Name the next page, with the same filters."""
    if cursor is not None:
        url = request.url.include_query_params(cursor=cursor)
        response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'


def listed(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries of a list: its refusals, and the header of its answer."""
    return {200: {"description": "newest first", "headers": _LINK}, **documented(*statuses)}
