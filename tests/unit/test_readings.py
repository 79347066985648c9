"""What a reading is believed to say: an old one, one that could not be made, and one that nobody can make."""

from __future__ import annotations

from typing import Any

import pytest

from actonce.ledger.readings import Reading, believe, worst


def read(name: str, state: str, *, age_s: float = 1.0, **measures: float) -> Reading:
    row: dict[str, Any] = {"name": name, "kind": name.partition(":")[0], "state": state, "age_s": age_s}
    return believe({**row, "measures": measures, "how": "asked"}, 30.0)


UP = read("temporal", "up")


@pytest.mark.parametrize("nobody", [read("destination:mail", "unknown", routes=0), read("paging", "unknown")])
def test_what_nobody_can_ask_is_told_as_that_and_puts_nothing_else_in_doubt(nobody: Reading) -> None:
    assert (nobody.state, nobody.nothing_to_ask) == ("unknown", True)
    assert worst([UP, nobody]) == "up" and worst([nobody]) == "unknown"


@pytest.mark.parametrize(
    "unknown",
    [
        read("destination:payments", "unknown", routes=3),  # one of its routes was not read
        read("destination:old", "unknown"),  # by a prober that did not say how many
        read("pollers:actonce", "unknown"),
        read("destination:mail", "unknown", age_s=31, routes=0),  # nobody looks any more
        read("paging", "unknown", age_s=31),
    ],
)
def test_what_could_be_asked_and_is_not_known_stays_a_doubt(unknown: Reading) -> None:
    assert not unknown.nothing_to_ask and worst([UP, unknown]) == "unknown"


@pytest.mark.parametrize("state", ["down", "degraded"])
def test_a_destination_that_somebody_could_read_is_as_bad_as_it_is(state: str) -> None:
    assert worst([UP, read("destination:mail", state, routes=0), read("paging", state)]) == state
