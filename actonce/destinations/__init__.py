"""Destinations: one contract, one function that sends, one function per route. Adapters for common shapes."""

from actonce.destinations.base import Call, Destination, Lookup, Registry, current_call, current_operation_id

__all__ = ["Call", "Destination", "Lookup", "Registry", "current_call", "current_operation_id"]
