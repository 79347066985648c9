"""Leases from HashiCorp Vault, by its HTTP API: dynamic secrets, `sys/leases`, and our own token as their parent.

A credential is a path that answers a read with a new lease, such as `database/creds/refunds`. The lease dies with the
token it was made with: the token is read from its file at each request, so that an agent beside us may replace it.
Tested against a small local double that speaks these five requests, not against a real Vault; what a real one says
beyond them (namespaces' forwarding, wrapped tokens, performance standbys) is not covered.

Answers are read for what is needed; bodies, the token and secrets are never logged or put into messages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from actonce.contracts.errors import LeaseDenied, LeaseGone, ManagerUnavailable
from actonce.credentials.provider import Grant


class VaultCredential(BaseModel):
    """Where the leases of one credential come from."""

    model_config = ConfigDict(extra="forbid")
    path: str  # a GET there makes a new lease
    secret_field: str  # of `data`
    principal: str  # whom the lease makes us at the destination
    scope: tuple[str, ...] = ()  # what it grants, where `data` says nothing of it
    scope_field: str | None = None  # of `data`: a list, or words separated by spaces


class VaultSettings(BaseModel):
    """Which Vault, and which credentials it gives."""

    model_config = ConfigDict(extra="forbid")
    address: str
    token_file: Path | None = None
    token: SecretStr | None = None  # where there is no file
    namespace: str | None = None
    credentials: dict[str, VaultCredential] = Field(min_length=1)


class VaultProvider:
    """Implements `Provider`. Close it when the process stops."""

    def __init__(self, settings: VaultSettings) -> None:
        if (settings.token is None) == (settings.token_file is None):
            raise ValueError("a Vault needs either token_file or token")
        self._settings = settings
        self._parents: dict[str, str] = {}  # token → its accessor
        self._client = httpx.AsyncClient(base_url=settings.address, trust_env=False, follow_redirects=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def issue(self, credential: str) -> Grant:
        wanted = self._settings.credentials.get(credential)
        if wanted is None:
            raise LeaseDenied(f"no path of Vault is configured for {credential}")
        parent = await self._parent()
        status, body = await self._ask("GET", wanted.path)
        if status >= 400:
            raise LeaseDenied(f"Vault gives no lease of {credential} (status {status})")
        data = body.get("data")
        lease_id, left_s = body.get("lease_id"), body.get("lease_duration")
        if not isinstance(data, dict) or not lease_id or not isinstance(left_s, (int, float)) or left_s <= 0:
            raise LeaseDenied(
                f"what Vault answers at the path of {credential} is no lease: it has no id or no duration"
            )
        if wanted.secret_field not in data:
            raise LeaseDenied(f"the lease of {credential} has no field {wanted.secret_field!r}")
        return Grant(
            lease_id=str(lease_id),
            secret=str(data[wanted.secret_field]),
            principal=wanted.principal,
            scope=_scope(wanted, data),
            left_s=float(left_s),
            parent=parent,
        )

    async def renew(self, lease_id: str) -> float:
        status, body = await self._ask("PUT", "sys/leases/renew", {"lease_id": lease_id})
        if status == 400 and "not renewable" in _errors(body):
            raise LeaseDenied(f"lease {lease_id} cannot be prolonged")
        self._gone(status, lease_id)
        left_s = body.get("lease_duration")
        if not isinstance(left_s, (int, float)) or left_s <= 0:
            raise LeaseDenied(f"lease {lease_id} was prolonged by nothing")
        return float(left_s)

    async def check(self, lease_id: str) -> None:
        status, _ = await self._ask("PUT", "sys/leases/lookup", {"lease_id": lease_id})
        self._gone(status, lease_id)

    async def revoke(self, lease_id: str) -> None:
        await self._ask("PUT", "sys/leases/revoke", {"lease_id": lease_id})

    @staticmethod
    def _gone(status: int, lease_id: str) -> None:
        if status == 403:
            raise LeaseGone(f"Vault does not accept our token any more, with which lease {lease_id} was made")
        if status >= 400:
            raise LeaseGone(f"Vault does not know lease {lease_id} any more (status {status})")

    async def _parent(self) -> str:
        """The accessor of our own token; not a secret, and what an administrator revokes it by."""
        token = self._token()
        if token not in self._parents:
            status, body = await self._ask("GET", "auth/token/lookup-self")
            accessor = (body.get("data") or {}).get("accessor")
            if status >= 400 or not accessor:
                raise LeaseDenied(f"Vault does not accept our token (status {status}); give us a new one")
            self._parents = {token: str(accessor)}
        return self._parents[token]

    def _token(self) -> str:
        if self._settings.token is not None:
            return self._settings.token.get_secret_value()
        assert self._settings.token_file is not None
        try:
            return self._settings.token_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise LeaseDenied(f"the file of our Vault token cannot be read ({type(error).__name__})") from error

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        headers = {"X-Vault-Token": self._token(), "X-Vault-Request": "true"}
        if self._settings.namespace:
            headers["X-Vault-Namespace"] = self._settings.namespace
        try:
            answer = await self._client.request(method, f"/v1/{path}", json=body, headers=headers)
        except httpx.HTTPError as error:
            raise ManagerUnavailable(f"Vault at {self._settings.address}: {type(error).__name__}") from error
        if answer.status_code >= 500 or answer.status_code == 429 or answer.is_redirect:  # sealed, standby, busy
            raise ManagerUnavailable(f"Vault at {self._settings.address} answers {answer.status_code}")
        try:
            said = answer.json() if answer.content else {}
        except ValueError as error:
            raise ManagerUnavailable(f"what answers at {self._settings.address} is no Vault") from error
        return answer.status_code, said if isinstance(said, dict) else {}


def _scope(wanted: VaultCredential, data: dict[str, Any]) -> tuple[str, ...]:
    if wanted.scope_field is None:
        return wanted.scope
    said = data.get(wanted.scope_field, ())
    return tuple(said.split()) if isinstance(said, str) else tuple(str(word) for word in said)


def _errors(body: dict[str, Any]) -> str:
    found = body.get("errors")
    return " ".join(str(e) for e in found) if isinstance(found, list) else ""
