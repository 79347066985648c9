"""Faults on the wire, through Toxiproxy: the only module that speaks to its HTTP interface.

Promises: a fault that is reported as installed was read back from the server with the very attributes that were
asked for; every call has a timeout; any failure, also a status code that `toxiproxy-python` lets pass, is a
`FaultError`, which must end the drill as invalid. Proxies listen on ports that the operating system chose. Does
not promise that an installed fault strikes: an upstream toxic does nothing to a request that has already gone
through, so proof is taken from the tap and the destination's journal, never from here.

What each fault does to one POST (measured, and proven on the wire again by `selftest` before every run):

    closed      limit_data 0           caller: closed without an answer
    truncated   limit_data N           caller: N bytes of the answer, then closed
    reset       reset_peer 0           caller: connection reset (on a connection already open: only closed)
    silent      timeout 0 upstream     caller: silence until its own deadline; removal closes what was held
                bandwidth 0 downstream silence; removal releases the answer, by then to nobody
    held        bandwidth 0            silence; removal releases what was held: the request commits late
    slow        latency 800 ms         everything arrives, later
    cut         limit_data 0 both ways accepted, then closed as soon as anything is sent

Downstream they lose the answer of a request that took effect, upstream they lose the request itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import requests
import toxiproxy
import toxiproxy.api

Stream = Literal["upstream", "downstream"]
STREAMS: tuple[Stream, ...] = ("upstream", "downstream")
CALL_TIMEOUT_S = 5.0  # the server is on this machine and answers in milliseconds; slower is broken


class FaultError(RuntimeError):
    """A fault could not be installed, read back or removed. The drill that wanted it is invalid."""


class WireFault(StrEnum):
    """What is done to the bytes of one direction."""

    CLOSED = "closed"
    TRUNCATED = "truncated"
    RESET = "reset"
    SILENT = "silent"
    HELD = "held"
    SLOW = "slow"
    CUT = "cut"


SLOW_MS = 800
Toxic = tuple[str, dict[str, int]]
_HOLD: Toxic = ("bandwidth", {"rate": 0})
_TOXICS: dict[WireFault, dict[Stream, Toxic]] = {
    WireFault.CLOSED: dict.fromkeys(STREAMS, ("limit_data", {"bytes": 0})),
    WireFault.TRUNCATED: dict.fromkeys(STREAMS, ("limit_data", {"bytes": 9})),
    WireFault.RESET: dict.fromkeys(STREAMS, ("reset_peer", {"timeout": 0})),
    # `timeout` passes the end of a connection on, so a destination that closes after its answer would break the
    # silence; `bandwidth` would release a lost request when it is removed, and so commit it.
    WireFault.SILENT: {"upstream": ("timeout", {"timeout": 0}), "downstream": _HOLD},
    WireFault.HELD: dict.fromkeys(STREAMS, _HOLD),
    # Not `enabled: false`: it frees the port, and on a busy machine somebody else has it when the cut is to be healed.
    WireFault.CUT: dict.fromkeys(STREAMS, ("limit_data", {"bytes": 0})),
    WireFault.SLOW: dict.fromkeys(STREAMS, ("latency", {"latency": SLOW_MS})),
}
# Nine bytes are "HTTP/1.1 ": an answer cut there reads the same whatever its status was.
TRUNCATED_BYTES = 9

T = TypeVar("T")
OnEvent = Callable[[str, dict[str, Any]], None]


class _Timed:
    """Stands in for `requests` inside toxiproxy-python, which sets no timeout and lets most errors pass."""

    def __init__(self) -> None:
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy setting of the machine must not stand between us and our proxy

    def get(self, url: str, **kwargs: Any) -> requests.Response:
        return self._call("GET", url, kwargs)

    def post(self, url: str, **kwargs: Any) -> requests.Response:
        return self._call("POST", url, kwargs)

    def delete(self, url: str, **kwargs: Any) -> requests.Response:
        return self._call("DELETE", url, kwargs)

    def _call(self, method: str, url: str, kwargs: dict[str, Any]) -> requests.Response:
        answer = self._session.request(method, url, timeout=CALL_TIMEOUT_S, **kwargs)
        if not answer.ok:
            raise FaultError(f"Toxiproxy answered {answer.status_code} to {method} {url}: {answer.text[:200]}")
        return answer


toxiproxy.api.requests = _Timed()
# toxiproxy-python keeps the server's address in a class attribute: one call at a time may use it.
_ADDRESS = threading.Lock()


@dataclass(frozen=True)
class Installed:
    """One toxic that was read back."""

    proxy: str
    name: str
    type: str
    stream: Stream
    attributes: Mapping[str, int]


@dataclass
class Proxied:
    """One proxy of ours: where callers connect (`host`, `port`) and where it leads."""

    name: str
    host: str
    port: int
    upstream: str
    _faults: Faults = field(repr=False)
    _cuts: list[Installed] = field(default_factory=list, repr=False)

    async def install(self, fault: WireFault, stream: Stream) -> Installed:
        """Install the fault and read it back. Raises FaultError."""
        return await self._faults.install(self, fault, stream)

    async def remove(self, installed: Installed) -> None:
        """Remove it and read back that it is gone. `silent` upstream closes what it held, `held` releases it."""
        await self._faults.remove(self, installed)

    async def cut(self) -> None:
        """Cut: whatever is sent on an open or a new connection closes it, in either direction."""
        self._cuts = [await self._faults.install(self, WireFault.CUT, stream) for stream in STREAMS]

    async def heal(self) -> None:
        """Heal a cut."""
        while self._cuts:
            await self._faults.remove(self, self._cuts.pop())


class Faults:
    """The proxies and toxics of one user (a cell of a run), all named with its prefix."""

    def __init__(self, url: str, prefix: str, on_event: OnEvent | None = None) -> None:
        parts = urlsplit(url)
        if not parts.hostname or not parts.port:
            raise FaultError(f"Toxiproxy's address {url!r} has no host and port; use http://HOST:PORT")
        self._host, self._port = parts.hostname, parts.port
        self.prefix = prefix
        self._on_event = on_event or (lambda kind, fields: None)
        self._proxies: dict[str, Proxied] = {}
        self._installed: dict[tuple[str, str], Installed] = {}

    async def proxy(self, name: str, upstream_host: str, upstream_port: int) -> Proxied:
        """Create a proxy on a port that the system chooses, and read it back."""
        full = f"{self.prefix}.{name}"
        upstream = f"{upstream_host}:{upstream_port}"

        def create() -> tuple[str, int]:
            # Not `Toxiproxy.create` and `get_proxy`: each lists every proxy of every cell first.
            wanted = {"name": full, "upstream": upstream, "listen": "127.0.0.1:0", "enabled": True}
            toxiproxy.api.APIConsumer.post("/proxies", json=wanted)
            seen = self._seen(full)
            if not seen.enabled or seen.upstream != upstream:
                raise FaultError(f"proxy {full} was created but reads back as {vars(seen)}")
            host, _, port = seen.listen.rpartition(":")
            if not port.isdigit() or int(port) == 0:
                raise FaultError(f"proxy {full} reports no real port: {seen.listen}")
            return host, int(port)

        host, port = await self._do(f"create proxy {full}", create)
        self._proxies[full] = Proxied(full, host, port, upstream, self)
        return self._proxies[full]

    async def install(self, proxy: Proxied, fault: WireFault, stream: Stream) -> Installed:
        """See `Proxied.install`."""
        kind, attributes = _TOXICS[fault][stream]
        name = f"{fault}_{stream}"

        def add() -> None:
            seen = self._seen(proxy.name)
            seen.add_toxic(name=name, type=kind, stream=stream, toxicity=1.0, attributes=dict(attributes))
            toxic = seen.get_toxic(name)
            if toxic is None:
                raise FaultError(f"toxic {name} on {proxy.name} was accepted but is not there")
            found = {key: toxic.attributes.get(key) for key in attributes}
            if (toxic.type, toxic.stream, toxic.toxicity, found) != (kind, stream, 1.0, attributes):
                raise FaultError(f"toxic {name} on {proxy.name} reads back as {vars(toxic)}, asked for {attributes}")

        await self._do(f"add {name} to {proxy.name}", add)
        self._on_event("toxic_added", {"proxy": proxy.name, "toxic": name, "stream": stream})
        installed = Installed(proxy.name, name, kind, stream, attributes)
        self._installed[proxy.name, name] = installed
        return installed

    async def remove(self, proxy: Proxied, installed: Installed) -> None:
        """See `Proxied.remove`."""
        begun_ns = time.monotonic_ns()  # what was held may arrive before the removal is read back

        def remove() -> None:
            seen = self._seen(proxy.name)
            seen.destroy_toxic(installed.name)
            if seen.get_toxic(installed.name) is not None:
                raise FaultError(f"toxic {installed.name} on {proxy.name} is still there after its removal")

        await self._do(f"remove {installed.name} from {proxy.name}", remove)
        self._installed.pop((proxy.name, installed.name), None)
        fields = {"proxy": proxy.name, "toxic": installed.name, "stream": installed.stream, "mono_ns": begun_ns}
        self._on_event("toxic_removed", fields)

    async def calm(self) -> None:
        """Remove every toxic that is still installed: whoever installed it broke off."""
        for (name, _), installed in list(self._installed.items()):
            proxy = self._proxies[name]
            proxy._cuts.clear()
            await self.remove(proxy, installed)

    async def close(self) -> None:
        """Destroy every proxy of this prefix, also those that a crashed predecessor left behind."""

        def destroy() -> None:
            for name, proxy in toxiproxy.Toxiproxy().proxies().items():
                if name.startswith(f"{self.prefix}."):
                    proxy.destroy()

        await self._do(f"destroy the proxies of {self.prefix}", destroy)
        self._proxies.clear()

    def _seen(self, name: str) -> Any:
        try:
            found = toxiproxy.api.APIConsumer.get(f"/proxies/{name}").json()
        except FaultError as error:
            raise FaultError(f"proxy {name} is not there (was Toxiproxy restarted?): {error}") from error
        return toxiproxy.Proxy(**found)

    async def _do(self, what: str, call: Callable[[], T]) -> T:
        def locked() -> T:
            with _ADDRESS:
                toxiproxy.api.APIConsumer.host = self._host
                toxiproxy.api.APIConsumer.port = self._port
                return call()

        try:
            return await asyncio.to_thread(locked)
        except FaultError:
            raise
        except Exception as error:  # whatever it is, the fault is not known to be in place
            raise FaultError(f"could not {what}: {type(error).__name__}: {error}") from error
