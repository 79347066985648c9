"""What the ledger knows of leases: their metadata, rotations and revocations, and the access policy.

`Leases` is what a process's broker writes its leases to; the rest is what people do. No secret is ever among the
parameters. Every change of state writes its audit event. What a lease may be used for: `authorising`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from actonce.contracts.commands import CLIENT
from actonce.contracts.credential import AccessPolicy, CredentialState, Lease
from actonce.contracts.errors import AccessRefused
from actonce.ledger import authorising
from actonce.ledger.authorising import Use
from actonce.ledger.store import Connection, Ledger, LedgerClock, audit, many, one, utc

Row = dict[str, Any]


@dataclass(frozen=True)
class Standing:
    """A credential as the ledger has it."""

    state: CredentialState
    generation: int
    why: str
    policy_version: int
    ended: dict[str, str]  # lease id → why, of those that were asked about and are revoked here or unknown


# what a broker writes ---------------------------------------------------------------------------------------------


class Leases:
    """The ledger as one process's broker uses it. `uses`: what the leases are for; `holder`: the process."""

    def __init__(self, ledger: Ledger, uses: Sequence[Use], holder: str) -> None:
        self._ledger = ledger
        self._uses = uses
        self._holder = holder

    async def now(self) -> LedgerClock:
        return await self._ledger.clock()

    async def standing(self, credential: str, lease_ids: Sequence[str] = ()) -> Standing:
        """The credential's state, which is registered at its first mention, and which of these leases are over."""
        async with self._ledger.transaction() as connection:
            row = await one(
                connection,
                "INSERT INTO actonce.credential (name) VALUES (%s) ON CONFLICT (name) DO UPDATE SET name ="
                " excluded.name RETURNING *",
                (credential,),
            )
            assert row is not None
            rows = await many(
                connection,
                "SELECT lease_id, revoked_why FROM actonce.lease WHERE lease_id = ANY(%s)",
                (list(lease_ids),),
            )
            known: dict[str, str | None] = {r["lease_id"]: r["revoked_why"] for r in rows}
            asked = {lease_id: known.get(lease_id, "not in this ledger") for lease_id in lease_ids}
            return Standing(
                state=row["state"],
                generation=row["generation"],
                why=row["why"],
                policy_version=await authorising.policy_version(connection),
                ended={lease_id: why for lease_id, why in asked.items() if why is not None},
            )

    async def issued(self, lease: Lease, replaces: str | None) -> bool:
        """Record a new lease and check what it may be used for. False: a rotation or a revocation came first."""
        async with self._ledger.transaction() as connection:
            row = await one(
                connection,
                "SELECT 1 FROM actonce.credential WHERE name = %s AND state = 'active' AND generation = %s FOR SHARE",
                (lease.credential, lease.generation),
            )
            if row is None:
                return False
            row = await one(
                connection,
                "INSERT INTO actonce.lease (lease_id, credential, generation, principal, scope, parent, holder,"
                " replaces, issued_at, expires_at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) RETURNING *",
                (
                    lease.lease_id,
                    lease.credential,
                    lease.generation,
                    lease.principal,
                    list(lease.scope),
                    lease.parent,
                    self._holder,
                    replaces,
                    lease.issued_at,
                    lease.expires_at,
                ),
            )
            assert row is not None
            body = {
                "lease_id": lease.lease_id,
                "credential": lease.credential,
                "generation": lease.generation,
                "principal": lease.principal,
                "scope": list(lease.scope),
                "expires_at": utc(lease.expires_at),
                "replaces": replaces,
                "holder": self._holder,
            }
            await audit(connection, "lease.issued", None, body)
            await self._check_all(connection, row)
            return True

    async def checked(self, lease_id: str) -> None:
        """Check again what a lease may be used for: the access policy has changed."""
        async with self._ledger.transaction() as connection:
            row = await one(connection, "SELECT * FROM actonce.lease WHERE lease_id = %s", (lease_id,))
            if row is not None:
                await self._check_all(connection, row)

    async def _check_all(self, connection: Connection, lease: Row) -> None:
        for use in self._uses:
            if use.credential == lease["credential"]:
                await authorising.authorised(connection, lease, use)

    async def renewed(self, lease_id: str, expires_at: datetime) -> None:
        """The same lease, for longer."""
        async with self._ledger.transaction() as connection:
            await connection.execute(
                "UPDATE actonce.lease SET expires_at = %s, renewed_at = clock_timestamp()"
                " WHERE lease_id = %s AND revoked_at IS NULL",
                (expires_at, lease_id),
            )

    async def ended(self, lease: Lease, why: str, credential_is: CredentialState | None = None) -> None:
        """A lease is over before its time. `credential_is`: so is its credential, until a person rotates it."""
        async with self._ledger.transaction() as connection:
            if credential_is is not None:
                await _close(connection, lease.credential, lease.generation, credential_is, why, self._holder)
            await _revoke_lease(connection, lease.lease_id, why)

    async def lapsed(self, credential: str, generation: int, why: str) -> None:
        """A lease ran out and the manager gave no other. If it was the last one of all processes, nobody gets one
        before a person has rotated."""
        async with self._ledger.transaction() as connection:
            await one(connection, "SELECT 1 FROM actonce.credential WHERE name = %s FOR UPDATE", (credential,))
            other = await one(
                connection,
                "SELECT 1 FROM actonce.lease WHERE credential = %s AND generation = %s AND revoked_at IS NULL"
                " AND expires_at > clock_timestamp()",
                (credential, generation),
            )
            if other is None:
                await _close(connection, credential, generation, "expired", why, self._holder)


