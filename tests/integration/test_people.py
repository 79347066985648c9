"""Persons, sessions and tokens on a real PostgreSQL: who is let in, who is not, and what is kept of it."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from actonce.contracts.errors import PersonRefused, SignInRefused
from actonce.contracts.people import Person, Role, Scope
from actonce.ledger import people, sessions, tokens
from actonce.ledger.audit_facts import check_facts
from actonce.ledger.migrate import migrate
from actonce.ledger.sessions import Limits
from actonce.ledger.store import Ledger, many, one

HERE = "192.0.2.7"
PASSWORD = "correct horse battery"
ISSUER = "https://id.example.com"
_places = (f"198.51.100.{n}" for n in itertools.count(1))  # so that tests do not use up each other's attempts


@pytest_asyncio.fixture
async def ledger(fresh_dsn: str) -> AsyncIterator[Ledger]:
    migrate(fresh_dsn)
    async with Ledger(fresh_dsn) as opened:
        yield opened


async def dana(ledger: Ledger, *roles: Role, password: str | None = PASSWORD) -> Person:
    return await people.add_person(ledger, "Dana", roles or (Role.OPERATOR,), password=password, by="setup")


async def refused(ledger: Ledger, name: str, password: str, source: str = HERE, **more: Any) -> SignInRefused:
    with pytest.raises(SignInRefused) as caught:
        await sessions.sign_in(ledger, name, password, source, **more)
    return caught.value


async def everything(ledger: Ledger) -> str:
    """All that the ledger holds of people, as text."""
    tables = ("person", "session", "token", "sign_in_count", "audit")
    async with ledger.transaction() as connection:
        rows = [row for table in tables for row in await many(connection, f"SELECT * FROM actonce.{table}")]  # type: ignore[arg-type]
    return json.dumps(rows, default=str)


async def kinds(ledger: Ledger) -> list[tuple[str, dict[str, Any]]]:
    async with ledger.transaction() as connection:
        rows = await many(connection, "SELECT kind, body FROM actonce.audit ORDER BY audit_id")
    return [(row["kind"], row["body"]) for row in rows]


# sessions ---------------------------------------------------------------------------------------------------------


async def test_a_right_password_begins_a_session_that_outlives_its_process(ledger: Ledger) -> None:
    await dana(ledger)
    session, value = await sessions.sign_in(ledger, "dana", PASSWORD, HERE)
    assert session.person.name == "Dana"
    async with Ledger(ledger.dsn) as another:
        again = await sessions.session_of(another, value)
    assert again is not None and (again.session_id, again.csrf) == (session.session_id, session.csrf)
    assert again.person.scopes == {Scope.READ, Scope.DECIDE, Scope.RELEASE}
    assert session.csrf not in repr(session)


async def test_wrong_password_unknown_name_no_password_and_disabled_get_one_answer(ledger: Ledger) -> None:
    await dana(ledger)
    await people.add_person(ledger, "nopass", [Role.VIEWER], password=None, by="setup")
    await people.add_person(ledger, "gone", [Role.VIEWER], password=PASSWORD, by="setup")
    await people.disable(ledger, "gone", by="setup")
    answers = [
        await refused(ledger, name, password)
        for name, password in (("Dana", "wrong"), ("nobody", PASSWORD), ("nopass", ""), ("gone", PASSWORD))
    ]
    assert {(str(a), a.code, a.retry_after_s) for a in answers} == {(str(answers[0]), "wrong", None)}


async def test_an_unknown_name_costs_the_same_hashing_as_a_wrong_password(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: one verification each, with the same parameters."""
    seen: list[str] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(people.HASHER, name)

        def verify(self, kept: str, password: bytes) -> bool:
            seen.append(kept.rpartition("$")[0].rpartition("$")[0])
            return people.HASHER.verify(kept, password)

    monkeypatch.setattr(sessions, "HASHER", Counting())
    await dana(ledger)
    await refused(ledger, "Dana", "wrong")
    await refused(ledger, "nobody", "wrong")
    assert len(seen) == 2 and seen[0] == seen[1]


async def test_sessions_end_by_signing_out_by_time_by_idleness_and_with_the_password(ledger: Ledger) -> None:
    await dana(ledger)
    _, out = await sessions.sign_in(ledger, "Dana", PASSWORD, HERE)
    _, kept = await sessions.sign_in(ledger, "Dana", PASSWORD, HERE)
    _, short = await sessions.sign_in(ledger, "Dana", PASSWORD, HERE, session_s=0.0)
    await sessions.sign_out(ledger, out)
    assert await sessions.session_of(ledger, out) is None
    assert await sessions.session_of(ledger, short) is None
    assert await sessions.session_of(ledger, kept, idle_s=0.0) is None
    assert await sessions.session_of(ledger, "nothing") is None
    assert await sessions.session_of(ledger, kept) is not None
    await people.set_password(ledger, "dana", "another horse battery", by="dana")
    assert await sessions.session_of(ledger, kept) is None
    assert (await refused(ledger, "Dana", PASSWORD)).code == "wrong"
    await sessions.sign_in(ledger, "Dana", "another horse battery", HERE)


