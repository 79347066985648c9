"""A lease manager in this process's memory: for tests, and for one process that was handed its secrets at its start.

It forgets every lease when the process ends. `revoke`, `restart`, `deny` and `rescope` play what happens to a real one.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

from actonce.contracts.errors import LeaseDenied, LeaseGone, ManagerUnavailable
from actonce.credentials.provider import Grant


@dataclass
class Account:
    """What a credential's leases are made of. `secret` None: a fresh random one for each lease."""

    principal: str
    scope: tuple[str, ...]
    life_s: float = 60.0
    longest_s: float = 3600.0  # from issue; then it is not prolonged any more
    secret: str | None = field(default=None, repr=False)
    parent: str = "root"


@dataclass
class _Leased:
    credential: str
    parent: str
    born_s: float
    ends_s: float


class MemoryProvider:
    """Implements `Provider`. `asked` counts requests by kind."""

    def __init__(self, accounts: dict[str, Account]) -> None:
        self.accounts = accounts
        self.asked: dict[str, int] = {}
        self.denying: set[str] = set()  # "issue", "renew"
        self.away = False
        self._leases: dict[str, _Leased] = {}

    async def issue(self, credential: str) -> Grant:
        self._count("issue")
        account = self.accounts.get(credential)
        if account is None or "issue" in self.denying:
            raise LeaseDenied(f"no lease of {credential} is given")
        lease_id = f"{credential}#{secrets.token_hex(8)}"
        now_s = time.monotonic()
        self._leases[lease_id] = _Leased(credential, account.parent, now_s, now_s + account.life_s)
        secret = account.secret or secrets.token_urlsafe(24)
        return Grant(lease_id, secret, account.principal, account.scope, account.life_s, account.parent)

    async def renew(self, lease_id: str) -> float:
        self._count("renew")
        lease = self._living(lease_id)
        account = self.accounts[lease.credential]
        now_s = time.monotonic()
        left_s = min(account.life_s, lease.born_s + account.longest_s - now_s)
        if "renew" in self.denying or now_s + left_s <= lease.ends_s:
            raise LeaseDenied(f"lease {lease_id} is not prolonged any more")
        lease.ends_s = now_s + left_s
        return left_s

    async def check(self, lease_id: str) -> None:
        self._count("check")
        self._living(lease_id)

    async def revoke(self, lease_id: str) -> None:
        self._count("revoke")
        self._leases.pop(lease_id, None)

    async def close(self) -> None:
        """Nothing is open."""

    def revoke_parent(self, parent: str) -> None:
        """Everything that was leased under it dies with it."""
        self._leases = {name: lease for name, lease in self._leases.items() if lease.parent != parent}

    def restart(self) -> None:
        """A manager that keeps its leases in memory has none afterwards."""
        self._leases.clear()

    def _count(self, kind: str) -> None:
        self.asked[kind] = self.asked.get(kind, 0) + 1
        if self.away:
            raise ManagerUnavailable("the lease manager is away")

    def _living(self, lease_id: str) -> _Leased:
        lease = self._leases.get(lease_id)
        if lease is None or lease.ends_s < time.monotonic():
            raise LeaseGone(f"lease {lease_id} is not known any more")
        return lease
