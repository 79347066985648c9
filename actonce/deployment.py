"""What the entry service and the console both need to know of their deployment, read from `ACTONCE_…`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from actonce.contracts.messages import DecisionAction


class TaskType(BaseModel):
    """Which workflow runs a task type, and on which task queue (None: the deployment's)."""

    workflow: str
    task_queue: str | None = None


def _shipped() -> dict[str, TaskType]:
    newest = {"refund": "v2", "batch": "v1", "single": "v1"}  # a running task goes on with the version it began with
    return {name: TaskType(workflow=f"{name}.{version}") for name, version in newest.items()}


class DeploymentSettings(BaseSettings):
    """One ledger, one task queue, and the task types that are known."""

    model_config = SettingsConfigDict(env_prefix="ACTONCE_", extra="ignore")

    ledger_dsn: SecretStr = Field(description="postgresql:// URL of the ledger")
    ledger_id: str | None = Field(default=None, description="refuse every other ledger; nothing is migrated then")
    deployment: str = "default"
    task_queue: str = "actonce"
    task_types: dict[str, TaskType] = Field(
        default_factory=_shipped, description="JSON: task type to workflow name, or to {workflow, task_queue}"
    )
    second_person: Annotated[tuple[DecisionAction, ...], NoDecode] = Field(
        default=(), description="decisions that somebody else must confirm, comma separated"
    )
    temporal_ui_url: str | None = None
    run_id: str | None = None
    stale_after_s: float = Field(default=30.0, gt=0, description="an older reading of a dependency is not believed")
    body_within_s: float = Field(default=15.0, gt=0, description="a body that takes longer to arrive gets 408")

    @field_validator("second_person", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(word.strip() for word in value.split(",") if word.strip()) if isinstance(value, str) else value

    @field_validator("task_types", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: {"workflow": one} if isinstance(one, str) else one for name, one in value.items()}
        return value

    def queue_of(self, task_type: str) -> str:
        """The task queue of a task type that is known."""
        return self.task_types[task_type].task_queue or self.task_queue