async def test_who_is_disabled_is_signed_out_at_once_and_not_signed_in_again_by_being_enabled(ledger: Ledger) -> None:
    await dana(ledger)
    _, value = await sessions.sign_in(ledger, "Dana", PASSWORD, HERE)
    assert (await people.disable(ledger, "dana", by="root")).scopes == set()
    assert await sessions.session_of(ledger, value) is None
    await people.enable(ledger, "dana", by="root")
    assert await sessions.session_of(ledger, value) is None
    await sessions.sign_in(ledger, "Dana", PASSWORD, HERE)


async def test_a_session_has_the_roles_of_now(ledger: Ledger) -> None:
    await dana(ledger, Role.OPERATOR)
    _, value = await sessions.sign_in(ledger, "Dana", PASSWORD, HERE)
    await people.set_roles(ledger, "Dana", [Role.VIEWER], by="root")
    session = await sessions.session_of(ledger, value)
    assert session is not None and session.person.scopes == {Scope.READ}


# how often it may be tried ----------------------------------------------------------------------------------------


async def test_too_many_attempts_of_a_name_are_refused_also_after_a_restart_and_with_the_right_password(
    ledger: Ledger,
) -> None:
    await dana(ledger)
    for _ in range(5):
        assert (await refused(ledger, "dana", "wrong", next(_places))).code == "wrong"
    async with Ledger(ledger.dsn) as another:  # a process that has just started
        late = await refused(another, "DANA", PASSWORD, next(_places))
    assert late.code == "too_many" and 0 < (late.retry_after_s or 0) <= 900
    await people.set_password(ledger, "dana", PASSWORD, by="root")  # the administrator's way out
    await sessions.sign_in(ledger, "dana", PASSWORD, next(_places))


async def test_another_spelling_that_the_database_takes_for_the_name_has_no_attempts_of_its_own(ledger: Ledger) -> None:
    """To PostgreSQL a capital I with a dot is an i, to Python it is two characters: each would be counted apart."""
    await people.add_person(ledger, "Iris", [Role.VIEWER], password=PASSWORD, by="setup")
    spellings = ("iris", "İris", "IRİS", "İRİS", "irİs", "irIs")
    codes = [(await refused(ledger, name, "wrong", next(_places))).code for name in spellings]
    assert codes == ["wrong"] * 5 + ["too_many"]


async def test_an_unknown_name_is_limited_like_a_known_one(ledger: Ledger) -> None:
    codes = [(await refused(ledger, "nobody", "wrong", next(_places))).code for _ in range(6)]
    assert codes == ["wrong"] * 5 + ["too_many"]


async def test_many_guesses_at_once_are_no_way_round_the_limit(ledger: Ledger) -> None:
    await dana(ledger)
    limits = Limits(name_max=2)
    answers = await asyncio.gather(*(refused(ledger, "dana", f"guess {n}", limits=limits) for n in range(6)))
    assert sorted(answer.code for answer in answers) == ["too_many"] * 4 + ["wrong"] * 2


async def test_one_place_cannot_try_many_names_and_one_network_is_one_place(ledger: Ledger) -> None:
    limits = Limits(source_max=2)
    sources = ("2001:db8:1:2::1", "2001:db8:1:2:ffff::2", "2001:db8:1:2::3", "2001:db8:1:3::1")
    codes = [
        (await refused(ledger, f"name{n}", "wrong", source, limits=limits)).code for n, source in enumerate(sources)
    ]
    assert codes == ["wrong", "wrong", "too_many", "wrong"]


async def test_the_limit_ends_with_its_window_and_a_right_password_forgives_its_name(ledger: Ledger) -> None:
    await dana(ledger)
    over = Limits(name_max=1, window_s=0.0)
    assert [(await refused(ledger, "dana", "wrong", limits=over)).code for _ in range(3)] == ["wrong"] * 3
    strict = Limits(name_max=2, source_max=2)
    for _ in range(3):
        await sessions.sign_in(ledger, "dana", PASSWORD, "203.0.113.1", limits=strict)


# people -----------------------------------------------------------------------------------------------------------


