"""Many Python programs for the price of one import: a process that has imported, and forks on request.

A worker's imports cost 1.5 CPU-seconds. The zygote pays them once, starts no thread, and forks: each child gets its own
session, environment, working directory and log, default signals, and runs a program file or module as `__main__`.
Children die with the zygote (on Linux by the kernel), and the zygote with its client.

Does not help programs that read the environment while they are imported: import time is before the fork. It refuses
to serve when an import has started a thread, since a fork copies only one.

Run by `Zygote`; by hand: `python -m actonce.stack.zygote FD MODULE…`, JSON lines on the inherited socket FD.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from actonce.stack.errors import StackError
from actonce.stack.process import Child, Proc, eventually, signal_checked

READY_WITHIN_S = 60.0  # the imports, on a busy machine
LINE_MAX_BYTES = 1 << 20  # a request carries a whole environment


class ZygoteChild:
    """A forked program: its identity and its exit status."""

    def __init__(self, proc: Proc, log: Path) -> None:
        self.proc = proc
        self.log = log
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int:
        return self.proc.pid

    def poll(self) -> int | None:
        """Exit status (negative: signal number), None while it runs."""
        return self._exit.result() if self._exit.done() else None

    def send_signal(self, sig: int) -> bool:
        """Signal it if it is still the same process. False when it is gone."""
        return signal_checked(self.proc, sig)

    async def wait(self, within_s: float | None = None) -> int | None:
        """Exit status, or None when it still runs after `within_s` seconds. Raises StackError if the zygote died."""
        done, _ = await asyncio.wait([self._exit], timeout=within_s)
        return self._exit.result() if done else None

    def ended(self, status: int) -> None:
        if not self._exit.done():
            self._exit.set_result(status)

    def lost(self, why: StackError) -> None:
        if not self._exit.done():
            self._exit.set_exception(why)
            self._exit.exception()  # seen: nobody may be waiting


class Zygote:
    """Client side: `async with await Zygote.start(modules, log=…) as zygote: await zygote.spawn("worker.py", …)`."""

    def __init__(self, process: Child, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._replies: dict[int, tuple[asyncio.Future[ZygoteChild], Path]] = {}
        self._children: dict[int, ZygoteChild] = {}
        self._requests = 0
        self._ready = asyncio.Event()
        self._error: str | None = None
        self._listener = asyncio.create_task(self._listen())

    @classmethod
    async def start(
        cls,
        modules: Sequence[str],
        *,
        log: Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Self:
        """Import `modules` (with `cwd` on the path) in a new process; returns when it can fork."""
        ours, theirs = socket.socketpair()
        log.parent.mkdir(parents=True, exist_ok=True)
        directory = (cwd or Path.cwd()).resolve()
        with theirs, log.open("ab") as sink:
            popen = subprocess.Popen(
                [sys.executable, "-m", "actonce.stack.zygote", str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                cwd=directory,
                env=dict(os.environ if env is None else env),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_MAX_BYTES)
        zygote = cls(Child(popen, "zygote", log), reader, writer)
        try:
            await eventually(
                lambda: zygote._ready.is_set() or zygote._listener.done(), within_s=READY_WITHIN_S, what="zygote ready"
            )
            if not zygote._ready.is_set():
                raise StackError(f"The zygote cannot serve: {zygote._error or zygote._process.tail()}")
        except BaseException:
            await zygote.close()
            raise
        return zygote

    async def spawn(
        self,
        program: str,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str],
        log: Path,
        cwd: Path | None = None,
        given: Path | None = None,
        errors: Path | None = None,
    ) -> ZygoteChild:
        """Fork and run `program` (a file, or "-m module") with `args`. `env` is the whole environment.

        `given`: file on its standard input; without it that is empty. `errors`: where its standard error goes; without
        it, into the log with its output.
        """
        if self._listener.done():
            raise StackError(f"The zygote is gone; its log ends:\n{self._process.tail()}")
        self._requests += 1
        number = self._requests
        reply: asyncio.Future[ZygoteChild] = asyncio.get_running_loop().create_future()
        self._replies[number] = reply, log
        log.parent.mkdir(parents=True, exist_ok=True)
        request = {
            "id": number,
            "program": program,
            "args": list(args),
            "env": dict(env),
            "cwd": str((cwd or Path.cwd()).resolve()),
            "log": str(log.resolve()),
            "given": str(given.resolve()) if given else os.devnull,
            "errors": str((errors or log).resolve()),
        }
        self._writer.write(json.dumps(request).encode() + b"\n")
        await self._writer.drain()
        return await reply

    async def close(self) -> None:
        """End the zygote; its children are killed."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        await self._listener
        await self._process.stop(signal.SIGKILL, 5.0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _listen(self) -> None:
        # The end of the stream, in whatever form, means: the zygote is gone.
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while line := await self._reader.readline():
                self._take(json.loads(line))
        gone = StackError(f"The zygote is gone; its log {self._process.log} ends:\n{self._process.tail()}")
        for reply, _ in self._replies.values():
            if not reply.done():
                reply.set_exception(gone)
        for child in self._children.values():
            child.lost(gone)

    def _take(self, message: dict[str, Any]) -> None:
        match message["event"]:
            case "ready":
                self._ready.set()
            case "error":
                self._error = str(message["why"])
            case "spawned":
                reply, log = self._replies.pop(message["id"])
                child = ZygoteChild(Proc.model_validate(message["proc"]), log)
                self._children[child.pid] = child
                if not reply.done():
                    reply.set_result(child)
            case "exited":
                self._children.pop(message["pid"]).ended(message["status"])


# The zygote process itself.


def main() -> None:
    """Import, serve, and in a forked child return to run the program at the top of the interpreter."""
    from actonce.stack import zygote_server

    request = zygote_server.serve(int(sys.argv[1]), sys.argv[2:])
    if request is not None:
        zygote_server.run_program(request)


if __name__ == "__main__":
    main()
