"""Leases of secrets that are kept in an encrypted file (`sealed.py`), for deployments without a secret manager.

A lease is this process's word: it lasts `life_s`, is prolonged while the file says the same of its credential, and its
parent is the file. One whose credential was changed in the file is not prolonged, so that a fresh lease with the new
secret is issued beside it; one whose credential was taken out of the file is gone (`revoked`) within one tick. A file
that cannot be read says nothing about a lease: what is leased stays good until its end.

Does not promise that a secret ends anywhere: it is long-lived, and only its destination can end it. The file is read
again when it, or its key, was replaced, and not otherwise.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass

from actonce.contracts.errors import LeaseDenied, LeaseGone
from actonce.credentials.provider import Grant
from actonce.credentials.sealed import Account, SealedFile


@dataclass
class _Leased:
    credential: str
    account: Account  # as it was when the lease was issued
    ends_s: float


class FileProvider:
    """Implements `Provider`."""

    def __init__(self, file: SealedFile) -> None:
        self._file = file
        self._read: tuple[tuple[tuple[int, ...], ...], dict[str, Account]] | None = None
        self._reading = asyncio.Lock()
        self._leases: dict[str, _Leased] = {}

    async def issue(self, credential: str) -> Grant:
        account = (await self._accounts()).get(credential)
        if account is None:
            raise LeaseDenied(f"{self._file.path} has no credential {credential}")
        self._forget_ended()
        lease_id = f"{credential}#{secrets.token_hex(8)}"
        self._leases[lease_id] = _Leased(credential, account, time.monotonic() + account.life_s)
        parent = f"file:{self._file.path.name}"
        return Grant(lease_id, account.secret, account.principal, account.scope, account.life_s, parent)

    async def renew(self, lease_id: str) -> float:
        lease, account = await self._living(lease_id)
        if account != lease.account:
            raise LeaseDenied(f"{lease.credential} was changed in its file; lease {lease_id} is not prolonged")
        lease.ends_s = time.monotonic() + account.life_s
        return account.life_s

    async def check(self, lease_id: str) -> None:
        await self._living(lease_id)

    async def revoke(self, lease_id: str) -> None:
        self._leases.pop(lease_id, None)

    async def close(self) -> None:
        """Nothing is open."""

    async def _living(self, lease_id: str) -> tuple[_Leased, Account]:
        accounts = await self._accounts()
        lease = self._leases.get(lease_id)
        if lease is None or lease.ends_s < time.monotonic():
            raise LeaseGone(f"lease {lease_id} is not known any more")
        account = accounts.get(lease.credential)
        if account is None:
            del self._leases[lease_id]
            raise LeaseGone(f"{lease.credential} was taken out of {self._file.path}")
        return lease, account

    async def _accounts(self) -> dict[str, Account]:
        async with self._reading:  # it is dear to open: whoever comes meanwhile waits for the same reading
            stamp = await asyncio.to_thread(self._file.stamp)
            if self._read is None or self._read[0] != stamp:
                # The stamp is from before: a file that is replaced while we read is read once more.
                self._read = (stamp, await asyncio.to_thread(self._file.read))
            return self._read[1]

    def _forget_ended(self) -> None:
        now_s = time.monotonic()
        self._leases = {name: lease for name, lease in self._leases.items() if lease.ends_s >= now_s}
