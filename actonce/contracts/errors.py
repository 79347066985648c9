"""Every error actonce raises, as one tree. Each message states the fact, the id and the next step.

ActonceError
├── ContractError            a destination contract or route that cannot be true; refused at start-up
│   └── NotRegistered        this worker has no contract for the destination; another one may
├── PayloadError             a payload that has no stable digest (float, NaN, oversize, ...)
├── KeyNotMappable           an operation_id that the destination's key format cannot carry
├── LedgerError
│   ├── LedgerUnavailable    the ledger did not answer; nothing may be sent
│   ├── ForeignLedger        the ledger is not the one this deployment was set up with
│   ├── NoIntent             the operation is not in this ledger; nothing was sent from it
│   ├── StaleWrite           compare-and-set on (epoch, attempt, version) lost; re-read and reconcile
│   ├── StillOpen            a task cannot end while operations of it are open; settle them, then it can
│   ├── StillRecording       another request holds this task key and has not ended (defined in ledger/tasks.py)
│   └── IntentConflict       same operation identity, other digest; nothing was sent
├── SendFenced               the permit may no longer be used; nothing was sent
├── NotSent                  the tool proves that no byte of a complete request left
├── NotAccepted              the contract says the destination did not process it (401, 429)
├── Refused                  the contract's definite decline: final
├── Unknown                  everything else after a send: reconcile, never resend
│   ├── DuplicateRefused     the destination says that it exists already: reconcile and page, never swallow
│   └── StoredErrorReplayed  the destination replayed a stored error under our key: hold, never retry
├── CredentialError
│   ├── ManagerUnavailable   the lease manager did not answer; what is leased stays good until it expires
│   │   └── SealedFileUnusable   the encrypted file of secrets: not there, cut short, another key, open to others
│   ├── LeaseDenied          the lease manager refuses to give, or to prolong, a lease
│   └── LeaseGone            the lease is revoked or unknown at its manager: it, its parent, or a restart
├── RouteUnavailable         a route gave no usable page (no answer, 5xx, 401/403); it says nothing about absence
├── AccessRefused            a rotation, revocation or access policy that was decided on something older, or unknown
├── DecisionRefused          an operator's decision before its time, stale or not permitted
├── ApprovalRefused          a click that decides nothing: too late, second, about something else
├── TaskConflict             same task key, other payload
├── MemoryRefused            a question or a thing to remember that cannot be taken; asking again changes nothing
├── BacklogFull              no further task of this type is accepted now; nothing was recorded
├── ReleaseRefused           a change of release or deadline that was decided on something older
├── RestoreRefused           a sweep, a release from quarantine or a close that cannot be made now
├── PersonRefused            a change of people or tokens that cannot be made
└── SignInRefused            somebody may not sign in: not these words, or too often
"""

from __future__ import annotations


class ActonceError(Exception):
    """Base of every error of this library."""


class ContractError(ActonceError):
    """A destination contract, route or registration that cannot be true."""


class NotRegistered(ContractError):
    """This worker has no contract for a destination. Nothing was sent from here; one that has it may go on."""


class PayloadError(ActonceError):
    """A payload without a stable digest."""


class KeyNotMappable(ActonceError):
    """The destination's key alphabet or length cannot carry the operation_id injectively."""


class LedgerError(ActonceError):
    """Base of ledger errors."""


class LedgerUnavailable(LedgerError):
    """The ledger did not answer in time. Nothing may be sent on the strength of it."""


class ForeignLedger(LedgerError):
    """The ledger's identity is not the expected one (empty, restored elsewhere or foreign)."""


class StillOpen(LedgerError):
    """A task cannot end while operations of it are not final. The ledger watcher settles or holds them; ask again."""


class NoIntent(LedgerError):
    """The operation has no intent in this ledger, so nothing was sent from it."""


class StaleWrite(LedgerError):
    """A write about an attempt lost its compare-and-set. Re-read and reconcile."""


class IntentConflict(LedgerError):
    """The same operation identity was used with another payload digest, or its natural effect key is taken."""


