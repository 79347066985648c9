"""The credentials of a deployment: the JSON file that ACTONCE_CREDENTIALS names.

    {"tick_s": 5, "vault": {"address": "https://vault:8200", "token_file": "/run/vault-token",
                            "credentials": {"main/write": {"path": "payments/creds/refunds", …}}}}
    {"sealed_file": {"path": "/etc/actonce/credentials.sealed", "key_file": "/run/secrets/credentials-key"}}

One of the two. It says where secrets come from and has none in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from actonce.credentials.broker import Broker, BrokerSettings
from actonce.credentials.file import FileProvider
from actonce.credentials.provider import Provider
from actonce.credentials.sealed import SealedFile
from actonce.credentials.vault import VaultProvider, VaultSettings


class SealedFileSettings(BaseModel):
    """Which encrypted file, and where its key is: a file, or an environment variable's name."""

    model_config = ConfigDict(extra="forbid")
    path: Path
    key_file: Path | None = None
    key_env: str | None = None

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        self.file()
        return self

    def file(self) -> SealedFile:
        return SealedFile(self.path, self.key_file, self.key_env)


class CredentialSettings(BaseModel):
    """See the module."""

    model_config = ConfigDict(extra="forbid")
    vault: VaultSettings | None = None
    sealed_file: SealedFileSettings | None = None
    tick_s: float = Field(default=BrokerSettings.tick_s, gt=0)
    deadline_s: float = Field(default=BrokerSettings.deadline_s, gt=0)

    @model_validator(mode="after")
    def _one_manager(self) -> Self:
        if (self.vault is None) == (self.sealed_file is None):
            raise ValueError("name exactly one lease manager: vault or sealed_file")
        return self

    def provider(self) -> Provider:
        """The one that is named. Contacts nobody, opens nothing."""
        if self.vault is not None:
            return VaultProvider(self.vault)
        assert self.sealed_file is not None
        return FileProvider(self.sealed_file.file())


def load_broker(path: Path | str) -> Broker:
    """The broker of this process. Raises pydantic.ValidationError or OSError; contacts nobody."""
    settings = CredentialSettings.model_validate(json.loads(Path(path).read_text(encoding="utf-8")))
    return Broker(settings.provider(), BrokerSettings(tick_s=settings.tick_s, deadline_s=settings.deadline_s))
