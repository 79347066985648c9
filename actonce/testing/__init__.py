"""For everyone's drills: what breaks a system on purpose, and what records that it broke.

    plugin, drilling    a test of one's own workflow as a drill (docs/guides/drill-your-own.md)
    destination         a controlled destination; listener, latches, journal, challenge are what it is made of
    parts, site         what drills share, and one drill's own corner: ledger, proxies, taps, processes
    strikes             what is done to one operation in flight; faults, tap, processes, witness do it and see it
    controls, swapping  one protection taken out, so that a drill is seen to fail
    export, settling    what the ledger says, and when a drill may end
    selftest, sink, page_log, waiting

The system under test is touched only as processes and through sockets; nothing here imports it.
"""
