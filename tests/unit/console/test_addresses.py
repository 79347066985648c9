"""Where a browser is sent, and where a form came from: the two questions that strangers try to answer for us."""

from __future__ import annotations

from urllib.parse import unquote

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from actonce.console import csrf
from actonce.console.acting import path
from actonce.console.csrf import Form
from actonce.console.person import local, sign_in_url

TOKEN = csrf.token("secret")


@pytest.mark.parametrize("address", ["/", "/operations/op1_x", "/tasks/default%2Frefund%2Fr-1?state=held"])
def test_an_address_of_this_console_is_kept(address: str) -> None:
    assert local(address) == address


@pytest.mark.parametrize(
    "address",
    [
        "",
        "//elsewhere/x",
        "/\\elsewhere",
        "/x\\..\\elsewhere",
        "\\\\elsewhere",
        "https://elsewhere",
        "javascript:alert(1)",
        "/a\r\nSet-Cookie: x=y",
        "/\tx",
        "/sign-out",
        "/sign-in?next=/sign-in",
        "/events",
    ],
)
def test_what_a_browser_could_take_for_another_place_becomes_the_first_page(address: str) -> None:
    assert local(address) == "/"


def test_after_signing_in_an_id_leads_to_the_same_page_whatever_is_in_it() -> None:
    """A task key may hold `?` or `#`: decoded, the address would end before it."""
    raw = b"/tasks/acme%2Frefund%2Fwhy%3F%23%25"
    asked = Request(
        {"type": "http", "method": "GET", "path": "/tasks/acme/refund/why?#%", "raw_path": raw, "headers": []}
    )
    assert unquote(sign_in_url(asked)) == f"/sign-in?next={raw.decode()}"
    assert sign_in_url(Request({"type": "http", "method": "GET", "path": "/", "raw_path": b"/"})) == "/sign-in"


@pytest.mark.parametrize("part", ["..", ".", "a/../b", "%2e%2e", "x?y#z", "…"])
def test_an_id_is_one_segment_at_the_entry_whatever_is_in_it(part: str) -> None:
    """`..` would be gone before the request is sent, and it would ask for something else."""
    asked = httpx.Client(base_url="http://entry").build_request("POST", path("operations", part, "decisions"))
    before, *middle, after = asked.url.raw_path.decode().removeprefix("/v1/").split("/")
    assert (before, [unquote(one) for one in middle], after) == ("operations", [part], "decisions")


def sent(**headers: str) -> Request:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": raw})


@pytest.mark.parametrize("own", ["http://127.0.0.1:8080", "http://127.0.0.1:8080/", "HTTP://127.0.0.1:8080/console"])
def test_own_form_is_let_through(own: str) -> None:
    csrf.check(sent(Origin="http://127.0.0.1:8080"), Form({"csrf": TOKEN}), TOKEN, [own])
    csrf.check(sent(Referer="http://127.0.0.1:8080/operations/x"), Form({"csrf": TOKEN}), TOKEN, [own])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1:8081"},
        {"Origin": "https://127.0.0.1:8080"},
        {"Origin": "http://127.0.0.1:8080.elsewhere"},
        {"Origin": "http://127.0.0.1:8080@elsewhere"},
        {"Origin": "http://localhost:8080"},
        {"Origin": "http://elsewhere", "Referer": "http://127.0.0.1:8080/"},
        {"Referer": "http://elsewhere/http://127.0.0.1:8080/"},
        {"Referer": "file:///x"},
        {"Origin": "http://127.0.0.1:99999"},
    ],
)
def test_whoever_does_not_say_that_it_comes_from_here_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(HTTPException) as refused:
        csrf.check(sent(**headers), Form({"csrf": TOKEN}), TOKEN, ["http://127.0.0.1:8080"])
    assert refused.value.status_code == 403


@pytest.mark.parametrize("token", ["", "secret", TOKEN[:-1], TOKEN.upper(), csrf.token("another secret"), "\udcff"])
def test_form_without_the_sessions_token_is_refused(token: str) -> None:
    with pytest.raises(HTTPException) as refused:
        csrf.check(sent(Origin="http://here"), Form({"csrf": token}), TOKEN, ["http://here"])
    assert refused.value.status_code == 403
