"""What a witness measured, and whether it carries what it claims. One function per claim.

Contract: the witness is no part of the system under test. It connects, writes or counts for itself, at the very place
where the fault was put, and records raw facts; a claim holds only by those facts.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from actonce.evidence.lines import Observation

Facts = dict[str, Any]
Judged = tuple[bool, str]
SLOW_MIN_S = 0.5  # the same; the toxic holds each packet for 0.8 s
SILENT_MIN_S = 1.0  # an answer on loopback takes a thousandth of it


def _silent(facts: Facts) -> Judged:
    """A connection was accepted and nothing came back for long enough."""
    ok = facts.get("connected") is True and facts.get("bytes_down") == 0 and facts.get("ended") is None
    waited_s = float(facts.get("waited_s", 0.0))
    return ok and waited_s >= SILENT_MIN_S, (
        f"connected {facts.get('connected')}, {facts.get('bytes_down')} bytes and end {facts.get('ended')} "
        f"in {waited_s:.2f} s"
    )


def _refused(facts: Facts) -> Judged:
    """Nobody listened."""
    return facts.get("connected") is False and bool(facts.get("error")), f"{facts.get('error') or 'it connected'}"


def _write_failed(facts: Facts) -> Judged:
    """A write of the witness's own failed there, because there is no room or it may not be written."""
    named = errno.errorcode.get(int(facts.get("errno") or 0), "no error")
    return named in {"ENOSPC", "EROFS", "EDQUOT"}, f"{named} at {facts.get('path')}"


def _accepted_while_nobody_worked(facts: Facts) -> Judged:
    """Tasks were accepted while no worker process was alive, by the kernel's own table."""
    alive, accepted = facts.get("alive"), int(facts.get("accepted") or 0)
    return alive == [] and accepted > 0, f"{accepted} accepted with {alive} alive"


def _not_accepted_by_destination(facts: Facts) -> Judged:
    """The destination itself turned the credential away."""
    return facts.get("status") in {401, 403}, f"status {facts.get('status')}"


def _broken_off(facts: Facts) -> Judged:
    """A connection was accepted and ended without a byte of an answer."""
    ok = facts.get("connected") is True and facts.get("bytes_down") == 0 and bool(facts.get("ended"))
    return ok, f"connected {facts.get('connected')}, {facts.get('bytes_down')} bytes, end {facts.get('ended')}"


def _slow(facts: Facts) -> Judged:
    """An answer came, later than an answer on loopback ever does."""
    waited_s = float(facts.get("waited_s", 0.0))
    return bool(facts.get("bytes_down")) and waited_s >= SLOW_MIN_S, f"{facts.get('bytes_down')} bytes in {waited_s} s"


def _login_refused(facts: Facts) -> Judged:
    """The database turned a login away that it took before."""
    error = str(facts.get("error") or "")
    return "password authentication failed" in error, error[:200] or "it logged in"


def _stands_in_query(facts: Facts) -> Judged:
    """Somebody's query waits in the database itself, by its own table of sessions."""
    queries = list(facts.get("waiting") or [])
    return any("actonce_memory.item" in str(query) for query in queries), f"{len(queries)} queries wait for a lock"


def _index_gone(facts: Facts) -> Judged:
    """By the catalog there is no index, and the rows are there."""
    ok = facts.get("index") is None and int(facts.get("rows") or 0) > 0
    return ok, f"index {facts.get('index')}, {facts.get('rows')} rows"


def _rows_gone(facts: Facts) -> Judged:
    """By the catalog all is well, and there are fewer rows than before (rows are never deleted)."""
    rows, before = facts.get("rows"), int(facts.get("rows_before") or 0)
    ok = facts.get("index") == "valid" and rows is not None and int(rows) < before
    return ok, f"index {facts.get('index')}, {rows} rows, {before} before"


def _no_lease_in_force(facts: Facts) -> Judged:
    """By the lease manager's own journal: the credential was leased, it is not any more, and asking was in vain."""
    had, denied, left = (int(facts.get(name) or 0) for name in ("had", "denied", "in_force"))
    return had > 0 and denied > 0 and left == 0, f"{had} leases had been given, {left} in force, asked {denied} times"