async def _close(
    connection: Connection, credential: str, generation: int, state: CredentialState, why: str, by: str
) -> bool:
    """An active credential of this generation is so no more. False when somebody was faster."""
    row = await one(
        connection,
        "UPDATE actonce.credential SET state = %s, since = clock_timestamp(), why = %s, changed_by = %s"
        " WHERE name = %s AND generation = %s AND state = 'active' RETURNING name",
        (state, why[:500], by, credential, generation),
    )
    if row is not None:
        body = {"credential": credential, "generation": generation, "why": why[:500], "by": by}
        await audit(connection, f"credential.{state}", None, body)
    return row is not None


async def _revoke_lease(connection: Connection, lease_id: str, why: str) -> None:
    row = await one(
        connection,
        "UPDATE actonce.lease SET revoked_at = clock_timestamp(), revoked_why = %s"
        " WHERE lease_id = %s AND revoked_at IS NULL RETURNING credential",
        (why[:500], lease_id),
    )
    if row is not None:
        await audit(
            connection, "lease.ended", None, {"lease_id": lease_id, "credential": row["credential"], "why": why[:500]}
        )


# what people do ---------------------------------------------------------------------------------------------------


async def rotate(ledger: Ledger, credential: str, expected_generation: int, name: str, reason: str) -> Row:
    """Open the next generation: every process asks the lease manager for a new lease within a renewal tick.

    Idempotent: the same person and reason on the same generation find it done. Raises AccessRefused (`unknown`,
    `stale`).
    """
    async with ledger.transaction() as connection:
        row = await _locked(connection, credential)
        done = (row["state"], row["generation"], row["changed_by"], row["why"])
        if done == ("active", expected_generation + 1, name, reason):
            return row
        _compare(row, expected_generation)
        fresh = await one(
            connection,
            "UPDATE actonce.credential SET state = 'active', generation = generation + 1, since = clock_timestamp(),"
            " why = %s, changed_by = %s WHERE name = %s RETURNING *",
            (reason, name, credential),
        )
        assert fresh is not None
        body = {"credential": credential, "generation": fresh["generation"], "name": name, "reason": reason}
        await audit(connection, "credential.rotated", None, {**body, "was": row["state"]})
        return dict(fresh)


