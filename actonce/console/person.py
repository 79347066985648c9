"""Who looks at a page: the one seam between pages and sign-in.

Sign-in is not enforced yet. Until it is, whoever reaches the loopback interface of this machine is taken for nobody in
particular, and every other peer is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address

from starlette.exceptions import HTTPException
from starlette.requests import Request


@dataclass(frozen=True)
class Person:
    """Who looks. `name` None: nobody is signed in."""

    name: str | None = None
    roles: frozenset[str] = field(default_factory=frozenset)


async def person_of(request: Request) -> Person:
    """FastAPI dependency of every page: the person, or a refusal."""
    peer = request.client.host if request.client else ""
    if not _is_loopback(peer):
        raise HTTPException(403, "Pages are served to this machine's own loopback interface only.")
    person = Person()
    request.state.person = person
    return person


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
