"""What a lease manager must be able to do. Implement `Provider` for yours.

Errors are typed, and what they mean is the whole contract: `ManagerUnavailable` says nothing about a lease,
`LeaseDenied` means that this manager will not give or prolong one, `LeaseGone` that one is dead although its time is
not over. Anything else that is raised counts as `ManagerUnavailable`. A provider retries nothing and keeps no lease:
the broker decides when to ask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Grant:
    """A new lease as the manager gave it. The secret is not part of its representation."""

    lease_id: str  # names it at the manager; opens nothing
    secret: str = field(repr=False)
    principal: str
    scope: tuple[str, ...]
    left_s: float  # from the moment at which it was asked for
    parent: str | None = None  # what it dies with


class Provider(Protocol):
    """A lease manager. Every call ends within the broker's deadline or is cancelled."""

    async def issue(self, credential: str) -> Grant:
        """A new lease. Raises LeaseDenied or ManagerUnavailable."""
        ...

    async def renew(self, lease_id: str) -> float:
        """Prolong; return the seconds left from the moment of asking. Raises LeaseGone, LeaseDenied (its longest life
        is reached) or ManagerUnavailable."""
        ...

    async def check(self, lease_id: str) -> None:
        """Is it still good? Raises LeaseGone or ManagerUnavailable."""
        ...

    async def revoke(self, lease_id: str) -> None:
        """End it; one that is gone already is no error. Raises ManagerUnavailable."""
        ...

    async def close(self) -> None:
        """The process stops."""
        ...
