"""The world as a whole: its listeners, who serves what, and the control interface.

One listener is one separate network path: a drill puts its own proxy in front of each. The control interface sets
modes, latches and plants; it tells nothing of what the destinations hold.
"""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from actonce.testing.challenge import proof
from actonce.testing.journal import Journal
from actonce.testing.listener import Listener, Reply, Request
from drills.world import routes, writes
from drills.world.control import Control
from drills.world.desk import SUBJECT_FIELDS, Desk, problem
from drills.world.leases import LeaseManager
from drills.world.mail import Relay
from drills.world.modes import Modes, RouteName, merge_modes
from drills.world.replay import replay
from drills.world.shapes import SHAPES

ROUTES: tuple[RouteName, ...] = ("by_id", "list", "search", "log")


class World:
    """All destinations of one run."""

    def __init__(self, folder: Path, run_id: str, run_secret: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.run_id = run_id
        self.journal = Journal(folder / "journal.jsonl")
        self.control_token = secrets.token_urlsafe(24)
        self._secret = run_secret
        self._desks: dict[tuple[str, str], Desk] = {}
        self.leases = LeaseManager(self.journal)
        control = Control(self, self.control_token)
        self.listeners = [Listener("control", control.handle, self.journal, self._read_limit_s, quiet=True)]
        self.relay = Relay(lambda account: self.desk("mail", account), self.journal, self._proof_for)
        self.listeners.append(Listener("leases", self._lease, self.journal, self._read_limit_s))
        for shape in SHAPES.values():
            if shape.destination == "mail":
                continue
            for purpose in ("write", "beacon", "cancel", "probe", *ROUTES):
                name = f"{shape.destination}.{purpose}"
                subject = SUBJECT_FIELDS.get(shape.destination)
                self.listeners.append(
                    Listener(name, self.serve, self.journal, self._read_limit_s, subject_field=subject)
                )

    async def start(self, host: str = "127.0.0.1", base_port: int = 0, shown_host: str | None = None) -> Path:
        """Put back what the journal holds, bind every listener, then write `world.json` and return its path.

        With `base_port` the ports are consecutive from there, else free ones of the operating system.
        """
        restored = replay(self.journal.path, self._quiet_desk)
        for number, listener in enumerate(self.listeners):
            await listener.start(host, base_port + number if base_port else 0)
        await self.relay.start(host, base_port + len(self.listeners) if base_port else 0)
        shown = shown_host or host
        urls = {one.name: f"http://{shown}:{one.port}" for one in self.listeners}
        urls["mail"] = f"smtp://{shown}:{self.relay.port}"
        facts = {
            "run_id": self.run_id,
            "listeners": {name: url for name, url in urls.items() if name != "control"},
            "control": {"url": urls["control"], "token": self.control_token},
            "journal": str(self.journal.path),
        }
        path = self.folder / "world.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(facts, indent=1), encoding="utf-8")
        fresh.chmod(0o600)
        fresh.replace(path)
        self.journal.write("world_started", run_id=self.run_id, listeners=sorted(urls), restored=restored)
        return path

    async def stop(self) -> None:
        for listener in self.listeners:
            await listener.stop()
        await self.relay.stop()
        self.journal.write("world_stopped", run_id=self.run_id)
        self.journal.close()

    def desk(self, destination: str, account: str) -> Desk:
        """Return the desk of an account; an unknown account behaves with the defaults."""
        desk = self._quiet_desk(destination, account)
        desk.seed()
        return desk

    def _quiet_desk(self, destination: str, account: str) -> Desk:
        """The desk as it is, without rows of its own yet when it is new."""
        key = (destination, account)
        if key not in self._desks:
            self._desks[key] = Desk(SHAPES[destination], account, self.journal, self.leases)
        return self._desks[key]

    def configure(self, destination: str, account: str, change: dict[str, Any]) -> Modes:
        """Raises pydantic.ValidationError for a mode that does not exist."""
        desk = self._quiet_desk(destination, account)
        modes = merge_modes(desk.modes, change, time.monotonic_ns())
        desk.configure(modes)
        desk.note("configured", change=change)
        return modes

    def _read_limit_s(self, destination: str, account: str | None) -> float | None:
        desk = self._desks.get((destination, account or ""))
        return (desk.modes if desk is not None else Modes()).request_read_timeout_s

    def _proof_for(self, run_id: str, nonce: str) -> str | None:
        return proof(self._secret, run_id, nonce) if run_id == self.run_id else None

    async def _lease(self, request: Request) -> Reply:
        if request.path == "/challenge" and request.method == "POST":
            return self.challenge(request)
        return await self.leases.handle(request)

    def challenge(self, request: Request) -> Reply:
        body = request.json()
        run_id, nonce = str(body.get("run_id", "")), str(body.get("nonce", ""))
        if not nonce or run_id != self.run_id:
            return problem(403, "not_this_run", f"this world belongs to another run than {run_id!r}")
        if request.listener != "control":
            self.journal.write("challenge", destination=request.destination, listener=request.listener, run_id=run_id)
        return Reply(200, {"run_id": run_id, "proof": proof(self._secret, run_id, nonce)})

    async def serve(self, request: Request) -> Reply:
        """Dispatch by listener: a path that belongs to another listener does not exist here."""
        if request.path == "/challenge" and request.method == "POST":
            return self.challenge(request)
        if request.path == "/health":
            return Reply(200, {"ok": True})
        purpose = request.listener.split(".", 1)[1]
        if request.account is None:
            return problem(404, "not_found", "paths start with /v1/{account}")
        desk = self.desk(request.destination, request.account)
        reply = await self._dispatch(desk, purpose, request)
        if desk.shape.error is not None and reply.status >= 400 and not reply.by_gateway:
            return desk.shape.error(reply)
        return reply

    async def _dispatch(self, desk: Desk, purpose: str, request: Request) -> Reply:
        if request.method == "GET":
            for name in ROUTES:
                if name == purpose:
                    return await routes.read(desk, name, request)
        if request.method == "POST":
            return await self._post(desk, purpose, request)
        return problem(405, "wrong_method", f"{request.method} does not exist on {request.listener}")

    async def _post(self, desk: Desk, purpose: str, request: Request) -> Reply:
        tail = request.segments[2:]
        collection = desk.shape.collection
        if purpose == "write" and tail == [collection]:
            return await writes.create(desk, request)
        if purpose == "write" and len(tail) == 3 and tail[0] == collection and tail[2] == "reverse":
            return await writes.reverse(desk, request)
        if purpose == "probe" and len(tail) == 3 and tail[0] == collection and tail[2] == "notes":
            return writes.note_on(desk, request)
        if purpose == "beacon" and tail == ["beacons"]:
            return writes.beacon(desk, request)
        if purpose == "cancel" and len(tail) == 3 and tail[0] == "keys" and tail[2] == "cancel":
            return writes.cancel(desk, request)
        return problem(404, "not_found", f"{request.listener} has no {request.path}")


__all__ = ["ROUTES", "ValidationError", "World"]
