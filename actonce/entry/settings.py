"""Settings of the entry service, read from the environment (prefix `ACTONCE_`)."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from actonce.contracts.binding import check_binding
from actonce.deployment import DeploymentSettings


class EntrySettings(DeploymentSettings):
    """What the entry service needs to know. Temporal's address comes through `temporalio.envconfig`."""

    entry_url: str | None = Field(default=None, description="where callers find the entry; its port is used")
    entry_host: str = Field(default="127.0.0.1", description="interface to listen on")
    entry_tls_cert: Path | None = Field(default=None, description="PEM file: certificate, and those that signed it")
    entry_tls_key: Path | None = Field(default=None, description="PEM file: its private key")
    entry_behind_tls_proxy: bool = Field(default=False, description="what stands in front speaks TLS with callers")
    token_cache_s: float = Field(default=5.0, ge=0, le=60, description="a revoked token may be good for so long")
    entry_port: int | None = Field(default=None, ge=0, le=65535, description="0: the operating system chooses")
    body_bytes_max: int = Field(default=128 * 1024, description="twice the largest payload that has a digest")
    start_deadline_s: float = Field(default=2.0, gt=0, description="how long a request waits for Temporal")
    start_again_s: float = Field(default=1.0, gt=0, description="pause between attempts to start what was accepted")
    backlog_max: int = Field(default=10_000, ge=1, description="more waiting tasks of one type get 503 + Retry-After")
    recording_wait_s: float = Field(default=1.0, gt=0, description="then a second first request gets 409")

    @model_validator(mode="after")
    def _not_in_the_open(self) -> EntrySettings:
        check_binding(
            self.entry_host,
            "ACTONCE_ENTRY",
            certificate=self.entry_tls_cert,
            key=self.entry_tls_key,
            behind_proxy=self.entry_behind_tls_proxy,
        )
        return self

    @property
    def address(self) -> tuple[str, int]:
        """(interface, port) to listen on: ACTONCE_ENTRY_PORT, else the port of ACTONCE_ENTRY_URL, else any."""
        if self.entry_port is not None:
            return self.entry_host, self.entry_port
        port = urlsplit(self.entry_url).port if self.entry_url else None
        return self.entry_host, port or 0
