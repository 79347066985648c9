"""Settings of the entry service, read from the environment (prefix `ACTONCE_`)."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class TaskType(BaseModel):
    """Which workflow runs a task type, and on which task queue (None: the deployment's)."""

    workflow: str
    task_queue: str | None = None


def _shipped() -> dict[str, TaskType]:
    newest = {"refund": "v2", "batch": "v1", "single": "v1"}  # a running task goes on with the version it began with
    return {name: TaskType(workflow=f"{name}.{version}") for name, version in newest.items()}


class EntrySettings(BaseSettings):
    """What the entry service needs to know. Temporal's address comes through `temporalio.envconfig`."""

    model_config = SettingsConfigDict(env_prefix="ACTONCE_", extra="ignore")

    ledger_dsn: SecretStr = Field(description="postgresql:// URL of the ledger")
    ledger_id: str | None = Field(default=None, description="refuse every other ledger; nothing is migrated then")
    deployment: str = "default"
    task_queue: str = "actonce"
    task_types: dict[str, TaskType] = Field(
        default_factory=_shipped, description="JSON: task type to workflow name, or to {workflow, task_queue}"
    )
    entry_url: str | None = Field(default=None, description="where callers find the entry; its port is used")
    entry_host: str = Field(default="127.0.0.1", description="interface to listen on")
    entry_port: int | None = Field(default=None, ge=0, le=65535, description="0: the operating system chooses")
    temporal_ui_url: str | None = None
    run_id: str | None = None
    body_bytes_max: int = Field(default=128 * 1024, description="twice the largest payload that has a digest")
    stale_after_s: float = Field(default=30.0, gt=0, description="an older reading of a dependency is not believed")
    start_deadline_s: float = Field(default=2.0, gt=0, description="how long a request waits for Temporal")
    start_again_s: float = Field(default=1.0, gt=0, description="pause between attempts to start what was accepted")
    backlog_max: int = Field(default=10_000, ge=1, description="more waiting tasks of one type get 503 + Retry-After")
    recording_wait_s: float = Field(default=1.0, gt=0, description="then a second first request gets 409")

    @field_validator("task_types", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: {"workflow": one} if isinstance(one, str) else one for name, one in value.items()}
        return value

    def queue_of(self, task_type: str) -> str:
        """The task queue of a task type that is known."""
        return self.task_types[task_type].task_queue or self.task_queue

    @property
    def address(self) -> tuple[str, int]:
        """(interface, port) to listen on: ACTONCE_ENTRY_PORT, else the port of ACTONCE_ENTRY_URL, else any."""
        if self.entry_port is not None:
            return self.entry_host, self.entry_port
        port = urlsplit(self.entry_url).port if self.entry_url else None
        return self.entry_host, port or 0
