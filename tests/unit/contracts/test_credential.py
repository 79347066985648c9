"""The access policy's decision, and contracts that lease."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from actonce.contracts.contract import Contract
from actonce.contracts.credential import AccessPolicy, authorise
from actonce.contracts.errors import ContractError
from actonce.destinations.base import Destination
from tests.unit.effects.builders import contract

ASKED: dict[str, Any] = {
    "principal": "agent",
    "destination": "payments",
    "action": "refund",
    "scope": "payments:write",
    "granted": ("payments:write",),
}
RULE = {"principal": "agent", "destination": "payments", "actions": ["refund"], "scope": "payments:write"}


def policy(**change: Any) -> AccessPolicy:
    return AccessPolicy.model_validate({"version": 1, "rules": [RULE | change]})


def test_a_rule_and_the_lease_must_both_allow_it() -> None:
    assert authorise(policy(), **ASKED).allowed


@pytest.mark.parametrize(
    "change",
    [{"principal": "other"}, {"destination": "tickets"}, {"actions": ["look"]}, {"scope": "payments:read"}],
    ids=str,
)
def test_what_no_rule_allows_is_refused(change: dict[str, Any]) -> None:
    decided = authorise(policy(**change), **ASKED)
    assert not decided.allowed and "does not allow" in decided.words


@pytest.mark.parametrize("granted", [(), ("payments:read",)], ids=str)
def test_a_lease_without_the_scope_is_refused_whatever_the_policy_says(granted: tuple[str, ...]) -> None:
    decided = authorise(policy(), **{**ASKED, "granted": granted})
    assert not decided.allowed and "the lease grants" in decided.words


@pytest.mark.parametrize("change", [{"principal": "*"}, {"scope": "payments:*"}, {"actions": ["*"]}], ids=str)
def test_a_policy_has_no_wildcards(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="nobody wrote down"):
        policy(**change)


def leasing(**change: Any) -> Contract:
    plain = contract()
    uses = [{"name": plain.write.credential, "scope": "x"}]
    return Contract.model_validate(plain.model_dump() | {"credentials": uses} | change)


def test_a_contract_that_leases_nothing_keeps_its_digest() -> None:
    """A ledger that knows it from before there were leases must not refuse it as changed."""
    plain = contract()
    assert plain.digest == contract().digest
    body = plain.model_dump(mode="json")
    assert body.pop("credentials") == []
    assert Contract.model_validate(body).digest == plain.digest
    assert leasing().digest != plain.digest


def test_the_write_is_checked_against_the_credential_of_its_own_label() -> None:
    found = leasing().write_credential
    assert found is not None and found.name == contract().write.credential
    assert contract().write_credential is None


def test_a_credential_declared_twice_is_refused() -> None:
    use = {"name": "a", "scope": "x"}
    with pytest.raises(ContractError, match="twice"):
        leasing(credentials=[use, use])


def test_a_destination_that_leases_needs_a_broker() -> None:
    async def send(call: Any) -> Any:
        raise NotImplementedError

    with pytest.raises(ContractError, match="give the destination its `credentials`"):
        Destination(leasing(routes=(), has_beacon=False, completion="receipt"), send=send)
