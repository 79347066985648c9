"""The console's own style and script. Their addresses change with their content, so they may be kept for ever."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from actonce.console.rendering import HERE, static_version

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FILES = {p.name: (p.read_bytes(), TYPES[p.suffix]) for p in (HERE / "static").iterdir() if p.suffix in TYPES}

router = APIRouter(prefix="/static")


@router.get("/{name}")
async def static(name: str, request: Request, v: str = "") -> Response:
    """One of the files that were there when the process started; nothing else can be asked for by a name."""
    if name not in FILES:
        raise HTTPException(404, f"There is no file {name} here.")
    content, kind = FILES[name]
    tag = f'"{static_version()}"'
    keep = "public, max-age=31536000, immutable" if v == static_version() else "no-cache"
    headers = {"ETag": tag, "Cache-Control": keep}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
