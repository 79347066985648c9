"""Names, roles, scopes and passwords: what is one and what is not."""

from __future__ import annotations

import pytest

from actonce.contracts.errors import PersonRefused
from actonce.contracts.people import (
    PASSWORD_LENGTH_MAX,
    Role,
    Scope,
    checked_name,
    checked_password,
    checked_roles,
    checked_scopes,
    scopes_of,
)

WRITES = {Scope.START, Scope.DECIDE, Scope.APPROVE, Scope.RELEASE, Scope.ACCESS, Scope.ADMIN}


def test_each_role_may_do_what_it_is_for_and_nothing_else() -> None:
    assert scopes_of([Role.VIEWER]) & WRITES == set()
    assert scopes_of([Role.OPERATOR]) & WRITES == {Scope.DECIDE, Scope.RELEASE}
    assert scopes_of([Role.APPROVER]) & WRITES == {Scope.APPROVE}
    assert scopes_of([Role.ADMIN]) & WRITES == WRITES
    assert scopes_of([Role.OPERATOR, Role.APPROVER]) & WRITES == {Scope.DECIDE, Scope.RELEASE, Scope.APPROVE}
    assert scopes_of([]) == set()


def test_no_role_lets_a_person_speak_for_another_one() -> None:
    assert Scope.ACT_FOR not in scopes_of(Role)


@pytest.mark.parametrize("name", ["d", "Dana", "dana.k", "d.o'neill+night@example.com", "José García", "李雷"])
def test_people_have_names_like_these(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize(
    "name", ["", " dana", "dana ", "da  na", "da\nna", "da\x00na", "<b>dana", "dana\u202e", "_dana", "d" * 101]
)
def test_what_would_look_like_another_name_or_like_none_is_refused(name: str) -> None:
    with pytest.raises(PersonRefused) as refused:
        checked_name(name)
    assert refused.value.code == "name"


def test_a_name_is_one_name_however_its_letters_were_composed() -> None:
    assert checked_name("Jose\u0301") == checked_name("José")


@pytest.mark.parametrize("password", ["", "eleven-char", "x" * (PASSWORD_LENGTH_MAX + 1)])
def test_a_password_that_cannot_be_set_is_not_repeated_in_the_refusal(password: str) -> None:
    with pytest.raises(PersonRefused) as refused:
        checked_password(password)
    assert refused.value.code == "password"
    assert not password or password not in str(refused.value)


def test_unknown_words_and_no_words_are_no_roles_and_no_scopes() -> None:
    assert checked_roles(["viewer", "viewer"]) == {Role.VIEWER}
    assert checked_scopes(["read", "act_for"]) == {Scope.READ, Scope.ACT_FOR}
    for check, words in (
        (checked_roles, ["root"]),
        (checked_roles, []),
        (checked_scopes, ["write"]),
        (checked_scopes, []),
    ):
        with pytest.raises(PersonRefused):
            check(words)