async def test_two_people_never_have_names_that_differ_in_case_only(ledger: Ledger) -> None:
    await dana(ledger)
    with pytest.raises(PersonRefused) as caught:
        await people.add_person(ledger, "DANA", [Role.ADMIN], password=PASSWORD, by="setup")
    assert caught.value.code == "taken"


async def test_the_last_administrator_stays_one_also_when_two_remove_each_other(ledger: Ledger) -> None:
    for name in ("ann", "ben"):
        await people.add_person(ledger, name, [Role.ADMIN], password=None, by="setup")
    ends = await asyncio.gather(
        people.disable(ledger, "ann", by="ben"),
        people.set_roles(ledger, "ben", [Role.VIEWER], by="ann"),
        return_exceptions=True,
    )
    assert [type(end) for end in ends].count(PersonRefused) == 1, ends
    left = [person for person in await people.list_people(ledger) if Scope.ADMIN in person.scopes]
    assert len(left) == 1


# identity providers -----------------------------------------------------------------------------------------------


async def test_whom_a_provider_vouches_for_is_the_same_person_whatever_they_are_called_next(ledger: Ledger) -> None:
    first, _ = await sessions.sign_in_by_provider(ledger, ISSUER, "sub-1", "ann@example.com", [Role.VIEWER])
    again, value = await sessions.sign_in_by_provider(ledger, ISSUER, "sub-1", "ann@other.example", [Role.APPROVER])
    assert first.person.name == again.person.name == "ann@example.com"
    session = await sessions.session_of(ledger, value)
    assert session is not None and session.person.roles == {Role.APPROVER}
    assert (await refused(ledger, "ann@example.com", "")).code == "wrong"  # there is no password, and none fits


async def test_a_provider_can_take_over_nobody_and_let_in_nobody_without_a_role(ledger: Ledger) -> None:
    await dana(ledger, Role.ADMIN)
    for subject, name, roles, code in (
        ("sub-1", "dana", [Role.VIEWER], "taken"),
        ("sub-2", "eve", [], "no_role"),
        ("sub-3", "<b>", [Role.VIEWER], "taken"),
    ):
        with pytest.raises(SignInRefused) as caught:
            await sessions.sign_in_by_provider(ledger, ISSUER, subject, name, roles)
        assert caught.value.code == code
    await sessions.sign_in_by_provider(ledger, ISSUER, "sub-4", "finn", [Role.VIEWER])
    await people.disable(ledger, "finn", by="root")
    with pytest.raises(SignInRefused):
        await sessions.sign_in_by_provider(ledger, ISSUER, "sub-4", "finn", [Role.ADMIN])
    assert [(p.name, p.roles) for p in await people.list_people(ledger)] == [
        ("Dana", {Role.ADMIN}),
        ("finn", {Role.VIEWER}),
    ]


async def test_whom_a_provider_gives_no_role_any_more_keeps_none_that_it_gave_before(ledger: Ledger) -> None:
    _, value = await sessions.sign_in_by_provider(ledger, ISSUER, "sub-5", "gus", [Role.OPERATOR])
    with pytest.raises(SignInRefused):
        await sessions.sign_in_by_provider(ledger, ISSUER, "sub-5", "gus", [])
    assert await sessions.session_of(ledger, value) is None
    gus = await people.get_person(ledger, "gus")
    assert gus is not None and gus.scopes == frozenset()  # so a token of theirs opens nothing either


@pytest.mark.parametrize("said", [[Role.VIEWER], []])
async def test_no_provider_takes_the_last_admins_role_and_any_other_admins_it_does(
    ledger: Ledger, said: list[Role]
) -> None:
    await sessions.sign_in_by_provider(ledger, ISSUER, "sub-6", "hal", [Role.ADMIN])
    kept, value = await sessions.sign_in_by_provider(ledger, ISSUER, "sub-6", "hal", said)
    assert kept.person.roles == {Role.ADMIN, *said} and await sessions.session_of(ledger, value) is not None
    async with ledger.transaction() as connection:
        told = await one(connection, "SELECT body FROM actonce.audit WHERE kind = 'sign_in.last_admin_kept'")
    assert told is not None and told["body"] == {"person": "hal", "said": [role.value for role in said]}
    await people.add_person(ledger, "ida", [Role.ADMIN], password=None, by="hal")
    if said:
        after, _ = await sessions.sign_in_by_provider(ledger, ISSUER, "sub-6", "hal", said)
        assert after.person.roles == set(said)
    else:
        with pytest.raises(SignInRefused) as caught:
            await sessions.sign_in_by_provider(ledger, ISSUER, "sub-6", "hal", said)
        assert caught.value.code == "no_role" and await sessions.session_of(ledger, value) is None


