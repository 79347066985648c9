"""Signing in by an identity provider: OpenID Connect, code flow with PKCE. What it vouches for, checked; no pages.

    attempt, url = await provider.begin(redirect_uri)     # send the browser to url, give it attempt.kept as a cookie
    vouched = await provider.finish(kept, query, redirect_uri)      # at redirect_uri, with what came back

Promises: somebody is vouched for only if the answer belongs to the attempt that this browser began, the code was
redeemed by us with the attempt's own verifier, and the ID token is signed by a key of the provider (no shared secret,
no `none`), from this issuer, for this client, with the attempt's nonce, and not expired. Everything else is
ProviderRefused, in words that hold no code and no token. Who it is here is (issuer, subject); names are for people.
Does not: keep anything between the two calls; retry; refresh.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import importlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import structlog
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.starlette_client import OAuth
from joserfc.errors import JoseError

from actonce.contracts.binding import is_loopback
from actonce.contracts.people import Role

log = structlog.get_logger("actonce.console")
TIMEOUT_S = 10.0  # of each request to the provider; a person waits
ATTEMPT_S = 600  # how long a browser may keep an attempt: a person types a password, and a code from a telephone
_SIGNED_BY_KEY = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


def _no_answer() -> tuple[type[Exception], ...]:
    """What a request of Authlib's raises: it sends by httpx2 wherever that happens to be installed, else by httpx."""
    found: list[type[Exception]] = [httpx.HTTPError]
    with contextlib.suppress(ImportError):
        found.append(importlib.import_module("httpx2").HTTPError)
    return tuple(found)


_NO_ANSWER = _no_answer()


class ProviderRefused(Exception):
    """Nobody is vouched for, and why, for people."""


@dataclass(frozen=True)
class ProviderTerms:
    """What is agreed with the provider. `roles`: value of its claim → role here."""

    issuer: str
    client_id: str
    client_secret: str | None  # None: a public client, with PKCE alone
    roles: Mapping[str, Role]
    roles_claim: str = "groups"
    name_claim: str = "preferred_username"
    scope: str = "openid profile email"

    def __post_init__(self) -> None:
        parts = urlsplit(self.issuer)
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
            raise ValueError(f"the issuer {self.issuer!r} must be an https:// address")


@dataclass(frozen=True)
class Attempt:
    """One try to sign in, as the browser keeps it meanwhile. It opens nothing without the provider's answer."""

    state: str
    nonce: str
    verifier: str

    @property
    def kept(self) -> str:
        """For a cookie: HttpOnly, SameSite=Lax (the provider sends the browser back), `ATTEMPT_S` long."""
        text = json.dumps([self.state, self.nonce, self.verifier])
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @staticmethod
    def of(kept: str | None) -> Attempt:
        """Raises ProviderRefused when the browser has none."""
        try:
            text = base64.urlsafe_b64decode((kept or "") + "===")
            state, nonce, verifier = (str(part) for part in json.loads(text))
        except ValueError as error:
            raise ProviderRefused("This browser has not begun to sign in, or too long ago. Begin again.") from error
        return Attempt(state, nonce, verifier)


@dataclass(frozen=True)
class Vouched:
    """Who the provider says it is. `roles` empty: nobody who may do anything here."""

    issuer: str
    subject: str
    name: str
    roles: frozenset[Role]


class Provider:
    """One identity provider, by its own description (`/.well-known/openid-configuration`), read at the first use."""

    def __init__(self, terms: ProviderTerms) -> None:
        self.terms = terms
        outside = not is_loopback(urlsplit(terms.issuer).hostname or "")
        self._app: Any = OAuth().register(
            "provider",
            client_id=terms.client_id,
            client_secret=terms.client_secret,
            server_metadata_url=terms.issuer.rstrip("/") + "/.well-known/openid-configuration",
            client_kwargs={
                "scope": terms.scope,
                "code_challenge_method": "S256",
                "token_endpoint_auth_method": "client_secret_basic" if terms.client_secret else "none",
                "timeout": TIMEOUT_S,
                "trust_env": outside,
            },
        )

    async def begin(self, redirect_uri: str) -> tuple[Attempt, str]:
        """An attempt and where to send the browser. Raises ProviderRefused."""
        try:
            await self._describe()
            found = await self._app.create_authorization_url(redirect_uri)
        except (*_NO_ANSWER, AuthlibBaseError, RuntimeError, ValueError) as error:
            raise self._away(error) from error
        return Attempt(found["state"], found["nonce"], found["code_verifier"]), str(found["url"])

    async def finish(self, kept: str | None, query: Mapping[str, str], redirect_uri: str) -> Vouched:
        """Who came back. Raises ProviderRefused."""
        attempt = Attempt.of(kept)
        if not hmac.compare_digest(query.get("state", "").encode(), attempt.state.encode()):
            raise ProviderRefused("This answer belongs to another attempt to sign in. Begin again.")
        if query.get("iss", self.terms.issuer) != self.terms.issuer:
            raise ProviderRefused("Another provider has answered than was asked. Begin again.")
        if "code" not in query:
            said = query.get("error", "nothing")[:100]
            raise ProviderRefused(f"The identity provider has let nobody in: {said}.")
        try:
            await self._describe()
            token = await self._app.fetch_access_token(
                redirect_uri, code=query["code"], code_verifier=attempt.verifier, grant_type="authorization_code"
            )
            claims = await self._app.parse_id_token(token, attempt.nonce, claims_options=self._options())
        except (*_NO_ANSWER, AuthlibBaseError, JoseError, RuntimeError, ValueError, KeyError) as error:
            raise self._away(error) from error
        if claims is None:
            raise ProviderRefused("The identity provider sent no ID token. Is `openid` among its scopes?")
        return self._vouched(claims)

    async def _describe(self) -> None:
        """Read what the provider says of itself, and believe it only as far as we agreed."""
        described = await self._app.load_server_metadata()
        if described.get("issuer") != self.terms.issuer:
            raise ValueError(f"it calls itself {str(described.get('issuer'))[:200]!r}")
        offered = described.get("id_token_signing_alg_values_supported") or ["RS256"]
        described["id_token_signing_alg_values_supported"] = [a for a in offered if a in _SIGNED_BY_KEY] or ["RS256"]

    def _options(self) -> dict[str, Any]:
        return {
            "iss": {"essential": True, "value": self.terms.issuer},
            "aud": {"essential": True, "value": self.terms.client_id},
            "sub": {"essential": True},
            "nonce": {"essential": True},
        }

    def _vouched(self, claims: Mapping[str, Any]) -> Vouched:
        subject = str(claims["sub"])
        name = next((claims[c] for c in (self.terms.name_claim, "email", "sub") if isinstance(claims.get(c), str)), "")
        said = claims.get(self.terms.roles_claim)
        values: Iterable[object] = said if isinstance(said, list) else [said]
        roles = frozenset(self.terms.roles[v] for v in values if isinstance(v, str) and v in self.terms.roles)
        return Vouched(self.terms.issuer, subject, str(name), roles)

    def _away(self, error: Exception) -> ProviderRefused:
        # The kind alone: a provider's own words may repeat the code or the token that it did not like.
        log.warning("provider_refused", issuer=self.terms.issuer, kind=type(error).__name__)
        what = "does not answer" if isinstance(error, _NO_ANSWER) else "gave an answer that cannot be believed"
        return ProviderRefused(
            f"The identity provider {what} ({type(error).__name__}). Try again; operators: see the console's log."
        )
