"""Was this request made by a form of ours? Two checks, each of which alone would stop a page of somebody else's.

Where it comes from: the browser says so in `Origin` (or `Referer`), and one that says nothing, or `null`, is refused.
What it brings: every form carries a token that is derived from a secret of the session, and nobody else can read it.
Promises: no request that changes anything is looked at before both. Does not: know who may do what.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import parse_qsl, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request

FIELD = "csrf"
FORM_BYTES_MAX = 64 * 1024  # the longest field is 4,000 characters
FIELDS_MAX = 40
_TYPE = "application/x-www-form-urlencoded"
_PURPOSE = b"actonce.console.form.1"
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Form:
    """What a form brought: the last value of each field, as it was typed."""

    values: dict[str, str]

    def __getitem__(self, name: str) -> str:
        """A field without spaces around it, or the empty string: a browser leaves nothing out that is required."""
        return self.values.get(name, "").strip()

    def number(self, name: str) -> int:
        """A field that we wrote ourselves. Raises 400 when it is no number: somebody else wrote it."""
        text = self[name]
        if not text.isascii() or not text.isdecimal() or len(text) > 18:
            raise HTTPException(400, f"The field {name} is not what this page had put there. Load the page again.")
        return int(text)


def token(secret: str) -> str:
    """What the forms of a session carry. Not the secret itself: that never leaves the process."""
    return hmac.new(secret.encode(), _PURPOSE, sha256).hexdigest()


async def form_of(request: Request) -> Form:
    """Read a small form. Raises 413 and 415; nothing else than a plain form is read."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _TYPE:
        raise HTTPException(415, f"Forms are sent here as {_TYPE}; programs use the entry service.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES_MAX:
            raise HTTPException(413, f"The form is larger than {FORM_BYTES_MAX} bytes; nothing was recorded.")
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="replace")
    except ValueError as error:
        raise HTTPException(400, "The form cannot be read; nothing was recorded.") from error
    return Form({name: value.replace("\r\n", "\n") for name, value in pairs})


def check(request: Request, form: Form, expected: str, own: Sequence[str]) -> None:
    """Refuse (403) what was not sent by a form of ours. `own`: origins under which people reach this console."""
    came_from = _origin(request)
    if came_from is None or came_from not in {_normal(one) for one in own}:
        raise HTTPException(
            403,
            "This request does not come from a page of this console; nothing was recorded. Forms are taken from "
            f"{', '.join(own)} only: open the console by that address.",
        )
    if not hmac.compare_digest(form[FIELD].encode("utf-8", "replace"), expected.encode()):
        raise HTTPException(
            403,
            "The form is not of this sign-in (it was made before you signed in, or elsewhere); nothing was recorded. "
            "Load the page again.",
        )


def own_origins(request: Request, public_url: str | None, *, behind_tls_proxy: bool) -> list[str]:
    """The console's own origins: the one that is set, else that of the address which this request was sent to."""
    if public_url:
        return [public_url]
    scheme = "https" if behind_tls_proxy else request.url.scheme
    return [f"{scheme}://{request.headers.get('host', '')}"]


def _origin(request: Request) -> str | None:
    said = request.headers.getlist("origin") or request.headers.getlist("referer")
    return _normal(said[0]) if len(said) == 1 else None


def _normal(url: str) -> str | None:
    """scheme://host:port, in one way of writing; None for `null` and everything else that names no place."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return f"{parts.scheme}://{parts.hostname}:{port}" if parts.hostname else None
