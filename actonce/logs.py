"""Logs of our programs: one JSON line on standard error for each event, tracebacks without local variables.

Local variables may hold payloads and the ledger's password; they have no place in a log.
"""

from __future__ import annotations

import sys

import structlog


def configure() -> None:
    """Call once, before anything logs."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
