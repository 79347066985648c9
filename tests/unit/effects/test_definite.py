"""What a task's outcome says of a failure that trying again cannot cure."""

from __future__ import annotations

import pytest
from temporalio.exceptions import ActivityError, ApplicationError, RetryState

from actonce.effects.guard import FINAL_ERRORS, _definite


def failed(cause: ApplicationError) -> ActivityError:
    error = ActivityError(
        "activity failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="worker",
        activity_type="actonce.issue.v1",
        activity_id="1",
        retry_state=RetryState.NON_RETRYABLE_FAILURE,
    )
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("kind", FINAL_ERRORS)
def test_a_definite_failure_says_its_kind_once(kind: str) -> None:
    definite = _definite(failed(ApplicationError("no amount; nothing was sent", type=kind)))
    assert isinstance(definite, ApplicationError) and definite.non_retryable
    assert str(definite) == f"{kind}: no amount; nothing was sent"


def test_what_may_be_cured_is_handed_on_as_it_is() -> None:
    error = failed(ApplicationError("the ledger did not answer", type="LedgerUnavailable"))
    assert _definite(error) is error
