"""Headers of every answer: nothing from elsewhere is loaded, nothing inline runs, nothing of a page is kept.

An ASGI middleware outside of all others, so that errors and streams have them too.
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CSP = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
ALWAYS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not `no-referrer`: a browser then sends `Origin: null` with our own forms, and csrf.py could not tell them apart.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=()",
}


_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")


class SecurityHeaders:
    """Sets them on every answer; `Cache-Control: no-store` where the answer says nothing else.

    A request whose `Host` is no name of a place is answered 400: addresses and cookie names are made with it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in ALWAYS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if not _is_place(Headers(scope=scope).getlist("host")):
            await PlainTextResponse("Send the Host that this address was opened with.", 400)(
                scope, receive, with_headers
            )
            return
        await self.app(scope, receive, with_headers)


def _is_place(hosts: list[str]) -> bool:
    found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    return found is not None and int(found[1] or 0) < 65_536
