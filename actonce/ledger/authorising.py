"""May this lease be used for that? The access policy's decisions, each on record, and the gates that ask for them.

`check` is the gate: in the permit's transaction the named lease is in force, of the credential's present generation,
and allowed by the policy in force. `unmet` says why a held operation may not be resumed: its credential has to be
rotated first, and a *new* authorisation check under the new lease has to allow it. A decision is made once for each
lease, use and version of the policy, and has its audit event.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

from actonce.contracts.commands import CLIENT
from actonce.contracts.contract import Contract
from actonce.contracts.credential import AccessPolicy, Authorisation, CredentialState, Lease, NoLease, authorise
from actonce.contracts.verdict import Reason
from actonce.ledger.store import Connection, Operation, audit, one, utc

Row = dict[str, Any]
ENDED: dict[CredentialState, Reason] = {
    "expired": Reason.CREDENTIAL_EXPIRED,
    "revoked": Reason.CREDENTIAL_REVOKED,
}


@dataclass(frozen=True)
class Use:
    """What a credential is needed for, as the registered contracts say."""

    credential: str
    destination: str
    action: str
    scope: str
    principal: str | None = None  # as whom the contract acts, where it says so: what people approved


def uses_of(contracts: Iterable[Contract]) -> list[Use]:
    """Every effect that needs a leased credential. Reading needs a lease too, and no permission of the policy."""
    return [
        Use(use.name, contract.name, action, use.scope, contract.principal)
        for contract in contracts
        if (use := contract.write_credential) is not None
        for action in sorted(contract.actions)
    ]


# the gate ---------------------------------------------------------------------------------------------------------


async def check(
    connection: Connection, operation: Operation, contract: Contract, lease: Lease | NoLease | None
) -> datetime | NoLease | None:
    """Until when a permit under this lease may live; why there may be none; None when the contract leases nothing.

    `NoLease.stale`: the credential is well and the lease is not; a fresh one may pass.
    """
    use = contract.write_credential
    if use is None:
        return None
    if lease is None or isinstance(lease, NoLease):
        return lease or NoLease(Reason.CREDENTIAL_UNAVAILABLE, f"no lease of {use.name} was asked for")
    if lease.credential != use.name:
        return NoLease(Reason.CREDENTIAL_UNAVAILABLE, f"a lease of {lease.credential} is none of {use.name}")
    row = await one(
        connection,
        "SELECT c.state, c.why, c.generation AS present, l.*, clock_timestamp() AS now,"
        " l.expires_at - clock_timestamp() < make_interval(secs => %s) AS late"
        " FROM actonce.credential c JOIN actonce.lease l ON c.name = l.credential WHERE l.lease_id = %s"
        " FOR SHARE OF c, l",  # a revocation waits for this permit, or is seen
        (use.min_left_s, lease.lease_id),
    )
    if row is None:
        return NoLease(Reason.CREDENTIAL_UNAVAILABLE, f"lease {lease.lease_id} is not in this ledger", stale=True)
    if row["state"] != "active":
        return NoLease(ENDED[row["state"]], f"{use.name} is {row['state']}: {row['why']}")
    if row["revoked_at"] is not None:
        words = f"lease {lease.lease_id} of {use.name} was revoked at {utc(row['revoked_at'])}: {row['revoked_why']}"
        return NoLease(Reason.CREDENTIAL_REVOKED, words, stale=True)
    if row["late"] or row["generation"] != row["present"]:
        what = f"ends at {utc(row['expires_at'])}" if row["late"] else "was replaced by a rotation"
        return NoLease(Reason.CREDENTIAL_EXPIRED, f"lease {lease.lease_id} of {use.name} {what}", stale=True)
    wanted = Use(use.name, operation.destination, operation.action, use.scope, contract.principal)
    decided = await authorised(connection, row, wanted)
    if not decided.allowed:
        return NoLease(Reason.NOT_AUTHORISED, decided.words)
    expires_at: datetime = row["expires_at"]
    return expires_at


# Of a dispatched operation `o`: why the lease of its permit may be used no more; NULL when it may, or there is none.
# A policy that is newer than the permit allows it once the lease was checked by it; until then a new permit is needed.
OVER: LiteralString = (
    "(SELECT CASE WHEN l.revoked_at IS NOT NULL THEN concat('it was revoked: ', l.revoked_why)"
    " WHEN c.state <> 'active' THEN concat(c.name, ' is ', c.state, ': ', c.why)"
    " WHEN c.generation <> l.generation THEN concat(c.name, ' was rotated by ', c.changed_by)"
    " WHEN NOT EXISTS (SELECT 1 FROM actonce.authorisation z WHERE z.lease_id = l.lease_id AND z.allowed"
    " AND z.destination = o.destination AND z.action = o.action AND z.policy_version ="
    " (SELECT coalesce(max(version), 0) FROM actonce.access_policy)) THEN 'the access policy has changed' END"
    " FROM actonce.attempt a JOIN actonce.lease l USING (lease_id) JOIN actonce.credential c ON c.name = l.credential"
    " WHERE a.nonce = o.nonce)"
)


async def authorised(connection: Connection, lease: Row, use: Use) -> Authorisation:
    """The decision of the policy in force about a lease: the recorded one, or made now and recorded."""
    version = await policy_version(connection)
    known = await one(
        connection,
        "SELECT allowed, words FROM actonce.authorisation WHERE lease_id = %s AND destination = %s AND action = %s"
        " AND scope = %s AND policy_version = %s",
        (lease["lease_id"], use.destination, use.action, use.scope, version),
    )
    if known is not None:
        return Authorisation(known["allowed"], known["words"])
    return await _decide(connection, lease, use, version)


async def _decide(connection: Connection, lease: Row, use: Use, version: int) -> Authorisation:
    """A new authorisation check, on record with its audit event."""
    policy = await _policy(connection, version)
    made = authorise(
        policy,
        principal=lease["principal"],
        destination=use.destination,
        action=use.action,
        scope=use.scope,
        granted=lease["scope"],
    )
    if use.principal is not None and use.principal != lease["principal"]:
        made = Authorisation(False, f"the lease makes us {lease['principal']}, the contract acts as {use.principal}")
    fresh = await one(
        connection,
        "INSERT INTO actonce.authorisation (lease_id, credential, principal, destination, action, scope, allowed,"
        " words, policy_version) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING RETURNING at",
        (
            lease["lease_id"],
            lease["credential"],
            lease["principal"],
            use.destination,
            use.action,
            use.scope,
            made.allowed,
            made.words,
            version,
        ),
    )
    if fresh is not None:
        body = {
            "lease_id": lease["lease_id"],
            "credential": lease["credential"],
            "principal": lease["principal"],
            "destination": use.destination,
            "action": use.action,
            "scope": use.scope,
            "allowed": made.allowed,
            "words": made.words,
            "policy_version": version,
        }
        await audit(connection, "authorisation.checked", None, body)
    return made


async def policy_version(connection: Connection) -> int:
    row = await one(connection, "SELECT coalesce(max(version), 0) AS version FROM actonce.access_policy")
    assert row is not None
    version: int = row["version"]
    return version


async def _policy(connection: Connection, version: int) -> AccessPolicy:
    """Without any policy nothing is allowed: version 0 has no rule."""
    row = await one(connection, "SELECT body FROM actonce.access_policy WHERE version = %s", (version,))
    return AccessPolicy.model_validate(row["body"]) if row else AccessPolicy.model_construct(version=0, rules=())


# resuming ---------------------------------------------------------------------------------------------------------

_GATES = frozenset(
    r.value
    for r in (
        Reason.CREDENTIAL_EXPIRED,
        Reason.CREDENTIAL_REVOKED,
        Reason.CREDENTIAL_UNAVAILABLE,
        Reason.NOT_AUTHORISED,
    )
)
_HELD = """
SELECT c.name, c.state, c.why, c.generation, h.opened_at, use ->> 'scope' AS scope,
    (SELECT coalesce(max(version), 0) FROM actonce.access_policy) AS policy_version