class SendFenced(ActonceError):
    """The permit may no longer be used. Nothing was sent under it by this call."""


class NotSent(ActonceError):
    """The tool can prove that the request never left whole (typed errors only)."""


class NotAccepted(ActonceError):
    """The destination did not process the request (per contract); the cause must be cured first."""

    def __init__(self, message: str, *, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class Refused(ActonceError):
    """The destination's definite decline of this request. Final for the operation where no other request is out.

    `replayed`: it is the stored answer to our key, so it speaks for every request that went under it.
    """

    def __init__(
        self, message: str, *, status: int | None = None, code: str | None = None, replayed: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.replayed = replayed


class Unknown(ActonceError):
    """The outcome of a request that may have left is unknown. Reconcile; never resend."""


class DuplicateRefused(Unknown):
    """The destination refuses because the same thing exists already. Whose it is, only reconciliation can tell."""

    duplicate = True


class StoredErrorReplayed(Unknown):
    """The destination replayed a stored error under our key. Another send would get the same; hold."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class CredentialError(ActonceError):
    """Base of what can go wrong with a lease. No message has a secret in it."""


class ManagerUnavailable(CredentialError):
    """The lease manager did not answer. What is leased already stays good until it expires."""


class SealedFileUnusable(ManagerUnavailable):
    """An encrypted file of secrets that cannot be used as it is. The message says which file, why, and what to do."""


class LeaseDenied(CredentialError):
    """The lease manager refuses to give, or to prolong, a lease."""


class LeaseGone(CredentialError):
    """The lease is revoked or unknown at its manager: it was revoked, its parent was, or the manager restarted."""


class RouteUnavailable(ActonceError):
    """A route gave no usable page. It is never evidence of absence."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class AccessRefused(ActonceError):
    """A rotation, a revocation or an access policy that may not be taken: `unknown` or `stale`."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class AuthorityRefused(ActonceError):
    """Authority at a destination that may not be given, lowered or withdrawn so. Nothing was changed."""


class DecisionRefused(ActonceError):
    """An operator's decision that may not be taken (now)."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        may_commit_until: str | None = None,
        decided_by: str | None = None,
        decided_at: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.may_commit_until = may_commit_until
        self.decided_by = decided_by
        self.decided_at = decided_at


class ApprovalRefused(ActonceError):
    """A click about an approval that changes nothing. It is on record as a click where there is such an approval."""

    def __init__(
        self, message: str, *, code: str, decided_by: str | None = None, decided_at: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.decided_by = decided_by
        self.decided_at = decided_at


class TaskConflict(ActonceError):
    """The same task key arrived with another payload."""


class MemoryRefused(ActonceError):
    """A question to the memory, or a thing to remember, that is not acceptable. Trying again changes nothing."""


class BacklogFull(ActonceError):
    """The backlog has reached its bound. Nothing of the request was recorded; the same request later is as good."""

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ReleaseRefused(ActonceError):
    """A change of release control or of a deadline, decided on something that has changed since."""


class RestoreRefused(ActonceError):
    """A sweep, a release from quarantine, or the close of a restore, that cannot be made now.

    Codes: `no_restore` (none is open), `too_early` (its bounds have not passed), `not_swept`, `incomplete` (a route
    gave no answer), `unbalanced` (the two sides do not add up), `stale` (it was decided on another epoch),
    `quarantined` (tasks wait for a release), `press_reused` (for something else).
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class PersonRefused(ActonceError):
    """A change of people or tokens that cannot be made.

    Codes: `name`, `password`, `role`, `scope` (what is given does not do), `taken` (there is such a person),
    `unknown` (there is none, or no such token), `last_admin`, `stale` (it was decided on something older),
    `press_reused` (for something else).
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class SignInRefused(ActonceError):
    """Somebody may not sign in. The words are the same whether there is such a person or not.

    Codes: `wrong`, `too_many` (with `retry_after_s`), `no_role` and `taken` (of an identity provider's people).
    """

    def __init__(self, message: str, *, code: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s
