"""Inside the zygote process: import, listen, fork, reap. One thread, no event loop. See zygote.py."""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from actonce.stack.process import Proc

PR_SET_PDEATHSIG = 1

# Loaded before the fork: what a child still calls must not need an import lock or a file.
_libc = ctypes.CDLL(None, use_errno=True)


def serve(fd: int, modules: list[str]) -> dict[str, Any] | None:
    """Serve until the client is gone (returns None). In a forked child: returns the request to run."""
    link = socket.socket(fileno=fd)
    link.set_inheritable(False)
    sys.path.insert(0, os.getcwd())
    for module in modules:
        importlib.import_module(module)
    threads = _thread_count()
    if threads != 1:
        _send(link, {"event": "error", "why": f"importing {', '.join(modules)} started {threads - 1} thread(s)"})
        return None
    gc.collect()
    gc.freeze()  # keeps the children's memory shared: their collector does not touch what was imported
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK) if hasattr(os, "pipe2") else _pipe()
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    _send(link, {"event": "ready", "pid": os.getpid(), "modules": modules})
    alive: set[int] = set()
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(link, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if wake_read in ready:
                os.read(wake_read, 4096)
            if link.fileno() in ready:
                received = link.recv(1 << 16)
                if not received:
                    break
                buffer += received
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    request: dict[str, Any] = json.loads(line)
                    pid = os.fork()
                    if pid == 0:
                        signal.set_wakeup_fd(-1)
                        os.close(wake_read)
                        os.close(wake_write)
                        link.close()
                        return request
                    alive.add(pid)
                    proc = Proc.of(pid).model_dump() if _exists(pid) else _ended(pid)
                    _send(link, {"event": "spawned", "id": request["id"], "proc": proc})
            _reap(link, alive)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so the pid is still theirs
    return None


def _pipe() -> tuple[int, int]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write


def _thread_count() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def _exists(pid: int) -> bool:
    from actonce.stack.process import start_time

    return start_time(pid) is not None


def _ended(pid: int) -> dict[str, Any]:
    """A child that ended before we looked: a start time that matches no process, so it is never signalled."""
    from actonce.stack.process import boot_id

    return {"pid": pid, "start_time": -1, "boot_id": boot_id()}


def _send(link: socket.socket, message: dict[str, Any]) -> None:
    link.sendall(json.dumps(message).encode() + b"\n")


def _reap(link: socket.socket, alive: set[int]) -> None:
    while alive:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        alive.discard(pid)
        _send(link, {"event": "exited", "pid": pid, "status": os.waitstatus_to_exitcode(status)})


def run_program(request: dict[str, Any]) -> None:
    """In the child: become a process like one that was started afresh, then run the program as `__main__`."""
    zygote = os.getppid()
    os.setsid()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as in every Python program
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    if sys.platform == "linux":
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != zygote:
            os._exit(1)
    _redirect(request["given"], request["log"], request["errors"])
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    random.seed()
    program: str = request["program"]
    if program.startswith("-m "):
        module = program.removeprefix("-m ").strip()
        sys.path[0] = request["cwd"]
        sys.argv = [module, *request["args"]]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        path = Path(request["cwd"], program)
        sys.path[0] = str(path.parent)
        sys.argv = [program, *request["args"]]
        runpy.run_path(str(path), run_name="__main__")


def _redirect(given: str, log: str, errors: str) -> None:
    appended = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    for target, (path, flags) in enumerate(((given, os.O_RDONLY), (log, appended), (errors, appended))):
        source = os.open(path, flags, 0o600)
        os.dup2(source, target)
        os.close(source)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
