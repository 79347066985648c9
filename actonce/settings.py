"""Settings of a worker and of the watcher (paging has its own), read from the environment (prefix `ACTONCE_`)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class WorkerSettings(BaseSettings):
    """What a worker process needs to know. Temporal's address comes through `temporalio.envconfig`."""

    model_config = SettingsConfigDict(env_prefix="ACTONCE_", extra="ignore")

    ledger_dsn: SecretStr = Field(description="postgresql:// URL of the ledger")
    ledger_id: str | None = Field(default=None, description="refuse every other ledger")
    memory_dsn: SecretStr | None = Field(
        default=None, description="postgresql:// URL of the memory; None: the ledger's"
    )
    memory_id: str | None = Field(default=None, description="refuse every other memory, and set none up")
    memory_embedder: str = Field(default="hashing", description="`hashing` (words), or `model2vec:NAME_OR_FOLDER`")
    memory_deadline_s: float = Field(default=3.0, gt=0, description="one recall; below the prober's 4 s")
    deployment: str = "default"
    task_queue: str = "actonce"
    build_id: str | None = Field(
        default=None, description="name of this build of the workers in histories; None: actonce and its version"
    )
    run_id: str | None = None
    journal: Path | None = Field(
        default=None, description="folder outside every backup in which permits are journaled before they are used"
    )
    world: Path | None = Field(default=None, description="JSON file of the sandbox destinations")
    credentials: Path | None = Field(default=None, description="JSON file of the lease manager and its credentials")
    shutdown_grace_s: float = Field(default=5.0, ge=0, description="how long SIGTERM waits for activities")
    sticky_timeout_s: float = Field(default=1.0, gt=0, description="a dead worker's workflows wait this long at most")
    activities_max: int = Field(default=50, ge=1)
    ledger_pool_max: int = Field(default=10, ge=1)
    watch_every_s: float = Field(default=1.0, gt=0)
    watch_idle_s: float = Field(default=10.0, gt=0)
    watch_held_again_s: float = Field(default=30.0, gt=0)
    watch_orphaned_after_s: float = Field(default=120.0, gt=0)
    probe_every_s: float = Field(default=5.0, gt=0)
    traces_url: str | None = Field(default=None, description="OTLP/HTTP address for spans; needs the extra `traces`")
    stale_after_s: float = Field(default=30.0, gt=0, description="an older reading of a dependency is not believed")
    evaluate_every_s: float = Field(default=5.0, gt=0, description="how often the alert rules are looked at")
    rules: Path | None = Field(default=None, description="alert rules of your own, instead of the shipped ones")
    metrics_host: str = Field(default="127.0.0.1", description="interface of /metrics")
    metrics_port: int = Field(default=0, ge=0, le=65535, description="0: the operating system chooses")
