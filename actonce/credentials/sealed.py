"""Secrets in one encrypted file, its key outside: what `FileProvider` reads and `actonce secrets` writes.

Promises: without the key, what is in the file can be neither read nor changed unnoticed (AES-256-GCM over the content
and the header; the key by scrypt from what the key file holds, with a fresh salt and a fresh nonce at each writing);
whoever reads finds the old file or the new one, never half of one, also after a crash; each way in which it cannot be
used has its own words, and none of them quotes a secret.

Does not promise: anything against somebody who has the key, against an older file put back in the place of a newer one,
or for what this process has in memory once it has read it. Retries nothing.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from actonce.contracts.errors import SealedFileUnusable

FORMAT = "actonce-credentials/1"
KEY_CHARACTERS_MIN = 16  # shorter is guessed sooner than scrypt makes guessing dear
_BYTES_MAX = 1_000_000  # it is read whole
_COST = 2**15  # scrypt's N: 32 MiB and about a tenth of a second a guess
_BLOCK = 8  # scrypt's r
_KEY_FORBIDDEN = 0o037  # of a key file's mode: its group may read it (a mounted secret of a container), nobody else
_FILE_FORBIDDEN = 0o022  # of the sealed file's: what others could write is not what we wrote


class Account(BaseModel):
    """One credential: a long-lived secret, and what leases of it are like."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    principal: str = Field(min_length=1)  # whom it makes us at the destination
    scope: tuple[str, ...]
    secret: str = Field(min_length=1, repr=False)
    life_s: float = Field(default=300.0, gt=0)  # of one lease


class _Accounts(BaseModel):
    """What is inside."""

    model_config = ConfigDict(extra="forbid")
    accounts: dict[str, Account]


