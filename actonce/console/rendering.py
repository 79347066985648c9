"""Templates and what they may use. Everything is escaped; a value that is missing is an error, not an empty string."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from actonce.console.looks import look
from actonce.console.notices import DONE
from actonce.console.person import Visitor
from actonce.console.state import console_of
from actonce.contracts.approval import same_person
from actonce.ledger import browse
from actonce.ledger.browse import Heading
from actonce.unseen import visible, visible_json
from actonce.version import __version__

HERE = Path(__file__).parent
UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def lasting(seconds: float | timedelta | None) -> str:
    """A length of time for people: its two largest units."""
    if seconds is None:
        return "unknown"
    total_s = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    if total_s <= 0:
        return "0 s"
    if total_s < 10:
        return f"{total_s:.1f} s"
    parts: list[str] = []
    rest = int(total_s)
    for name, size in UNITS:
        much, rest = divmod(rest, size)
        if parts or much:
            parts.append(f"{much} {name}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 "))


def moment(value: datetime | str | None, missing: str = "—") -> Markup:
    """A `<time>` in UTC; the script rewrites it to the reader's zone and leaves UTC in its title."""
    if value is None:
        return Markup('<span class="none">{}</span>').format(missing)
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    at = at.astimezone(UTC)
    words = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    exact = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        at.isoformat(timespec="milliseconds"), exact, words
    )


_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")


def timed(text: str | None) -> Markup:
    """Words of the ledger, with the times in them as `moment` shows times."""
    made, at = Markup(""), 0
    for found in _ISO.finditer(text or ""):
        made += escape(visible((text or "")[at : found.start()])) + moment(found[0])
        at = found.end()
    return made + escape(visible((text or "")[at:]))


def pretty(value: Any) -> str:
    """JSON as people read it."""
    return visible_json(value, indent=2)


def segment(value: str) -> str:
    """One id as one part of a path, whatever is in it."""
    return quote(value, safe="")


@cache
def static_version() -> str:
    """Changes with what is in the static folder: addresses with it may be kept for ever."""
    names = sorted(p for p in (HERE / "static").iterdir() if p.is_file())
    return sha256(b"".join(p.read_bytes() for p in names)).hexdigest()[:12]


@cache
def environment() -> Environment:
    """The one set of templates of this process."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,  # of all but markup: what a form brings back goes through `e`, which makes it that
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"lasting": lasting, "moment": moment, "pretty": pretty, "segment": segment, "timed": timed}
    made.globals |= {
        "look": look,
        "same_person": same_person,
        "static_version": static_version(),
        "version": __version__,
    }
    return made


def fill(request: Request, template: str, heading: Heading | None, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page from a template. `heading` None: the ledger was not asked, or did not say."""
    text = (
        environment()
        .get_template(template)
        .render(
            path=request.url.path,
            person=getattr(request.state, "person", None) or Visitor(),
            heading=heading,
            live=request.method == "GET",  # an answer to a press cannot be asked for again
            notice=DONE.get(request.query_params.get("done", "")),
            **values,
        )
    )
    return HTMLResponse(text, status_code=status)


async def page(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page with the deployment's heading. Raises LedgerUnavailable, which has a page of its own."""
    console = console_of(request)
    heading = await browse.heading(console.ledger, console.settings.stale_after_s)
    return fill(request, template, heading, status=status, **values)
