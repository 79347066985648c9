"""Settings of paging, read from the environment (prefix `ACTONCE_`)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


class PagingSettings(BaseSettings):
    """One apprise URL for each channel, comma separated; `actonce-file:///path` appends JSON lines to a file.

    `page_urls` get pages, `page_warning_urls` warnings; a URL in both is one channel that gets both.
    """

    model_config = SettingsConfigDict(env_prefix="ACTONCE_", extra="ignore")

    page_urls: Annotated[tuple[str, ...], NoDecode] = Field(default=(), description="apprise URLs, comma separated")
    page_warning_urls: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="the same for channels that also, or only, get what can wait for the day"
    )
    page_repeat_s: float = Field(default=900.0, gt=0, description="an unacknowledged page is repeated after this")
    page_deadline_s: float = Field(default=10.0, gt=0, description="one channel, one page; above apprise's 4 s + 4 s")
    page_retry_s: float = Field(default=1.0, gt=0, description="pause of a channel after a failure; doubles each time")
    page_retry_max_s: float = Field(default=60.0, gt=0)
    entry_url: str | None = Field(default=None, description="told in each page, for whoever acts on it")
    console_url: str | None = Field(default=None, description="where people find the console: each page links into it")

    @field_validator("page_urls", "page_warning_urls", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(u.strip() for u in value.split(",") if u.strip()) if isinstance(value, str) else value
