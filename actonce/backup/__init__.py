"""Backups with a recorded boundary, and a look at what was declared.

making      `actonce backup`: Temporal's file, the ledger's database (with the memory's schema), the audit files
manifest    what a backup consists of; written last, so that a folder without one is no backup
indexes     `actonce indexes`: keys, triggers and indexes that the migrations declare: there, valid, and answering
"""

from actonce.backup.manifest import BackupError, Manifest, read_manifest

__all__ = ["BackupError", "Manifest", "read_manifest"]
