"""What drills use to order the world about: modes, latches, plants. The journal is read as a file, by the witness.

Every failure is an error: a mode that was not taken must never pass as a fault that did not strike.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from actonce.testing.challenge import prove_controlled


class WorldError(Exception):
    """The world did not take an order. The message has the order and its answer."""


class World:
    """A running world, found through its `world.json`."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.run_id: str = facts["run_id"]
        self.listeners: dict[str, str] = facts["listeners"]
        self.journal_path = Path(facts["journal"])
        self._control_url: str = facts["control"]["url"]
        self._client = httpx.AsyncClient(
            base_url=self._control_url,
            headers={"Authorization": f"Bearer {facts['control']['token']}"},
            timeout=httpx.Timeout(10.0, read=90.0),  # a latch is awaited for up to 60 s in one request
            trust_env=False,
        )

    @classmethod
    def load(cls, path: Path | str) -> World:
        return cls(json.loads(Path(path).read_text(encoding="utf-8")))

    async def close(self) -> None:
        await self._client.aclose()

    async def __aenter__(self) -> World:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def prove_controlled(self, secret: str) -> None:
        """Challenge the control interface and every listener. Raises NotControlled."""
        for url in (self._control_url, *self.listeners.values()):
            await prove_controlled(url, self.run_id, secret)

    async def configure(self, account: str, destination: str = "payments", **modes: Any) -> dict[str, Any]:
        """Set modes (drills.world.modes.Modes); `routes={"list": "stale"}` or `{"list": {"mode": …, "lag_s": …}}`."""
        return await self._order("PUT", account, "", {"destination": destination, **modes})

    async def lease(self, account: str, **modes: Any) -> dict[str, Any]:
        """Set the lease manager's modes (drills.world.leases.LeaseModes); `token=` makes one more token good."""
        return await self._order("PUT", account, "/leases", modes)

    async def end_leases(self, account: str, **ending: Any) -> list[str]:
        """End leases behind the caller's back (drills.world.leases.Ending); return their ids."""
        ended: list[str] = (await self._order("POST", account, "/leases/end", ending))["ended"]
        return ended

    async def latch(self, account: str, point: str, destination: str = "payments", **match: Any) -> str:
        """Arm a latch for one request (match: operation_id, key, nth) and return its id."""
        body = {"destination": destination, "point": point, "match": match}
        return str((await self._order("PUT", account, "/latch", body))["latch_id"])

    async def wait_latch(
        self, account: str, latch_id: str | None = None, destination: str = "payments", wait_s: float = 30.0
    ) -> dict[str, Any]:
        """Wait until a latch holds a request; return {latch_id, name, request_id, operation_id, key, order, …}.

        Raises WorldError when none does within `wait_s`: the drill found no operation in the wanted state.
        """
        params: dict[str, Any] = {"destination": destination, "wait": str(wait_s)}
        if latch_id is not None:
            params["latch_id"] = latch_id
        answer = await self._order("GET", account, "/latch", None, params)
        held: list[dict[str, Any]] = answer["held"]
        if not held:
            raise WorldError(
                f"no request reached latch {latch_id or '(any)'} of {destination}/{account} within {wait_s} s; "
                "no operation is in the wanted state"
            )
        return held[0]

    async def release(
        self,
        account: str,
        latch_id: str | None = None,
        destination: str = "payments",
        action: str = "continue",
        answer: dict[str, Any] | None = None,
    ) -> list[str]:
        """Let a held request go on. `action="drop"` forgets it without a trace; `answer` spoils its answer."""
        body = {"destination": destination, "latch_id": latch_id, "action": action, "answer": answer}
        released: list[str] = (await self._order("POST", account, "/latch/release", body))["released"]
        return released

    async def plant(self, account: str, kind: str, destination: str = "payments", **thing: Any) -> str:
        """Put an object there (author, fields, metadata, text) and return its id."""
        body = {"destination": destination, "kind": kind, **thing}
        return str((await self._order("POST", account, "/plant", body))["object_id"])

    async def plant_look_alikes(
        self, account: str, operation_id: str, kind: str, fields: dict[str, Any], destination: str = "payments"
    ) -> list[str]:
        """The three of case d7 and d2: another principal's object, a comment quoting us, another type of object."""
        marked = {"operation_id": operation_id, "key": operation_id}
        stranger = "prn-stranger"
        return [
            await self.plant(account, kind, destination, author=stranger, fields=fields, metadata=marked),
            await self.plant(account, "note", destination, author=stranger, text=f"see {operation_id}, thanks"),
            await self.plant(account, "dispute", destination, fields={}, metadata=marked),
        ]

    async def change_state(self, account: str, destination: str = "payments", **change: Any) -> str:
        """Close, archive or rename an object (object_id or operation_id; state, fields)."""
        return str((await self._order("POST", account, "/state", {"destination": destination, **change}))["object_id"])

    def journal(self) -> list[dict[str, Any]]:
        """Read the whole journal. A line that is still being written is left for the next reading."""
        lines = self.journal_path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    async def journal_lines(self) -> int:
        """How many lines the world says it has written: a journal with fewer is incomplete."""
        return int((await self._request("GET", "/control/journal", None, None))["lines"])

    async def _order(
        self,
        method: str,
        account: str,
        what: str,
        body: dict[str, Any] | None,
        params: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        return await self._request(method, f"/control/accounts/{quote(account, safe='')}{what}", body, params)

    async def _request(
        self, method: str, path: str, body: dict[str, Any] | None, params: dict[str, Any] | None
    ) -> dict[str, Any]:
        try:
            response = await self._client.request(method, path, json=body, params=params)
        except httpx.HTTPError as error:
            raise WorldError(f"{method} {path} {body}: {type(error).__name__}: {error}") from error
        if response.status_code >= 300:
            raise WorldError(f"{method} {path} {body}: {response.status_code} {response.text}")
        answer: dict[str, Any] = response.json()
        return answer
