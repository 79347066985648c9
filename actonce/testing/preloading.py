"""Imported by the zygote: what programs load only when they first need it, loaded once for all of them.

The first channel of Apprise loads every plugin that Apprise has, five hundred modules; the first request of an HTTP
client loads its transport.
"""

import anyio._backends._asyncio
import anyio.streams.tls  # noqa: F401
import httpcore  # noqa: F401
from apprise.manager_plugins import NotificationManager

_plugins = NotificationManager()  # type: ignore[no-untyped-call]
_plugins.load_modules()  # type: ignore[no-untyped-call]
