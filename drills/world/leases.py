"""The world's lease manager: a small double of Vault's dynamic secrets, and what a drill may do to it.

    GET /v1/{account}/creds/{purpose}     a new lease; its secret opens that purpose of that account's desks
    PUT /v1/sys/leases/{renew,lookup,revoke}
    GET /v1/auth/token/lookup-self

It speaks the five requests of Vault's HTTP API that `actonce.credentials.vault` uses, with Vault's status codes, and
no more of it. A lease dies with its time, by a revocation, with the token it was made with, or with `restart` (a
manager that keeps leases in memory). With `jealous`, two renewals of one lease at once kill it, as rotating refresh
tokens do. Every secret carries `MARK`: whoever finds that anywhere in what a run leaves has found a leak. The journal
has lease ids, never a secret.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from actonce.testing.journal import Journal
from actonce.testing.listener import Reply, Request

MARK = "marked-secret-"
_PURPOSES = ("write", "beacon", "cancel", "probe", "by_id", "list", "search", "log")
_JEALOUS_S = 0.4  # a renewal that overlaps another within this is a second use of the same token


class LeaseModes(BaseModel):
    """One account's leases. Times in seconds."""

    model_config = ConfigDict(extra="forbid")
    life_s: float = Field(default=3600.0, gt=0)
    longest_s: float = Field(default=86_400.0, gt=0)  # from issue; prolonging never reaches beyond
    deny: tuple[Literal["issue", "renew"], ...] = ()
    only: tuple[str, ...] = ()  # purposes that `deny` and `life_s` mean; none: all of them
    scope: dict[str, tuple[str, ...]] = {}  # purpose → what it grants; default: that purpose everywhere
    away: bool = False  # sealed: 503
    jealous: bool = False


class Ending(BaseModel):
    """Which leases to end, behind the caller's back."""

    model_config = ConfigDict(extra="forbid")
    purpose: str | None = None
    parent: bool = False  # with the token they were made with
    restart: bool = False
    why: str = "revoked out of band"


@dataclass
class _Lease:
    lease_id: str
    account: str
    purpose: str
    scope: tuple[str, ...]
    secret: str
    born_s: float
    ends_s: float
    ended: str | None = None
    renewing: int = 0

    @property
    def why_dead(self) -> str | None:
        return self.ended or ("expired" if time.monotonic() >= self.ends_s else None)


def default_token(account: str) -> str:
    """The manager's token that an account starts with."""
    return f"{mark_of(account)}root"


def mark_of(account: str) -> str:
    """How every secret of an account begins: whose leak it is."""
    return f"{MARK}{account}-"


