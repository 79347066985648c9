"""The credentials of a deployment: the JSON file that ACTONCE_CREDENTIALS names.

    {"tick_s": 5, "vault": {"address": "https://vault:8200", "token_file": "/run/vault-token",
                            "credentials": {"main/write": {"path": "payments/creds/refunds", …}}}}

It says where secrets come from and has none in it.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from actonce.credentials.broker import Broker, BrokerSettings
from actonce.credentials.vault import VaultProvider, VaultSettings


class CredentialSettings(BaseModel):
    """See the module."""

    model_config = ConfigDict(extra="forbid")
    vault: VaultSettings
    tick_s: float = Field(default=BrokerSettings.tick_s, gt=0)
    deadline_s: float = Field(default=BrokerSettings.deadline_s, gt=0)


def load_broker(path: Path | str) -> Broker:
    """The broker of this process. Raises pydantic.ValidationError or OSError; contacts nobody."""
    settings = CredentialSettings.model_validate(json.loads(Path(path).read_text(encoding="utf-8")))
    timing = BrokerSettings(tick_s=settings.tick_s, deadline_s=settings.deadline_s)
    return Broker(VaultProvider(settings.vault), timing)
