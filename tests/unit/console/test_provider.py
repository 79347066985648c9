"""Whom an identity provider vouches for, against one on a real port; and every answer that must not be believed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from actonce.console.provider import Attempt, Provider, ProviderRefused, ProviderTerms
from actonce.contracts.people import Role
from tests.unit.console.provider_double import CLIENT, SECRET, Double, by_another_key, by_nobody, by_the_secret, serving

BACK = "http://127.0.0.1:1/sign-in/back"
ROLES = {"ops": Role.OPERATOR, "boss": Role.ADMIN}


@pytest_asyncio.fixture
async def double() -> AsyncIterator[Double]:
    async with serving() as running:
        yield running


def terms(double: Double) -> ProviderTerms:
    return ProviderTerms(issuer=double.url, client_id=CLIENT, client_secret=SECRET, roles=ROLES)


async def come_back(double: Double, **claims: Any) -> Any:
    provider = Provider(terms(double))
    attempt, url = await provider.begin(BACK)
    return await provider.finish(attempt.kept, double.allow(url, **claims), BACK)


async def test_a_person_comes_back_with_subject_name_and_the_roles_that_are_agreed(double: Double) -> None:
    vouched = await come_back(double, groups=["ops", "boss", "chess club", 7])
    assert (vouched.issuer, vouched.subject, vouched.name) == (double.url, "sub-1", "ann")
    assert vouched.roles == {Role.OPERATOR, Role.ADMIN}
    assert (await come_back(double, groups="ops")).roles == {Role.OPERATOR}
    assert (await come_back(double, groups=None)).roles == set()
    assert (await come_back(double, preferred_username=None, email="ann@example.com")).name == "ann@example.com"


async def test_each_attempt_has_secrets_of_its_own_and_the_browser_learns_no_verifier_from_the_address(
    double: Double,
) -> None:
    provider = Provider(terms(double))
    (one, url), (two, _) = await provider.begin(BACK), await provider.begin(BACK)
    assert {one.state, one.nonce, one.verifier}.isdisjoint({two.state, two.nonce, two.verifier})
    assert one.verifier not in url and SECRET not in url
    assert Attempt.of(one.kept) == one


async def test_an_answer_without_the_attempt_of_this_browser_is_refused(double: Double) -> None:
    provider = Provider(terms(double))
    attempt, url = await provider.begin(BACK)
    other, _ = await provider.begin(BACK)
    query = double.allow(url)
    for kept, brought in (
        (None, query),
        ("", query),
        ("not base64 at all", query),
        (other.kept, query),
        (attempt.kept, query | {"state": other.state}),
        (attempt.kept, {"code": query["code"]}),
        (attempt.kept, query | {"iss": "https://other.example"}),
        (attempt.kept, {"state": query["state"], "error": "access_denied"}),
    ):
        with pytest.raises(ProviderRefused):
            await provider.finish(kept, brought, BACK)
    assert double.redeemed == [], "no code was shown to anybody"
    assert (await provider.finish(attempt.kept, query, BACK)).subject == "sub-1"


async def test_a_code_is_good_once_and_only_with_the_verifier_that_it_was_asked_with(double: Double) -> None:
    provider = Provider(terms(double))
    attempt, url = await provider.begin(BACK)
    with pytest.raises(ProviderRefused) as refused:
        await provider.finish(replace(attempt, verifier="x" * 48).kept, query := double.allow(url), BACK)
    assert query["code"] not in str(refused.value), "words that a provider repeats are not repeated"
    query = double.allow(url)
    await provider.finish(attempt.kept, query, BACK)
    with pytest.raises(ProviderRefused):
        await provider.finish(attempt.kept, query, BACK)


def changed(**more: Any) -> Callable[[dict[str, Any]], None]:
    return lambda claims: claims.update(more)


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda claims: claims.pop(name)


@pytest.mark.parametrize(
    "spoil",
    [
        changed(iss="https://other.example"),
        changed(aud="somebody-else"),
        changed(aud=["somebody-else"], azp=CLIENT),
        changed(nonce="of another attempt"),
        changed(exp=int(time.time()) - 3600),
        *(without(name) for name in ("iss", "aud", "nonce", "exp", "sub")),
    ],
)
async def test_an_id_token_that_is_not_for_us_now_is_not_believed(double: Double, spoil: Any) -> None:
    double.spoil = spoil
    with pytest.raises(ProviderRefused):
        await come_back(double)


@pytest.mark.parametrize("sign", [by_another_key, by_the_secret, by_nobody])
async def test_an_id_token_that_the_providers_key_did_not_sign_is_not_believed(double: Double, sign: Any) -> None:
    """The double offers HS256 and `none` in its description: that is not for it to choose."""
    double.sign = sign
    with pytest.raises(ProviderRefused):
        await come_back(double)


async def test_a_provider_that_calls_itself_otherwise_or_is_not_there_vouches_for_nobody(double: Double) -> None:
    double.described = {"issuer": "https://other.example"}
    with pytest.raises(ProviderRefused):
        await come_back(double)
    nowhere = Provider(ProviderTerms("http://127.0.0.1:1", CLIENT, SECRET, ROLES))
    with pytest.raises(ProviderRefused, match="does not answer"):
        await nowhere.begin(BACK)


async def test_a_wrong_client_secret_is_refused_without_being_told(double: Double) -> None:
    provider = Provider(replace(terms(double), client_secret="wrong-secret"))
    attempt, url = await provider.begin(BACK)
    with pytest.raises(ProviderRefused) as refused:
        await provider.finish(attempt.kept, double.allow(url), BACK)
    assert "wrong-secret" not in str(refused.value)


@pytest.mark.parametrize("issuer", ["http://id.example.com", "ftp://id.example.com", "id.example.com", ""])
def test_a_provider_is_reached_over_tls_or_on_this_machine(issuer: str) -> None:
    with pytest.raises(ValueError, match="https"):
        ProviderTerms(issuer, CLIENT, SECRET, ROLES)
    ProviderTerms("https://id.example.com", CLIENT, SECRET, ROLES)
