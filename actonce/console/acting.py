"""The one way in which the console does anything: it asks the entry service, in the name of who is signed in.

Promises: nothing is sent twice by itself; an answer that got lost is told as not known, and the same press again is
safe, for it carries the same key. The entry looks up what the person may do; this console's own token opens nothing
alone. Does not: decide, or write to the ledger. Who retries: the person.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
import structlog

log = structlog.get_logger("actonce.console")
TIMEOUT_S = 15.0  # the entry answers within its ledger's deadline and its patience with Temporal
PERSON = "Actonce-Person"


@dataclass(eq=False)  # not frozen: whoever passes an exception on sets its traceback
class Refused(Exception):
    """The entry did not do it, or nobody can say. `known` False: whether it was recorded is not known."""

    status: int
    title: str
    words: str
    code: str = ""
    known: bool = True
    retry_after_s: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.title}: {self.words}"


@dataclass(frozen=True)
class Answer:
    """What was done. `again`: this press had done it before."""

    body: dict[str, Any]
    again: bool


class Acting:
    """The entry service, as the console reaches it. `person` is always who is signed in, and never what a form says."""

    def __init__(self, url: str | None, token: str | None, transport: httpx.AsyncBaseTransport | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # The entry is a part of this deployment: no proxy of the environment is between, and nothing is followed.
        self._http = httpx.AsyncClient(
            base_url=url or "", timeout=TIMEOUT_S, trust_env=False, headers=headers, transport=transport
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def post(self, person: str, path: str, body: Mapping[str, Any], *, press: str | None = None) -> Answer:
        """Ask for one thing. Raises Refused with words for people."""
        headers = {PERSON: quote(person)} | ({"Idempotency-Key": quote(press)} if press else {})
        try:
            answer = await self._http.post(path, json=dict(body), headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol) as error:
            log.warning("entry_unreachable", kind=type(error).__name__)
            raise Refused(
                503,
                "The entry service does not answer",
                "Nothing was recorded. Operators: is it running (ACTONCE_ENTRY_URL)? Then press again.",
                "entry-unreachable",
            ) from error
        except httpx.HTTPError as error:
            log.warning("entry_answer_lost", kind=type(error).__name__)
            raise Refused(
                504,
                "The entry service's answer was lost",
                "Whether it was recorded is not known. Press again: it is the same press, and is done once.",
                "answer-lost",
                known=False,
            ) from error
        if answer.is_success:
            found = _json(answer)
            return Answer(found, answer.headers.get("Idempotent-Replayed") == "true")
        raise _refusal(answer)


def path(*parts: str) -> str:
    """An address at the entry; each part is one segment, whatever is in it."""
    return "/v1/" + "/".join(_segment(part) for part in parts)


def _segment(part: str) -> str:
    # `..` would be gone before the request is sent, and the segment before it too.
    return part.replace(".", "%2E") if part in (".", "..") else quote(part, safe="")


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def _refusal(answer: httpx.Response) -> Refused:
    told = _json(answer)
    if not told.get("title"):
        return Refused(
            502,
            "That was not an actonce entry service",
            f"It answered {answer.status_code} without saying why. Operators: check ACTONCE_ENTRY_URL.",
            "not-an-entry",
            known=answer.status_code < 500,
        )
    if answer.status_code == 401:  # a page was served just now, so it is rather our token than the person
        log.error("console_token_refused", detail=told.get("detail", ""))
        return Refused(
            502,
            "The entry service does not let this console in",
            f"Nothing was recorded. {told.get('detail', '')} Operators: ACTONCE_CONSOLE_TOKEN is a token with scope "
            "act_for.",
            "console-token",
        )
    known = {"title", "detail", "status", "type", "code"}
    return Refused(
        answer.status_code,
        str(told["title"]),
        str(told.get("detail", "")),
        str(told.get("code") or str(told.get("type", "")).rpartition(":")[2]),
        known=answer.status_code < 500,
        retry_after_s=answer.headers.get("Retry-After"),
        more={name: value for name, value in told.items() if name not in known},
    )
