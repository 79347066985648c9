"""An identity provider on a real port: OpenID Connect's code flow with PKCE, as strict as one, and wrong on demand."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import uvicorn
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "console", "s3cret-of-the-client"


@dataclass
class Double:
    """What it says of people is `claims`; what it does wrong is `spoil`, applied to the ID token's claims."""

    url: str = ""
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "k1", "use": "sig", "alg": "RS256"}))
    claims: dict[str, Any] = field(default_factory=dict)
    browsing: dict[str, Any] = field(default_factory=dict)  # claims about whoever comes with a browser
    spoil: Callable[[dict[str, Any]], None] = lambda claims: None
    sign: Callable[[Double, dict[str, Any]], str] | None = None
    described: dict[str, Any] = field(default_factory=dict)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    redeemed: list[str] = field(default_factory=list)

    def allow(self, url: str, **claims: Any) -> dict[str, str]:
        """What a browser brings back when the person has signed in at `url`."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert url.startswith(f"{self.url}/authorize?") and asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT and asked["code_challenge_method"] == "S256" and "openid" in asked["scope"]
        self.claims = {"sub": "sub-1", "preferred_username": "ann", "groups": ["ops"], **claims}
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return {"code": code, "state": asked["state"]}

    def signed(self, nonce: str) -> str:
        now = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": nonce, **self.claims}
        self.spoil(claims)
        if self.sign is not None:
            return self.sign(self, claims)
        return jwt.encode({"alg": "RS256", "kid": "k1"}, claims, self.key)

    async def describe(self, _: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/jwks",
                "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
                **self.described,
            }
        )

    async def authorize(self, request: Request) -> Response:
        """Whoever comes with a browser is signed in here already, and is sent back at once."""
        asked = f"{self.url}/authorize?{request.url.query}"
        back = self.allow(asked, **self.browsing)
        return RedirectResponse(f"{self.codes[back['code']]['redirect_uri']}?{urlencode(back)}", 303)

    async def jwks(self, _: Request) -> Response:
        return JSONResponse({"keys": [self.key.as_dict(private=False)]})

    async def token(self, request: Request) -> Response:
        given = {name: str(value) for name, value in (await request.form()).items()}
        login = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        asked = self.codes.pop(given.get("code", ""), None)  # a code is good once
        challenge = base64.urlsafe_b64encode(hashlib.sha256(given.get("code_verifier", "").encode()).digest())
        if request.headers.get("authorization") != f"Basic {login}":
            return JSONResponse({"error": "invalid_client"}, 401)
        if (
            asked is None
            or given.get("redirect_uri") != asked["redirect_uri"]
            or challenge.decode().rstrip("=") != asked["code_challenge"]
        ):
            return JSONResponse({"error": "invalid_grant", "error_description": given.get("code")}, 400)
        self.redeemed.append(given["code"])
        token = {"access_token": "at", "token_type": "Bearer", "expires_in": 60}
        return JSONResponse(token | {"id_token": self.signed(asked["nonce"])})


def by_another_key(double: Double, claims: dict[str, Any]) -> str:
    return jwt.encode({"alg": "RS256", "kid": "k1"}, claims, RSAKey.generate_key(2048))


def by_the_secret(_: Double, claims: dict[str, Any]) -> str:
    return jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(SECRET.ljust(32, "x")), algorithms=["HS256"])


def by_nobody(_: Double, claims: dict[str, Any]) -> str:
    """Unsigned: the header says so, and the signature is empty."""
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in ({"alg": "none"}, claims))
    return f"{'.'.join(part.rstrip('=') for part in parts)}."


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Double]:
    """A provider for the time of the block."""
    double = Double()
    app = Starlette(
        routes=[
            Route("/.well-known/openid-configuration", double.describe),
            Route("/authorize", double.authorize),
            Route("/jwks", double.jwks),
            Route("/token", double.token, methods=["POST"]),
        ]
    )
    with socket.create_server(("127.0.0.1", 0)) as sock:
        double.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        running = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            yield double  # the socket listens already: whoever connects waits for the first turn of the server
        finally:
            server.should_exit = True
            await running
