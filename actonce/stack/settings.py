"""What a person may set: every part can be pointed elsewhere, then it is used and checked, not started."""

from __future__ import annotations

import os

from pydantic_settings import BaseSettings, SettingsConfigDict

# Any of these says which Temporal to use, in the words of `temporalio.envconfig`.
TEMPORAL_ELSEWHERE = ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE")


class StackSettings(BaseSettings):
    """Read from the environment."""

    model_config = SettingsConfigDict(env_prefix="ACTONCE_", extra="ignore")

    ledger_dsn: str | None = None
    toxiproxy_url: str | None = None
    temporal_ui_url: str | None = None
    task_queue: str | None = None
    run_id: str | None = None

    @property
    def temporal_elsewhere(self) -> bool:
        return any(os.environ.get(name) for name in TEMPORAL_ELSEWHERE)
