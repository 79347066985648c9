"""The operator's console: what is stuck, why, since when, what may have happened in the world, and what to do.

Promises: every page is whole without a script, escapes all it shows, and is read from the ledger, so it is there while
Temporal and all workers are down; what it cannot know it says, and a reading that is old is never shown as current.
Reads only: whatever a person does goes through the entry service, which decides. No page is served to somebody who is
not signed in (`person`). Does not serve anything of a customer's in an address, and keeps no access log.
"""