class LeaseManager:
    """All accounts' leases."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._modes: dict[str, LeaseModes] = {}
        self._tokens: dict[str, str] = {}  # token → account
        self._dead_tokens: set[str] = set()
        self._by_id: dict[str, _Lease] = {}
        self._by_secret: dict[str, _Lease] = {}

    # for the desks ------------------------------------------------------------------------------------------------

    def refusal(self, account: str, destination: str, purpose: str, authorization: str) -> tuple[int, str] | None:
        """(status, why) when a request's credential is no good for this; never with the secret in it."""
        lease = self._by_secret.get(authorization.removeprefix("Bearer "))
        if lease is None:
            return 401, f"{purpose}: no lease"
        if (lease.account, lease.purpose) != (account, purpose):
            return 401, f"{purpose}: lease {lease.lease_id} is for something else"
        if lease.why_dead is not None:
            return 401, f"{purpose}: lease {lease.lease_id} {lease.why_dead}"
        needed = scope_of(destination, purpose)
        return None if needed in lease.scope else (403, f"{purpose}: lease {lease.lease_id} lacks {needed}")

    def lease_id(self, authorization: str) -> str | None:
        """Which lease a request came under."""
        lease = self._by_secret.get(authorization.removeprefix("Bearer "))
        return lease.lease_id if lease else None

    # for drills ---------------------------------------------------------------------------------------------------

    def configure(self, account: str, change: dict[str, Any]) -> LeaseModes:
        """Raises pydantic.ValidationError for a mode that does not exist."""
        token = change.pop("token", None)
        if token is not None:
            self._tokens[str(token)] = account
            self._note("token_given", account, parent=_accessor(str(token)))
        old = self._modes.get(account, LeaseModes())
        self._modes[account] = LeaseModes.model_validate(old.model_dump() | change)
        self._note("configured", account, change=change)
        return self._modes[account]

    def end(self, account: str, ending: Ending) -> list[str]:
        """End them; return their ids."""
        ended = [
            lease
            for lease in self._by_id.values()
            if lease.account == account and lease.why_dead is None and ending.purpose in (None, lease.purpose)
        ]
        for lease in ended:
            lease.ended = "forgotten in a restart" if ending.restart else ending.why
            self._note("ended", account, lease_id=lease.lease_id, purpose=lease.purpose, why=lease.ended)
        if ending.restart:
            self._by_id = {k: v for k, v in self._by_id.items() if v.account != account}
        if ending.parent:
            self._dead_tokens |= {default_token(account), *(t for t, a in self._tokens.items() if a == account)}
        return [lease.lease_id for lease in ended]

    # Vault's side ------------------------------------------------------------------------------------------------

    async def handle(self, request: Request) -> Reply:
        if request.path == "/health":
            return Reply(200, {"ok": True})
        token = request.headers.get("x-vault-token", "")
        account = self._account(token)
        if account is None or token in self._dead_tokens:
            self._note("refused", account or "", why="the manager's token is not good")
            return _errors(403, "permission denied")
        if self._mode(account).away:
            self._note("away", account)
            return _errors(503, "Vault is sealed")
        what = (request.method, *request.segments[1:])
        if what == ("GET", "auth", "token", "lookup-self"):
            return Reply(200, {"data": {"accessor": _accessor(token)}})
        match what:
            case ("GET", asked, "creds", purpose) if asked == account and purpose in _PURPOSES:
                return self._issue(account, purpose)
            case ("PUT", "sys", "leases", "renew" | "lookup" | "revoke" as verb):
                return await self._about(account, verb, str(request.json().get("lease_id", "")))
        return _errors(404, f"no handler for route {request.path}")

    def _account(self, token: str) -> str | None:
        account = token.removeprefix(MARK).removesuffix("-root")
        return self._tokens.get(token) or (account if token == default_token(account) else None)

    def _mode(self, account: str, purpose: str | None = None) -> LeaseModes:
        modes = self._modes.get(account, LeaseModes())
        if purpose is not None and modes.only and purpose not in modes.only:
            return LeaseModes(scope=modes.scope, jealous=modes.jealous)
        return modes

    def _issue(self, account: str, purpose: str) -> Reply:
        modes = self._mode(account, purpose)
        if "issue" in modes.deny:
            self._note("denied", account, purpose=purpose, what="issue")
            return _errors(403, "permission denied")
        now_s = time.monotonic()
        everywhere = tuple(scope_of(name, purpose) for name in ("payments", "tickets"))
        lease = _Lease(
            lease_id=f"{account}/creds/{purpose}/{secrets.token_hex(8)}",
            account=account,
            purpose=purpose,
            scope=modes.scope.get(purpose, everywhere),
            secret=f"{mark_of(account)}{secrets.token_urlsafe(18)}",
            born_s=now_s,
            ends_s=now_s + min(modes.life_s, modes.longest_s),
        )
        self._by_id[lease.lease_id] = self._by_secret[lease.secret] = lease
        self._note(
            "issued", account, lease_id=lease.lease_id, purpose=purpose, scope=list(lease.scope), life_s=modes.life_s
        )
        return Reply(200, self._shown(lease) | {"data": {"token": lease.secret, "scope": list(lease.scope)}})

    async def _about(self, account: str, verb: str, lease_id: str) -> Reply:
        lease = self._by_id.get(lease_id)
        if lease is None or lease.account != account or lease.why_dead is not None:
            self._note("gone", account, lease_id=lease_id, what=verb)
            return Reply(200, {}) if verb == "revoke" else _errors(400, "invalid lease")
        if verb == "revoke":
            lease.ended = "revoked"
            self._note("ended", account, lease_id=lease_id, purpose=lease.purpose, why="revoked by its holder")
            return Reply(200, {})  # a real one: 204
        if verb == "renew":
            return await self._renew(account, lease)
        return Reply(200, {"data": {"id": lease_id, "ttl": lease.ends_s - time.monotonic(), "renewable": True}})

    async def _renew(self, account: str, lease: _Lease) -> Reply:
        modes = self._mode(account, lease.purpose)
        if "renew" in modes.deny:
            self._note("denied", account, lease_id=lease.lease_id, purpose=lease.purpose, what="renew")
            return _errors(400, "lease is not renewable")
        if modes.jealous:
            lease.renewing += 1
            await asyncio.sleep(_JEALOUS_S)  # the moment in which a second renewal would be a second use
            twice, lease.renewing = lease.renewing > 1, 0
            if twice or lease.ended:
                lease.ended = "used twice at once"
                self._note("ended", account, lease_id=lease.lease_id, purpose=lease.purpose, why=lease.ended)
                return _errors(400, "lease not found")
        now_s = time.monotonic()
        lease.ends_s = max(lease.ends_s, min(now_s + modes.life_s, lease.born_s + modes.longest_s))
        self._note("renewed", account, lease_id=lease.lease_id, purpose=lease.purpose, left_s=lease.ends_s - now_s)
        return Reply(200, self._shown(lease))

    @staticmethod
    def _shown(lease: _Lease) -> dict[str, Any]:
        return {"lease_id": lease.lease_id, "renewable": True, "lease_duration": lease.ends_s - time.monotonic()}

    def _note(self, event: str, account: str, **fields: Any) -> None:
        self._journal.write("lease", destination="leases", account=account, event=event, **fields)


def scope_of(destination: str, purpose: str) -> str:
    """What a purpose needs at a destination."""
    return f"{destination}:{'write' if purpose == 'write' else 'read'}"


def _accessor(token: str) -> str:
    return f"parent-{hashlib.sha256(token.encode()).hexdigest()[:12]}"


def _errors(status: int, text: str) -> Reply:
    return Reply(status, {"errors": [text]})
