"""What a person may set: every part can be pointed elsewhere, then it is used and checked, not started.

Settings that a shell took over from a stack of ours (`eval "$(actonce env)"`) are not such a wish: a stack started
from that shell would otherwise look for the servers of the one before it. They are told apart by that stack's own
record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field
from temporalio.envconfig import ClientConfig, ClientConnectConfig

# Any of these says which Temporal to use, in the words of `temporalio.envconfig`.
TEMPORAL_ELSEWHERE = ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE")
FOLDER_VARIABLE = "ACTONCE_STACK_FOLDER"
SETTINGS_FILE = "env.json"


class StackSettings(BaseModel):
    """Read from the environment by `load`, with the prefix ACTONCE_."""

    ledger_dsn: str | None = None
    toxiproxy_url: str | None = None
    temporal_ui_url: str | None = None
    task_queue: str | None = None
    run_id: str | None = None
    environment: dict[str, str] = Field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """What the person wants, without what another stack put into this shell."""
        own = own_environment(environment)
        names = set(cls.model_fields) - {"environment"}
        found = {name: own[f"ACTONCE_{name.upper()}"] for name in names if own.get(f"ACTONCE_{name.upper()}")}
        return cls.model_validate(found | {"environment": own})

    @property
    def temporal_elsewhere(self) -> bool:
        return any(self.environment.get(name) for name in TEMPORAL_ELSEWHERE)

    def temporal_config(self) -> ClientConnectConfig:
        """How to connect to the person's Temporal."""
        return ClientConfig.load_client_connect_config(override_env_vars=self.environment)


def own_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment less what the stack that ACTONCE_STACK_FOLDER names has put there."""
    folder = environment.get(FOLDER_VARIABLE)
    if not folder:
        return dict(environment)
    file = Path(folder, SETTINGS_FILE)
    theirs: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    return {k: v for k, v in environment.items() if k != FOLDER_VARIABLE and theirs.get(k) != v}