async def test_two_last_admins_whom_a_provider_demotes_at_once_leave_one(ledger: Ledger) -> None:
    for subject in ("sub-7", "sub-8"):
        await sessions.sign_in_by_provider(ledger, ISSUER, subject, subject, [Role.ADMIN])
    await asyncio.gather(
        *(sessions.sign_in_by_provider(ledger, ISSUER, s, s, [Role.VIEWER]) for s in ("sub-7", "sub-8"))
    )
    left = [person for person in await people.list_people(ledger) if Role.ADMIN in person.roles]
    assert len(left) == 1


# tokens -----------------------------------------------------------------------------------------------------------


async def test_a_token_is_known_by_its_value_until_it_is_revoked_or_over(ledger: Ledger) -> None:
    await dana(ledger)
    token, value = await tokens.create_token(ledger, "night job", [Scope.READ], by="root", person="dana")
    shown = await tokens.presented(ledger, value)
    assert shown is not None and shown.token == token and not shown.expired
    assert shown.owner is not None and shown.owner.name == token.person == "Dana"
    _, short = await tokens.create_token(ledger, "over", [Scope.READ], by="root", lifetime_s=0.0)
    over = await tokens.presented(ledger, short)
    assert over is not None and over.expired
    gone = await tokens.revoke_token(ledger, token.token_id, by="root")
    assert (await tokens.revoke_token(ledger, token.token_id, by="else")).revoked_by == gone.revoked_by == "root"
    shown = await tokens.presented(ledger, value)
    assert shown is not None and shown.token.revoked_at is not None
    for nothing in ("", "actonce_", value[:-1], value + "x", "actonce_" + "A" * 43, f"{value}\n"):
        assert await tokens.presented(ledger, nothing) is None


async def test_a_token_that_speaks_for_others_is_nobodys_own_and_people_must_exist(ledger: Ledger) -> None:
    await dana(ledger)
    with pytest.raises(PersonRefused):
        await tokens.create_token(ledger, "console", [Scope.ACT_FOR], by="root", person="dana")
    with pytest.raises(PersonRefused):
        await tokens.create_token(ledger, "console", [Scope.READ], by="root", person="nobody")
    with pytest.raises(PersonRefused):
        await tokens.revoke_token(ledger, 4711, by="root")
    assert await tokens.list_tokens(ledger) == []


# what is kept -----------------------------------------------------------------------------------------------------


async def test_every_change_has_its_event_and_no_secret_is_in_the_ledger_or_the_log(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """Also what somebody typed into the wrong field."""
    caplog.set_level(logging.DEBUG)
    await dana(ledger)
    await people.add_person(ledger, "root", [Role.ADMIN], password=None, by="setup")
    session, cookie = await sessions.sign_in(ledger, "dana", PASSWORD, HERE)
    await refused(ledger, "hunter2-in-the-name-field", "mistyped-password")
    for _ in range(6):
        await refused(ledger, "dana", "mistyped-password")
    await people.set_password(ledger, "dana", "another horse battery", by="root")
    await people.set_roles(ledger, "dana", [Role.VIEWER], by="root")
    token, value = await tokens.create_token(ledger, "t", [Scope.READ], by="root")
    await tokens.revoke_token(ledger, token.token_id, by="root")
    await people.disable(ledger, "dana", by="root")
    kept = await everything(ledger) + caplog.text
    for secret in (PASSWORD, "another horse", "mistyped", "hunter2", cookie, value):
        assert secret not in kept
    events = await kinds(ledger)
    told = json.dumps(events)
    assert session.csrf not in told and "$argon2" not in told
    assert [kind for kind, _ in events] == (
        ["person.added", "person.added", "session.began"]
        + ["sign_in.refused"] * 6
        + ["sign_in.blocked", "session.ended", "person.changed", "person.changed"]
        + ["token.created", "token.revoked", "person.changed"]
    )
    assert [body["changed_what"] for kind, body in events if kind == "person.changed"] == [
        "password",
        "roles",
        "disabled",
    ]
    async with ledger.transaction() as connection:
        assert [finding async for finding in check_facts(connection)] == []


async def test_an_event_of_a_person_that_says_something_else_than_the_row_is_found(ledger: Ledger) -> None:
    """The check can fail: a token whose scopes were changed behind the ledger's back."""
    await tokens.create_token(ledger, "t", [Scope.READ], by="root")
    async with ledger.transaction() as connection:
        await connection.execute("UPDATE actonce.token SET scopes = '{admin}'")
    async with ledger.transaction() as connection:
        found = [finding async for finding in check_facts(connection)]
    assert [(f.code, "token.created" in f.words) for f in found] == [("event_differs", True)]
