"""Settings of the console, read from the environment (prefix `ACTONCE_`)."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from actonce.contracts.binding import check_binding
from actonce.deployment import DeploymentSettings


class ConsoleSettings(DeploymentSettings):
    """What the console needs to know."""

    console_url: str | None = Field(default=None, description="where people find it; its port is used")
    console_host: str = Field(default="127.0.0.1", description="interface to listen on")
    console_tls_cert: Path | None = Field(default=None, description="PEM file: certificate, and those that signed it")
    console_tls_key: Path | None = Field(default=None, description="PEM file: its private key")
    console_behind_tls_proxy: bool = Field(default=False, description="what stands in front speaks TLS with browsers")
    console_port: int | None = Field(default=None, ge=0, le=65535, description="0: the operating system chooses")

    console_token: SecretStr | None = Field(
        default=None, description="opens the entry service for whoever is signed in (scope `act_for`)"
    )
    entry_url: str | None = Field(default=None, description="the entry service, through which it acts")

    @model_validator(mode="after")
    def _not_in_the_open(self) -> ConsoleSettings:
        check_binding(
            self.console_host,
            "ACTONCE_CONSOLE",
            certificate=self.console_tls_cert,
            key=self.console_tls_key,
            behind_proxy=self.console_behind_tls_proxy,
        )
        return self

    @property
    def address(self) -> tuple[str, int]:
        """(interface, port) to listen on: ACTONCE_CONSOLE_PORT, else the port of ACTONCE_CONSOLE_URL, else any."""
        if self.console_port is not None:
            return self.console_host, self.console_port
        port = urlsplit(self.console_url).port if self.console_url else None
        return self.console_host, port or 0