def _came_back_narrower(facts: Facts) -> Judged:
    """By the lease manager: every lease was ended behind its holders' backs, and what it gives now lacks the scope."""
    ended, left = len(facts.get("ended") or []), int(facts.get("in_force") or 0)
    needed, gives = str(facts.get("needed") or ""), list(facts.get("gives") or [])
    ok = ended > 0 and left == 0 and bool(needed) and bool(gives) and needed not in gives
    return ok, f"{ended} leases ended, {left} in force; needed {needed}, it gives {gives}"


def _store_refuses(facts: Facts) -> Judged:
    """The database itself refused the witness's own row: no room, or it takes no writes."""
    state = str(facts.get("sqlstate") or "")
    return state in {"25006", "53100"}, f"SQLSTATE {state or 'none'}: {facts.get('error') or 'the row was taken'}"


def _turned_away_everywhere(facts: Facts) -> Judged:
    """Every read route answered 401, by the destination's journal."""
    routes = facts.get("routes") or {}
    return bool(routes) and all(int(count) > 0 for count in routes.values()), f"401 by route: {routes}"


def _renewed_in_use(facts: Facts) -> Judged:
    """The manager, to which two renewals at once are a misuse, was asked to renew while many tasks were under way."""
    renewed, accepted = int(facts.get("renewed") or 0), int(facts.get("accepted") or 0)
    ok = facts.get("jealous") is True and renewed >= 2 and accepted >= 5
    return ok, f"asked {renewed} times while {accepted} tasks were there, jealous {facts.get('jealous')}"


def _scheduler_down_while_waiting(facts: Facts) -> Judged:
    """The server's process is gone by the kernel's table, its port refuses, and tasks waited for people just then."""
    gone = facts.get("alive") is False and bool(facts.get("refused"))
    waiting = list(facts.get("waiting") or [])
    said = f"pid {facts.get('pid')} alive {facts.get('alive')}, port: {facts.get('refused') or 'open'}"
    return gone and bool(waiting), f"{said}, {len(waiting)} waited"


def _same_file_again(facts: Facts) -> Judged:
    """Another process serves the very same file at the very same address, and took a real workflow."""
    other = facts.get("pid_before") != facts.get("pid_after")
    same = facts.get("inode_before") == facts.get("inode_after") is not None
    return other and same and facts.get("took_a_workflow") is True, (
        f"pid {facts.get('pid_before')} → {facts.get('pid_after')}, inode {facts.get('inode_before')} → "
        f"{facts.get('inode_after')}, took a workflow: {facts.get('took_a_workflow')}"
    )


CLAIMS: dict[str, Callable[[Facts], Judged]] = {
    "silent": _silent,
    "refused": _refused,
    "write_failed": _write_failed,
    "accepted_while_nobody_worked": _accepted_while_nobody_worked,
    "credential_turned_away": _not_accepted_by_destination,
    "broken_off": _broken_off,
    "slow": _slow,
    "login_refused": _login_refused,
    "stands_in_query": _stands_in_query,
    "index_gone": _index_gone,
    "rows_gone": _rows_gone,
    "no_lease_in_force": _no_lease_in_force,
    "came_back_narrower": _came_back_narrower,
    "store_refuses": _store_refuses,
    "turned_away_everywhere": _turned_away_everywhere,
    "renewed_in_use": _renewed_in_use,
    "scheduler_down_while_waiting": _scheduler_down_while_waiting,
    "same_file_again": _same_file_again,
}


def carries(line: Observation) -> Judged:
    """Do the facts carry the claim, and what they say. An unknown claim is carried by nothing."""
    claim = CLAIMS.get(line.name)
    if claim is None:
        return False, f"no rule judges {line.name!r}; known are {sorted(CLAIMS)}"
    try:
        return claim(line.facts)
    except (TypeError, ValueError) as error:
        return False, f"its facts cannot be read: {error}"
