"""What the memory answers: `found`, `empty` or `unavailable`, never a list that may mean either.

Travels through Temporal's history, so everything in it is bounded.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

TEXT_BYTES_MAX = 4000  # 50 items of this size stay well below Temporal's 2 MB for one payload
FACTS_BYTES_MAX = 2000
K_MAX = 50


class Trouble(StrEnum):
    """Why the memory could not be asked, or why its answer proves nothing."""

    TIMEOUT = "timeout"  # no answer within the deadline, whatever the port says
    UNREACHABLE = "unreachable"  # no connection, or it broke
    LOGIN_REFUSED = "login_refused"
    NOT_SET_UP = "not_set_up"
    NO_EXTENSION = "no_extension"  # pgvector is not there (any more)
    COLLECTION_MISSING = "collection_missing"
    INDEX_MISSING = "index_missing"
    INDEX_INVALID = "index_invalid"  # being built, or its build was broken off
    INDEX_WRONG = "index_wrong"  # another table, operator class or kind of index, or only a part of the rows
    INDEX_NOT_USED = "index_not_used"  # the database would answer past it
    CANARY_MISSING = "canary_missing"  # a row that must be there is not shown by the index
    INDEX_INCOMPLETE = "index_incomplete"  # fewer rows than the table holds
    ROWS_MISSING = "rows_missing"  # the tables hold less than was put there: half a restore, say
    EMBEDDER_CHANGED = "embedder_changed"  # what is stored was embedded by another, or in another dimension
    EMBEDDER_FAILED = "embedder_failed"
    FOREIGN = "foreign"  # not the memory in which this deployment remembers
    NOT_CONFIGURED = "not_configured"  # this process was composed without a memory
    FAILED = "failed"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Item(_Frozen):
    """One thing that was remembered. `distance`: of its text to the query, 0 (same) to 2."""

    key: str
    text: str
    facts: dict[str, Any]
    distance: float
    remembered_at: str


class Found(_Frozen):
    """At least one item, nearest first. `complete`: no further item passes the filter."""

    status: Literal["found"] = "found"
    items: tuple[Item, ...] = Field(min_length=1)
    complete: bool
    memory_id: str


class Empty(_Frozen):
    """Nothing passes the filter: said by an index that has just proven that it answers."""

    status: Literal["empty"] = "empty"
    memory_id: str


class Unavailable(_Frozen):
    """Nobody knows what is remembered. Never to be read as `empty`."""

    status: Literal["unavailable"] = "unavailable"
    trouble: Trouble
    words: str

    @property
    def why(self) -> str:
        """For people, with the code first."""
        return f"{self.trouble}: {self.words}"


class Remembered(_Frozen):
    """It is stored. `new` is false when it had been before."""

    status: Literal["remembered"] = "remembered"
    new: bool
    memory_id: str


Answer = Found | Empty | Remembered | Unavailable
Recalled = Annotated[Found | Empty | Unavailable, Field(discriminator="status")]


class RecallRequest(BaseModel):
    """What the activity is asked. `hold` false: the task goes on without, and says so."""

    model_config = ConfigDict(extra="ignore")

    tenant: str
    task_id: str
    step: str
    query: str
    k: int = 10
    filter: dict[str, Any] = Field(default_factory=dict)
    hold: bool = True


class RecallResult(BaseModel):
    model_config = ConfigDict(extra="ignore")

    said: Recalled


class RememberRequest(BaseModel):
    """Something to keep under `key`, once."""

    model_config = ConfigDict(extra="ignore")

    tenant: str
    task_id: str
    step: str
    key: str
    text: str
    facts: dict[str, Any]


class RememberResult(BaseModel):
    model_config = ConfigDict(extra="ignore")

    said: Annotated[Remembered | Unavailable, Field(discriminator="status")]
