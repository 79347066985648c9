"""Pages leave here for people, over channels that fail apart.

Promises: every page that is due goes to every channel; a channel that fails, hangs or is misconfigured stops no other
one and is retried; an unacknowledged page is repeated; what each channel said is recorded where the page is, and total
failure is told to the dependency page and the log. Does not promise that a page arrives once: a channel whose answer is
lost is asked again, and two pages wake nobody less than none.
"""

from actonce.paging.alarm import LedgerAlarm
from actonce.paging.channels import Channel, ChannelError, open_channels
from actonce.paging.pager import PageBox, Pager, open_settings
from actonce.paging.settings import PagingSettings

__all__ = [
    "Channel",
    "ChannelError",
    "LedgerAlarm",
    "PageBox",
    "Pager",
    "PagingSettings",
    "open_channels",
    "open_settings",
]
