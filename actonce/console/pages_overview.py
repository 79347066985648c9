"""The first page: is anything unresolved, what waits for whom, is anyone working."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse

from actonce.console.rendering import page

router = APIRouter()


@router.get("/")
async def overview(request: Request) -> HTMLResponse:
    """Counts and ages of everything that is open."""
    return await page(request, "overview.html")
