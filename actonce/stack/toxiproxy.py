"""The Toxiproxy server. Ready means that our own process answers with the version that was measured."""

from __future__ import annotations

import httpx

from actonce.stack import binaries
from actonce.stack.part import NotReady, Part
from actonce.stack.ports import HOST


class Toxiproxy(Part):
    """Its proxies live in its memory: after a restart whoever made them makes them again."""

    port_names = ("api",)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.ports['api']}"

    def command(self) -> list[str]:
        return [str(binaries.toxiproxy()), "-host", HOST, "-port", str(self.ports["api"])]

    async def check_ready(self) -> None:
        try:
            version = await toxiproxy_version(self.url)
        except httpx.HTTPError as error:
            raise NotReady(str(error)) from error
        if version != binaries.TOXIPROXY_VERSION:
            raise NotReady(f"version {version} answers, {binaries.TOXIPROXY_VERSION} is needed")


async def toxiproxy_version(url: str) -> str:
    """The version that the server at `url` reports. Raises httpx.HTTPError when it cannot be asked."""
    async with httpx.AsyncClient(timeout=2, trust_env=False) as client:
        answer = await client.get(f"{url}/version")
        answer.raise_for_status()
        return str(answer.json()["version"])
