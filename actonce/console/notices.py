"""What a page says above itself after a press: an address carries one of these names, and no words of anybody."""

from __future__ import annotations

DONE = {
    "signed-out": "You are signed out.",
    "decided": "Your decision is recorded. It takes effect after one more reading of the destination.",
    "decided-again": "This press had been recorded before; it is still one decision.",
    "waits-for-second": "Your decision is recorded. It has no effect before a second person agrees to it.",
    "agreed": "You agreed: the decision takes effect after one more reading of the destination.",
    "disagreed": "The decision is declined: it has no effect, and another one can be made.",
    "approved": "Your approval is recorded.",
    "rejected": "Your rejection is recorded. The step ends without anything sent.",
    "withdrawn": "The approval is withdrawn: no further permit is given on it.",
    "renewed": "A new approval is asked for, with a deadline of its own.",
    "acknowledged": "The page is acknowledged and not repeated. The incident stays open.",
    "released": "The release is changed.",
    "restore-released": "The group is released: its tasks go on where their records stand.",
    "restore-closed": "The restore is closed.",
    "rotated": "The credential is rotated: every process leases it anew, and each lease is checked.",
    "revoked": "The credential is revoked: no permit is given under it. What passed its fence before may still send.",
    "cancelled": "Cancellation is recorded; unused permits are void. What may have been sent is reconciled.",
    "ended-before": "The task had ended already; nothing was cancelled.",
    "deadline": "The deadline is changed.",
    "person-added": "They may sign in from now on.",
    "person-roles": "The roles are set.",
    "person-password": "The password is set. They are signed out everywhere.",
    "person-disabled": "They are disabled and signed out; their tokens open nothing.",
    "person-enabled": "They may sign in again.",
    "token-revoked": "The token is revoked: it opens nothing any more.",
    "own-password": "Your password is changed. Everywhere else you are signed out.",
}
