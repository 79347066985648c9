"""Settings of a worker and of the watcher, read from the environment (prefix `ACTONCE_`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


class WorkerSettings(BaseSettings):
    """What a worker process needs to know. Temporal's address comes through `temporalio.envconfig`."""

    model_config = SettingsConfigDict(env_prefix="ACTONCE_", extra="ignore")

    ledger_dsn: str = Field(description="postgresql:// URL of the ledger")
    ledger_id: str | None = Field(default=None, description="refuse every other ledger")
    deployment: str = "default"
    task_queue: str = "actonce"
    run_id: str | None = None
    world: Path | None = Field(default=None, description="JSON file of the sandbox destinations")
    page_urls: Annotated[tuple[str, ...], NoDecode] = Field(default=(), description="apprise URLs, comma separated")
    shutdown_grace_s: float = Field(default=5.0, ge=0, description="how long SIGTERM waits for activities")
    sticky_timeout_s: float = Field(default=1.0, gt=0, description="a dead worker's workflows wait this long at most")
    activities_max: int = Field(default=50, ge=1)
    ledger_pool_max: int = Field(default=10, ge=1)
    watch_every_s: float = Field(default=1.0, gt=0)
    watch_idle_s: float = Field(default=10.0, gt=0)
    watch_held_again_s: float = Field(default=30.0, gt=0)
    watch_orphaned_after_s: float = Field(default=120.0, gt=0)
    page_repeat_s: float = Field(default=900.0, gt=0, description="an unacknowledged page is repeated after this")
    probe_every_s: float = Field(default=5.0, gt=0)

    @field_validator("page_urls", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(u.strip() for u in value.split(",") if u.strip()) if isinstance(value, str) else value
