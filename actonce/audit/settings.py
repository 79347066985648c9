"""Settings of the audit trail, read from the environment (prefix `ACTONCE_`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from actonce.audit.files import BYTES_MAX, FileSink
from actonce.audit.otlp import OtlpSink
from actonce.audit.sink import Sink


class AuditSettings(BaseSettings):
    """Sinks, comma separated: `file:///absolute/folder` or `otlp+http(s)://host:port/v1/logs`. None: no copy."""

    model_config = SettingsConfigDict(env_prefix="ACTONCE_AUDIT_", extra="ignore")

    sinks: Annotated[tuple[str, ...], NoDecode] = ()
    file_bytes_max: int = Field(default=BYTES_MAX, gt=0, description="a file of a folder is ended when it is as long")
    otlp_headers: str = Field(default="", description="name=value, comma separated; sent with each batch")
    deadline_s: float = Field(default=10.0, gt=0, description="one batch at one sink")
    batch_max: int = Field(default=500, ge=1)
    retry_max_s: float = Field(default=15.0, gt=0, description="pause after a failure: 1 s, doubled up to this")
    lag_warn_s: float = Field(default=30.0, gt=0, description="age of the oldest event that waits: warning `audit_lag`")
    lag_page_s: float = Field(default=300.0, gt=0, description="as above, and a person is called")
    verify_every_s: float = Field(default=3600.0, gt=0, description="chain, facts and folders are verified this often")

    @field_validator("sinks", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(u.strip() for u in value.split(",") if u.strip()) if isinstance(value, str) else value

    @field_validator("sinks")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            parts = urlsplit(url)
            is_folder = parts.scheme == "file" and not parts.netloc and len(parts.path) > 1
            if not is_folder and not (parts.scheme in ("otlp+http", "otlp+https") and parts.hostname):
                raise ValueError(
                    f"write file:///absolute/folder or otlp+http://host:port/v1/logs, not {parts.scheme}:…"
                )
        return value


def open_sinks(settings: AuditSettings) -> list[Sink]:
    """One sink for each URL. Opens nothing yet: a sink that is not there shows when it is asked."""
    headers = dict(pair.split("=", 1) for pair in settings.otlp_headers.split(",") if "=" in pair)
    found: list[Sink] = []
    for url in settings.sinks:
        parts = urlsplit(url)
        if parts.scheme == "file":
            found.append(FileSink(Path(unquote(parts.path)), settings.file_bytes_max))
        else:
            found.append(OtlpSink(url.removeprefix("otlp+"), headers, settings.deadline_s))
    return found