FROM actonce.operation o
JOIN actonce.contract k ON k.name = o.destination AND k.digest = o.contract_digest
CROSS JOIN LATERAL jsonb_array_elements(k.body -> 'credentials') AS use
JOIN actonce.credential c ON c.name = use ->> 'name' AND c.name = k.body -> 'write' ->> 'credential'
JOIN actonce.hold h ON h.tenant = o.tenant AND h.destination = o.destination AND h.action = o.action
    AND h.operation_id = o.operation_id AND h.closed_at IS NULL
WHERE o.tenant = %(tenant)s AND o.destination = %(destination)s AND o.action = %(action)s
    AND o.operation_id = %(operation_id)s
"""
_CHECKS = """
SELECT a.allowed, a.words FROM actonce.authorisation a JOIN actonce.lease l USING (lease_id)
WHERE l.credential = %(name)s AND l.generation = %(generation)s AND l.revoked_at IS NULL
    AND l.expires_at > clock_timestamp() AND (l.issued_at > %(opened_at)s OR %(reason)s = 'not_authorised')
    AND a.destination = %(destination)s AND a.action = %(action)s AND a.scope = %(scope)s
    AND a.policy_version = %(policy_version)s AND a.at > %(opened_at)s
ORDER BY a.allowed, a.authorisation_id DESC LIMIT 1
"""


async def unmet(connection: Connection, operation: Operation) -> str | None:
    """Why an operation that a credential's gate holds may not be resumed yet; None when it may (or is none of ours).

    Reads only. The permit that follows is checked anew, under the lease of whoever takes it.
    """
    if operation.reason not in _GATES:
        return None
    names = {
        "tenant": operation.tenant,
        "destination": operation.destination,
        "action": operation.action,
        "operation_id": operation.operation_id,
    }
    held = await one(connection, _HELD, names)
    if held is None:
        return None  # its contract leases nothing any more
    if held["state"] != "active":
        return (
            f"{held['name']} is {held['state']} ({held['why']}); rotate it first: {CLIENT} credentials, then "
            f"{CLIENT} rotate {held['name']} …"
        )
    made = await one(connection, _CHECKS, {**names, **held, "reason": operation.reason})
    if made is None:
        return (
            f"no new authorisation check was made for {held['name']} since it was held; one is made within a renewal "
            "tick after a rotation or after a new access policy, if the lease manager gives a lease: see "
            f"{CLIENT} credentials"
        )
    if not made["allowed"]:
        return f"the new authorisation check refused it: {made['words']}; end it with mark_absent, or change the policy"
    return None
