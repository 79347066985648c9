"""Sealed audit events leave here for sinks outside the ledger: a folder of files, or a log collector (OTLP).

Promises: every sealed event is handed to every sink, in order, at least once; a sink that is full, hangs, refuses or
comes and goes delays its own events and nothing else; what a sink lost is noticed where the sink can tell its end. Does
not promise that an event arrives once: whoever reads a sink takes the first of equal `seq`. Knows no ledger: a
`Journal` gives the events. The shipper retries; sinks do not.
"""

from actonce.audit.files import FileSink, read_folder
from actonce.audit.otlp import OtlpSink
from actonce.audit.settings import AuditSettings, open_sinks
from actonce.audit.shipper import Journal, Shipper, Sink, SinkError

__all__ = [
    "AuditSettings",
    "FileSink",
    "Journal",
    "OtlpSink",
    "Shipper",
    "Sink",
    "SinkError",
    "open_sinks",
    "read_folder",
]
