"""Short leases of credentials: got from a lease manager, renewed ahead of their end, resolved at the moment of use."""

from actonce.credentials.broker import Broker, BrokerSettings, Health, LeaseBook
from actonce.credentials.memory import MemoryProvider
from actonce.credentials.provider import Grant, Provider
from actonce.credentials.settings import CredentialSettings, load_broker
from actonce.credentials.vault import VaultProvider, VaultSettings

__all__ = [
    "Broker",
    "BrokerSettings",
    "CredentialSettings",
    "Grant",
    "Health",
    "LeaseBook",
    "MemoryProvider",
    "Provider",
    "VaultProvider",
    "VaultSettings",
    "load_broker",
]
