"""What the Vault adapter makes of Vault's answers, on a server that says exactly what a case tells it to.

Not a real Vault: the status codes and bodies are those of its documentation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from actonce.contracts.errors import CredentialError, LeaseDenied, LeaseGone, ManagerUnavailable
from actonce.credentials import VaultProvider, VaultSettings

TOKEN = "marked-secret-token"
SECRET = "marked-secret-lease"
LEASE = "helpdesk/creds/writer/abc"
SELF = (200, {"data": {"accessor": "acc-1"}})


def provider(
    answers: dict[str, tuple[int, Any]], seen: list[httpx.Request] | None = None, **change: Any
) -> VaultProvider:
    """`answers`: path → (status, JSON body, or text)."""

    def handle(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        status, body = answers[request.url.path.removeprefix("/v1/")]
        return httpx.Response(status, text=body) if isinstance(body, str) else httpx.Response(status, json=body)

    settings: dict[str, Any] = {
        "address": "http://vault.invalid",
        "token": TOKEN,
        "credentials": {
            "c": {"path": "helpdesk/creds/writer", "secret_field": "token", "principal": "agent", "scope": ["x:write"]}
        },
    }
    made = VaultProvider(VaultSettings.model_validate(settings | change))
    made._client = httpx.AsyncClient(base_url="http://vault.invalid", transport=httpx.MockTransport(handle))
    return made


async def test_a_dynamic_secret_is_a_lease_with_our_token_as_its_parent() -> None:
    seen: list[httpx.Request] = []
    body = {"lease_id": LEASE, "lease_duration": 60, "renewable": True, "data": {"token": SECRET}}
    grant = await provider({"auth/token/lookup-self": SELF, "helpdesk/creds/writer": (200, body)}, seen).issue("c")
    assert (grant.lease_id, grant.secret, grant.left_s, grant.parent) == (LEASE, SECRET, 60.0, "acc-1")
    assert (grant.principal, grant.scope) == ("agent", ("x:write",))
    assert {r.headers["X-Vault-Token"] for r in seen} == {TOKEN}


@pytest.mark.parametrize(
    "answer",
    [
        (403, {"errors": ["permission denied"]}),
        (404, {"errors": []}),
        (200, {"data": {"token": SECRET}}),  # a static secret: no lease
        (200, {"lease_id": LEASE, "lease_duration": 0, "data": {"token": SECRET}}),
        (200, {"lease_id": LEASE, "lease_duration": 60, "data": {"password": SECRET}}),
    ],
    ids=["forbidden", "no such role", "no lease", "no duration", "no such field"],
)
async def test_what_is_no_lease_is_denied(answer: tuple[int, Any]) -> None:
    vault = provider({"auth/token/lookup-self": SELF, "helpdesk/creds/writer": answer})
    with pytest.raises(LeaseDenied) as denied:
        await vault.issue("c")
    assert SECRET not in str(denied.value) and TOKEN not in str(denied.value)


@pytest.mark.parametrize(
    "answer", [(503, {"errors": ["Vault is sealed"]}), (429, {}), (307, {}), (200, "<html>")], ids=str
)
async def test_a_sealed_or_foreign_vault_says_nothing_about_a_lease(answer: tuple[int, Any]) -> None:
    vault = provider({"sys/leases/lookup": answer, "sys/leases/renew": answer, "auth/token/lookup-self": answer})
    for ask in (vault.check(LEASE), vault.renew(LEASE), vault.issue("c")):
        with pytest.raises(ManagerUnavailable):
            await ask


@pytest.mark.parametrize(
    "answer", [(400, {"errors": ["invalid lease"]}), (403, {"errors": ["permission denied"]})], ids=str
)
async def test_an_unknown_lease_and_a_dead_token_are_gone(answer: tuple[int, Any]) -> None:
    vault = provider({"sys/leases/lookup": answer, "sys/leases/renew": answer})
    for ask in (vault.check(LEASE), vault.renew(LEASE)):
        with pytest.raises(LeaseGone):
            await ask


async def test_a_lease_that_cannot_be_prolonged_is_denied_and_not_gone() -> None:
    with pytest.raises(LeaseDenied):
        await provider({"sys/leases/renew": (400, {"errors": ["lease is not renewable"]})}).renew(LEASE)


async def test_it_is_renewed_revoked_and_looked_up_by_its_id() -> None:
    seen: list[httpx.Request] = []
    answers: dict[str, tuple[int, Any]] = {
        "sys/leases/renew": (200, {"lease_id": LEASE, "renewable": True, "lease_duration": 30}),
        "sys/leases/lookup": (200, {"data": {"id": LEASE, "ttl": 30}}),
        "sys/leases/revoke": (204, ""),
    }
    vault = provider(answers, seen)
    assert await vault.renew(LEASE) == 30.0
    await vault.check(LEASE)
    await vault.revoke(LEASE)
    assert [r.method for r in seen] == ["PUT"] * 3 and all(LEASE in r.content.decode() for r in seen)


async def test_the_token_is_read_from_its_file_at_each_request(tmp_path: Path) -> None:
    seen: list[httpx.Request] = []
    file = tmp_path / "token"
    vault = provider({"sys/leases/lookup": (200, {})}, seen, token=None, token_file=file)
    with pytest.raises(CredentialError, match="cannot be read"):
        await vault.check(LEASE)
    for token in ("first", "second"):
        file.write_text(f"{token}\n")
        await vault.check(LEASE)
    assert [r.headers["X-Vault-Token"] for r in seen] == ["first", "second"]


def test_a_vault_needs_one_way_to_its_token() -> None:
    with pytest.raises(ValueError, match="either"):
        provider({}, token=None)
