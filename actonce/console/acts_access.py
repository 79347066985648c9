"""Buttons about people and tokens, for administrators, and one's own password.

Promises: no password and no token's value is in an address, a log or a page that can be loaded again. A token's value
is shown by the answer to the press that made it; pressed again, that page says that it was shown, and shows nothing.
To disable somebody their name is typed, to revoke a token its number.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from actonce.console.acting import Refused, path
from actonce.console.acts import Kept, ask, done, missing, press_for, refused_page
from actonce.console.csrf import Form
from actonce.console.pages_access import FORMS, people_values, person_values, token_values, tokens_values
from actonce.console.person import SESSION_COOKIE, Press, SignInNeeded, cookie_name, pressed
from actonce.console.rendering import page, segment
from actonce.console.state import console_of
from actonce.contracts.errors import PersonRefused, SignInRefused
from actonce.contracts.people import Role, Scope, checked_password
from actonce.ledger import sessions

router = APIRouter()
Administers = Annotated[Press, Depends(pressed(Scope.ADMIN))]
NOT_CONFIRMED = "Type {what} as it is written there. Nothing was recorded."


@router.post("/people")
async def add(request: Request, press: Administers) -> Response:
    """Somebody may sign in from now on."""
    form = press.form
    refused = missing(form, "person") or _none_ticked(form, "role") or _same(form)
    if refused is None:
        body = {"person": form["person"], "roles": _ticked(form, "role"), "password": _password(form)}
        try:
            answer = await ask(request, press, path("people"), body)
        except Refused as error:
            refused = error
        else:
            return done(_person(answer.body["name"]), "person-added")
    values = await people_values(request)
    return await refused_page(
        request, refused, "refused_people.html", back="/people", kept=_kept("add", form), **values
    )


@router.post("/people/roles")
async def roles(request: Request, press: Administers) -> Response:
    """These roles and no others."""
    refused = _none_ticked(press.form, "role")
    return await _change(request, press, "roles", "person-roles", refused, {"roles": _ticked(press.form, "role")})


@router.post("/people/passwords")
async def password(request: Request, press: Administers) -> Response:
    """Signs them out everywhere."""
    body = {"password": _password(press.form)}
    return await _change(request, press, "passwords", "person-password", _same(press.form), body)


@router.post("/people/disabled")
async def disable(request: Request, press: Administers) -> Response:
    """Signs them out, and lets them in no more."""
    form = press.form
    refused = None if form["confirm"].casefold() == form["person"].casefold() else _unconfirmed("the person's name")
    return await _change(request, press, "disabled", "person-disabled", refused, {})


@router.post("/people/enabled")
async def enable(request: Request, press: Administers) -> Response:
    """In again, with the roles they had."""
    return await _change(request, press, "enabled", "person-enabled", None, {})


async def _change(
    request: Request, press: Press, what: str, word: str, refused: Refused | None, body: dict[str, Any]
) -> Response:
    form = press.form
    version = form.number("version")
    if refused is None:
        try:
            said = {"person": form["person"], "expected_version": version, **body}
            await ask(request, press, path("people", what), said)
        except Refused as error:
            refused = error
        else:
            return done(_person(form["person"]), word)
    values = await person_values(request, form["person"], version)
    return await refused_page(
        request,
        refused,
        "refused_person.html",
        back=_person(form["person"]),
        changes=values["history"],
        kept=_kept(what, form),
        **values,
    )


# tokens -----------------------------------------------------------------------------------------------------------


@router.post("/tokens")
async def create(request: Request, press: Administers) -> Response:
    """The answer shows the value, this once; no address leads to it again."""
    form = press.form
    refused = missing(form, "label") or _none_ticked(form, "scope")
    if refused is None:
        try:
            body = {"label": form["label"], "scopes": _ticked(form, "scope"), "person": form["person"] or None}
            answer = await ask(request, press, path("tokens"), {**body, "days": _days(form)}, key=form["press"] or None)
        except Refused as error:
            refused = error
        else:
            return await page(request, "token_made.html", made=answer.body["token"], value=answer.body["value"])
    return await refused_page(
        request,
        refused,
        "refused_tokens.html",
        back="/tokens",
        kept=_kept("create", form),
        press=press_for(form, refused),
        **await tokens_values(request),
    )


def _days(form: Form) -> float | None:
    """Raises Refused."""
    if not form["days"]:
        return None
    try:
        days = float(form["days"].replace(",", "."))
    except ValueError as error:
        raise Refused(422, "Something does not fit", "Days are a number. Nothing was recorded.") from error
    if not 0 < days <= 3650:
        raise Refused(422, "Something does not fit", "A token lives 1 to 3650 days. Nothing was recorded.")
    return days


@router.post("/tokens/revocations")
async def revoke(request: Request, press: Administers) -> Response:
    """It opens nothing any more."""
    form = press.form
    token_id = form.number("token_id")
    address = f"/tokens/{token_id}"
    refused = None if form["confirm"] == str(token_id) else _unconfirmed("the token's number")
    if refused is None:
        try:
            said = {"token_id": token_id, "label": form.values.get("label", "")}
            await ask(request, press, path("tokens", "revocations"), said)
        except Refused as error:
            refused = error
        else:
            return done(address, "token-revoked")
    values = await token_values(request, token_id)
    return await refused_page(
        request, refused, "refused_token.html", back=address, kept=_kept("revoke", form), **values
    )


# oneself ----------------------------------------------------------------------------------------------------------


@router.post("/you/password")
async def own_password(request: Request, press: Annotated[Press, Depends(pressed(None))]) -> Response:
    """Another password for oneself, for who knows the current one; other sessions of the same person end."""
    form = press.form
    ledger = console_of(request).ledger
    refused = _same(form)
    if refused is None:
        session = await sessions.session_of(ledger, request.cookies.get(cookie_name(request, SESSION_COOKIE), ""))
        if session is None:
            raise SignInNeeded
        source = request.client.host if request.client else "unknown"
        try:
            await sessions.change_password(ledger, session, form.values.get("current", ""), _password(form), source)
        except SignInRefused as error:
            wait = str(error.retry_after_s) if error.retry_after_s is not None else None
            status = 429 if wait else 422
            refused = Refused(status, "It was not changed", f"{error}.", error.code, retry_after_s=wait)
        else:
            return done("/you", "own-password")
    return await refused_page(request, refused, "refused_you.html", back="/you", you=press.person, **FORMS)


# forms ------------------------------------------------------------------------------------------------------------


def _ticked(form: Form, prefix: str) -> list[str]:
    """Which boxes are ticked: a field holds one value, so each box is a field."""
    words = Role if prefix == "role" else Scope
    return [word.value for word in words if form[f"{prefix}_{word.value}"] == "yes"]


def _none_ticked(form: Form, prefix: str) -> Refused | None:
    if _ticked(form, prefix):
        return None
    return Refused(422, "Something is missing", f"Tick at least one {prefix}. Nothing was recorded.", "missing")


def _password(form: Form) -> str:
    return form.values.get("password", "")  # as it was typed, with spaces around it


def _same(form: Form) -> Refused | None:
    """What is wrong with a new password that is typed twice, unseen."""
    try:
        checked_password(_password(form))
    except PersonRefused as error:
        return Refused(422, "That does not do", f"{error}. Nothing was recorded.", error.code)
    if _password(form) == form.values.get("password_again", ""):
        return None
    words = "The two passwords are not the same; type both again. Nothing was recorded."
    return Refused(422, "Something does not fit", words, "differ")


def _unconfirmed(what: str) -> Refused:
    return Refused(422, "It is not confirmed", NOT_CONFIRMED.format(what=what), "not-confirmed")


def _kept(about: str, form: Form) -> Kept:
    """What was typed, but for what is secret or has to be typed again."""
    secret = ("password", "password_again", "confirm", "current")
    return Kept(about, {name: value for name, value in form.values.items() if name not in secret})


def _person(name: str) -> str:
    return f"/people/{segment(name)}"