async def revoke(ledger: Ledger, credential: str, expected_generation: int, name: str, reason: str) -> Row:
    """End every lease now: no permit is given and no fence asked later passes; brokers end them at the manager.

    What passed its fence before may still send until its `not_after`. Idempotent. Raises AccessRefused.
    """
    async with ledger.transaction() as connection:
        row = await _locked(connection, credential)
        _compare(row, expected_generation)
        if row["state"] == "revoked":
            return row
        fresh = await one(
            connection,
            "UPDATE actonce.credential SET state = 'revoked', since = clock_timestamp(), why = %s, changed_by = %s"
            " WHERE name = %s RETURNING *",
            (reason, name, credential),
        )
        assert fresh is not None
        body = {"credential": credential, "generation": row["generation"], "why": reason, "by": name}
        await audit(connection, "credential.revoked", None, body)
        for lease in await many(
            connection,
            "SELECT lease_id FROM actonce.lease WHERE credential = %s AND revoked_at IS NULL"
            " AND expires_at > clock_timestamp() ORDER BY lease_id",
            (credential,),
        ):
            await _revoke_lease(connection, lease["lease_id"], f"{name}: {reason}")
        return dict(fresh)


async def _locked(connection: Connection, credential: str) -> Row:
    row = await one(connection, "SELECT * FROM actonce.credential WHERE name = %s FOR UPDATE", (credential,))
    if row is None:
        raise AccessRefused(f"no credential {credential!r} is known here; see {CLIENT} credentials", code="unknown")
    return dict(row)


def _compare(row: Row, expected_generation: int) -> None:
    if row["generation"] != expected_generation:
        raise AccessRefused(
            f"{row['name']} is at generation {row['generation']}, you decided on {expected_generation} "
            f"({row['changed_by']}: {row['why']}); look at it again",
            code="stale",
        )


async def set_policy(ledger: Ledger, policy: AccessPolicy, name: str, reason: str) -> Row:
    """Put the next access policy in force. The same version with the same rules again is no change.

    Once this returns, no permit is given under the one before it: those that are being taken are waited for.
    Raises AccessRefused (`stale`): the version is not higher than the one in force.
    """
    body = policy.model_dump(mode="json")
    for rule in body["rules"]:
        rule["actions"] = sorted(rule["actions"])
    async with ledger.transaction() as connection:
        await connection.execute("LOCK TABLE actonce.access_policy IN SHARE ROW EXCLUSIVE MODE")
        # Every permit shares its credential's row before it reads the policy: it is waited for, or it reads this one.
        await connection.execute("LOCK TABLE actonce.credential IN EXCLUSIVE MODE")
        newest = await one(connection, "SELECT * FROM actonce.access_policy ORDER BY version DESC LIMIT 1")
        if newest is not None and (newest["version"], newest["body"]) == (policy.version, body):
            return dict(newest)
        if newest is not None and policy.version <= newest["version"]:
            raise AccessRefused(
                f"policy {newest['version']} is in force; the next one needs a higher version than {policy.version}",
                code="stale",
            )
        row = await one(
            connection,
            "INSERT INTO actonce.access_policy (version, body, name, reason) VALUES (%s, %s, %s, %s) RETURNING *",
            (policy.version, Jsonb(body), name, reason),
        )
        assert row is not None
        await audit(
            connection, "access_policy.set", None, {"version": policy.version, "name": name, "reason": reason, **body}
        )
        return dict(row)


async def policy_in_force(ledger: Ledger) -> Row | None:
    """The newest access policy, None while there is none (then nothing is allowed)."""
    async with ledger.transaction() as connection:
        row = await one(connection, "SELECT * FROM actonce.access_policy ORDER BY version DESC LIMIT 1")
        return dict(row) if row else None


async def list_credentials(ledger: Ledger) -> list[Row]:
    """Every credential with its leases in force and its latest authorisation checks. No secret is in it."""
    async with ledger.transaction() as connection:
        found = [dict(r) for r in await many(connection, "SELECT * FROM actonce.credential ORDER BY name")]
        leases = await many(
            connection,
            "SELECT l.*, (SELECT jsonb_agg(jsonb_build_object('destination', a.destination, 'action', a.action,"
            " 'allowed', a.allowed, 'words', a.words, 'policy_version', a.policy_version, 'at', a.at) ORDER BY a.at)"
            " FROM actonce.authorisation a WHERE a.lease_id = l.lease_id) AS checks FROM actonce.lease l"
            " WHERE l.revoked_at IS NULL AND l.expires_at > clock_timestamp() ORDER BY l.issued_at",
        )
        for row in found:
            row["leases"] = [dict(lease) for lease in leases if lease["credential"] == row["name"]]
        return found
