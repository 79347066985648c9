"""The ledger's pages, for `actonce.paging`, which knows no ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from actonce.ledger import watch
from actonce.ledger.store import Ledger


class LedgerPages:
    """Implements `actonce.paging.PageBox`. Raises LedgerUnavailable when the ledger does not answer."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    async def due(self, channels: Mapping[str, Sequence[str]], repeat_s: float) -> list[dict[str, Any]]:
        return await watch.undelivered_pages(self.ledger, repeat_s, channels)

    async def sent(self, page: Mapping[str, Any], channel: str, said: str) -> None:
        await watch.page_sent(self.ledger, page["page_id"], {channel: said}, reason=page["reason"])

    async def tell(self, name: str, state: str, detail: str) -> None:
        await watch.set_dependency(
            self.ledger,
            name=name,
            kind="paging",
            state=state,
            how="what the channel said to the last page" if name != "paging" else "all channels together",
            detail=detail,
            blocks="calling a person" if name == "paging" else "",
        )
