"""Short leases of credentials: got from a lease manager, renewed ahead of their end, resolved at the moment of use."""

from actonce.credentials.broker import Broker, BrokerSettings, Health, LeaseBook
from actonce.credentials.file import FileProvider
from actonce.credentials.memory import MemoryProvider
from actonce.credentials.provider import Grant, Provider
from actonce.credentials.sealed import SealedFile
from actonce.credentials.settings import CredentialSettings, load_broker
from actonce.credentials.vault import VaultProvider, VaultSettings

__all__ = [
    "Broker",
    "BrokerSettings",
    "CredentialSettings",
    "FileProvider",
    "Grant",
    "Health",
    "LeaseBook",
    "MemoryProvider",
    "Provider",
    "SealedFile",
    "VaultProvider",
    "VaultSettings",
    "load_broker",
]