_BASE64 = ConfigDict(extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")


class _Header(BaseModel):
    model_config = _BASE64
    format: str
    cost: int = Field(ge=2**14, le=2**20)
    salt: bytes = Field(min_length=16, max_length=16)
    check: bytes = Field(min_length=16, max_length=16)  # says whether a key is the right one before anything is opened
    nonce: bytes = Field(min_length=12, max_length=12)


class _Envelope(BaseModel):
    """The file: JSON, so that a person sees what it is; its bytes are Base64."""

    model_config = _BASE64
    header: _Header
    sealed: bytes


@dataclass(frozen=True)
class SealedFile:
    """Where the secrets are, and where their key is: a file, or the name of an environment variable."""

    path: Path
    key_file: Path | None = None
    key_env: str | None = field(default=None)

    def __post_init__(self) -> None:
        if (self.key_file is None) == (self.key_env is None):
            raise ValueError("a sealed file needs either key_file or key_env")

    def stamp(self) -> tuple[tuple[int, ...], ...]:
        """Differs when either file was replaced. Raises SealedFileUnusable when one is not there."""
        files = {"sealed file": self.path, "key file": self.key_file}
        return tuple(_stamp(file, what) for what, file in files.items() if file is not None)

    def read(self) -> dict[str, Account]:
        """Every credential in it. Takes a tenth of a second, on purpose. Raises SealedFileUnusable."""
        data = _bytes_of(self.path, "sealed file", _FILE_FORBIDDEN, "chmod go-w")
        try:
            envelope = _Envelope.model_validate_json(data)
        except ValidationError as error:
            raise SealedFileUnusable(
                f"{self.path} is cut short, or is no file of `actonce secrets`. Put back a copy that is whole"
            ) from _without_input(error)
        header = envelope.header
        if header.format != FORMAT:
            raise SealedFileUnusable(f"{self.path} has the format {header.format!r}; this version reads {FORMAT}")
        sealing, check = self._keys(header.salt, header.cost)
        if not hmac.compare_digest(check, header.check):
            raise SealedFileUnusable(f"{self.path} was sealed with another key than {self._whose}")
        return self._open(envelope, sealing)

    def change(self, change: Callable[[dict[str, Account]], dict[str, Account]], *, create: bool = False) -> None:
        """Read, change and replace it whole; two that change it at once do it one after the other.

        `create`: begin with nothing where there is no file. Raises SealedFileUnusable; the file is then as it was.
        """
        with self._alone():
            new = create and not self.path.exists()
            self.write(change({} if new else self.read()))

    def rekey(self, other: SealedFile) -> None:
        """Seal the same content with the key of `other`, which is the same file. Raises as `change`."""
        with self._alone():
            other.write(self.read())

    def write(self, accounts: dict[str, Account]) -> None:
        """Replace it by exactly these. Raises SealedFileUnusable when the key is not usable, OSError."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # dear to import, and only needed here

        salt, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
        sealing, check = self._keys(salt, _COST)
        header = _Header(format=FORMAT, cost=_COST, salt=salt, check=check, nonce=nonce)
        content = _Accounts(accounts=accounts).model_dump_json().encode()
        sealed = AESGCM(sealing).encrypt(nonce, content, _bound(header))
        _replace(self.path, _Envelope(header=header, sealed=sealed).model_dump_json(indent=1).encode())

    def _open(self, envelope: _Envelope, sealing: bytes) -> dict[str, Account]:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            content = AESGCM(sealing).decrypt(envelope.header.nonce, envelope.sealed, _bound(envelope.header))
        except InvalidTag as error:
            raise SealedFileUnusable(
                f"{self.path} was changed or damaged after it was sealed. Put back a copy that is whole"
            ) from error
        try:
            return _Accounts.model_validate_json(content).accounts
        except ValidationError as error:
            raise SealedFileUnusable(
                f"{self.path} was opened, and what is in it is not what this version expects"
            ) from _without_input(error)

    @property
    def _whose(self) -> str:
        return f"the one in {self.key_file}" if self.key_file else f"the one in the environment variable {self.key_env}"

    def _keys(self, salt: bytes, cost: int) -> tuple[bytes, bytes]:
        """(the key that seals, what tells that it is the right one). The second says nothing about the first."""
        memory_max = 2 * 128 * cost * _BLOCK
        made = hashlib.scrypt(self._words(), salt=salt, n=cost, r=_BLOCK, p=1, maxmem=memory_max, dklen=48)
        return made[:32], made[32:]

    def _words(self) -> bytes:
        if self.key_file is not None:
            words = _bytes_of(self.key_file, "key file", _KEY_FORBIDDEN, "chmod 600").strip()
        else:
            words = os.environb.get(os.fsencode(str(self.key_env)), b"").strip()
            if not words:
                raise SealedFileUnusable(f"the environment variable {self.key_env}, the key of {self.path}, is not set")
        if len(words) < KEY_CHARACTERS_MIN:
            raise SealedFileUnusable(
                f"the key of {self.path} has fewer than {KEY_CHARACTERS_MIN} characters. "
                "Make one with `actonce secrets new-key`"
            )
        return words

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """The lock is a file beside it: the file itself is replaced by its writer."""
        try:
            lock = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SealedFileUnusable(f"{self.path.parent} takes no file: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def new_key(path: Path) -> None:
    """Write a random key into a new file that only its owner may read. Raises FileExistsError: a key is never lost."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(base64.b64encode(secrets.token_bytes(32)) + b"\n")
        out.flush()
        os.fsync(out.fileno())


def _bound(header: _Header) -> bytes:
    """What is sealed together with the content. Not JSON: two writings of one header would be two headers."""
    return b"\0".join([header.format.encode(), str(header.cost).encode(), header.salt, header.check])


def _stamp(file: Path, what: str) -> tuple[int, ...]:
    try:
        now = file.stat()
    except OSError as error:
        raise SealedFileUnusable(f"the {what} {file} cannot be read: {error.strerror}") from error
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def _bytes_of(file: Path, what: str, forbidden: int, cure: str) -> bytes:
    """Its content, where nobody could have read or written it who must not: looked at in the file that is open."""
    try:
        with file.open("rb") as source:
            mode = stat.S_IMODE(os.fstat(source.fileno()).st_mode)
            if mode & forbidden:
                raise SealedFileUnusable(f"the {what} {file} is open to others (mode {mode:04o}): {cure} {file}")
            data = source.read(_BYTES_MAX + 1)
    except OSError as error:
        raise SealedFileUnusable(f"the {what} {file} cannot be read: {error.strerror}") from error
    if len(data) > _BYTES_MAX:
        raise SealedFileUnusable(f"the {what} {file} is longer than {_BYTES_MAX} bytes: it is not one of ours")
    return data


def _replace(path: Path, data: bytes) -> None:
    """The old file or the new one, and on the disk before this returns. A link stays one."""
    path = path.resolve()
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _without_input(error: ValidationError) -> ValueError:
    """What is wrong with it, without what it says: that may be a secret."""
    where = {".".join(map(str, one["loc"])) or "the whole" for one in error.errors(include_input=False)}
    return ValueError(f"not as expected: {', '.join(sorted(where))}")
