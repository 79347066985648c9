"""Secrets in an encrypted file: what leases of it do, and each way in which the file cannot be used."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from actonce import cli_secrets
from actonce.contracts.credential import Lease, NoLease
from actonce.contracts.errors import LeaseDenied, LeaseGone, SealedFileUnusable
from actonce.contracts.verdict import Reason
from actonce.credentials import Broker, CredentialSettings, FileProvider, SealedFile, load_broker, sealed
from actonce.credentials.sealed import Account, new_key
from tests.unit.credentials.test_broker import Book

SECRET = "marked-secret-of-a-test"
ACCOUNT = Account(principal="agent", scope=("x:write",), secret=SECRET)


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least cost that a reader takes: what is tested is not how dear guessing is."""
    monkeypatch.setattr(sealed, "_COST", 2**14)


@pytest.fixture
def file(tmp_path: Path) -> SealedFile:
    new_key(tmp_path / "key")
    made = SealedFile(tmp_path / "credentials.sealed", key_file=tmp_path / "key")
    made.write({"c": ACCOUNT})
    return made


def changed(**change: Any) -> dict[str, Account]:
    return {"c": ACCOUNT.model_copy(update=change)}


def test_what_was_sealed_is_read_back_and_is_not_in_the_file(file: SealedFile) -> None:
    assert file.read() == {"c": ACCOUNT}
    data = file.path.read_bytes()
    assert SECRET.encode() not in data and b"agent" not in data
    assert file.path.stat().st_mode & 0o777 == 0o600
    again = SealedFile(file.path.with_name("again"), key_file=file.key_file)
    again.write({"c": ACCOUNT})
    first, second = (json.loads(one.path.read_bytes()) for one in (file, again))
    assert first["sealed"] != second["sealed"] and first["header"]["salt"] != second["header"]["salt"]


def test_a_key_of_the_environment_opens_it_too(file: SealedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    assert file.key_file is not None
    monkeypatch.setenv("THE_KEY", file.key_file.read_text())
    assert SealedFile(file.path, key_env="THE_KEY").read() == {"c": ACCOUNT}
    monkeypatch.delenv("THE_KEY")
    with pytest.raises(SealedFileUnusable, match="environment variable THE_KEY"):
        SealedFile(file.path, key_env="THE_KEY").read()


def spoil_another_key(file: SealedFile) -> None:
    assert file.key_file is not None
    file.key_file.unlink()
    new_key(file.key_file)


def spoil_short_key(file: SealedFile) -> None:
    assert file.key_file is not None
    file.key_file.write_text("hunter2\n")


def spoil_truncated(file: SealedFile) -> None:
    os.truncate(file.path, file.path.stat().st_size // 2)


def spoil_empty(file: SealedFile) -> None:
    os.truncate(file.path, 0)


def _edit(file: SealedFile, edit: Any) -> None:
    said = json.loads(file.path.read_bytes())
    edit(said)
    file.path.write_text(json.dumps(said))


def spoil_content(file: SealedFile) -> None:
    def flip(said: Any) -> None:
        said["sealed"] = ("A" if said["sealed"][0] != "A" else "B") + said["sealed"][1:]

    _edit(file, flip)


def spoil_cost(file: SealedFile) -> None:
    """Another cost makes another key: it is told as one, before anything is opened."""
    _edit(file, lambda said: said["header"].update(cost=2**15))


def spoil_cheaper(file: SealedFile) -> None:
    _edit(file, lambda said: said["header"].update(cost=2))


def spoil_format(file: SealedFile) -> None:
    _edit(file, lambda said: said["header"].update(format="actonce-credentials/9"))


def spoil_gone(file: SealedFile) -> None:
    file.path.unlink()


def spoil_key_gone(file: SealedFile) -> None:
    assert file.key_file is not None
    file.key_file.unlink()


def spoil_open_key(file: SealedFile) -> None:
    assert file.key_file is not None
    file.key_file.chmod(0o644)


def spoil_open_file(file: SealedFile) -> None:
    file.path.chmod(0o666)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_another_key, "was sealed with another key than the one in .*key"),
        (spoil_short_key, "fewer than 16 characters"),
        (spoil_truncated, "is cut short"),
        (spoil_empty, "is cut short"),
        (spoil_content, "was changed or damaged after it was sealed"),
        (spoil_cost, "was sealed with another key"),
        (spoil_cheaper, "is cut short, or is no file of"),
        (spoil_format, "has the format 'actonce-credentials/9'"),
        (spoil_gone, "sealed file .*credentials.sealed cannot be read: No such file"),
        (spoil_key_gone, "key file .*key cannot be read: No such file"),
        (spoil_open_key, r"key file .*key is open to others \(mode 0644\): chmod 600"),
        (spoil_open_file, r"sealed file .* is open to others \(mode 0666\): chmod go-w"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_each_way_of_being_unusable_has_its_own_words_and_hurts_no_lease(
    file: SealedFile, spoil: Any, words: str
) -> None:
    provider = FileProvider(file)
    grant = await provider.issue("c")
    spoil(file)
    for ask, name in ((provider.check, grant.lease_id), (provider.renew, grant.lease_id), (provider.issue, "c")):
        with pytest.raises(SealedFileUnusable, match=words) as told:
            await ask(name)
        assert SECRET not in str(told.value) and SECRET not in repr(told.value.__cause__)
    file.path.unlink(missing_ok=True)
    if file.key_file is not None:
        file.key_file.unlink(missing_ok=True)
        new_key(file.key_file)
    file.write({"c": ACCOUNT})
    await provider.check(grant.lease_id)


def test_a_writer_that_fails_leaves_the_old_file_whole(file: SealedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        file.write(changed(secret="another-secret"))
    assert file.read() == {"c": ACCOUNT}
    assert sorted(p.name for p in file.path.parent.iterdir()) == ["credentials.sealed", "key"]


def test_whoever_changes_it_keeps_others_out_until_it_is_written(file: SealedFile) -> None:
    """Without the lock the second of two would put back what it read before the first had written."""
    lock = file.path.with_name(".credentials.sealed.lock")

    def change(accounts: dict[str, Account]) -> dict[str, Account]:
        with lock.open("rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return accounts | {"d": ACCOUNT}

    file.change(change)
    with lock.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert sorted(file.read()) == ["c", "d"]


async def test_a_changed_secret_is_leased_beside_the_old_one_and_a_removed_one_is_gone(file: SealedFile) -> None:
    provider = FileProvider(file)
    old = await provider.issue("c")
    assert (old.secret, old.principal, old.scope, old.left_s) == (SECRET, "agent", ("x:write",), 300.0)
    assert await provider.renew(old.lease_id) == 300.0
    file.write(changed(secret="another-secret"))
    await provider.check(old.lease_id)
    with pytest.raises(LeaseDenied, match="c was changed in its file"):
        await provider.renew(old.lease_id)
    assert (await provider.issue("c")).secret == "another-secret"
    file.write({})
    with pytest.raises(LeaseGone, match="taken out of"):
        await provider.check(old.lease_id)
    with pytest.raises(LeaseDenied, match="has no credential c"):
        await provider.issue("c")


async def test_it_is_opened_once_for_all_who_ask_and_again_when_it_was_replaced(
    file: SealedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[bytes] = []
    really = SealedFile._keys
    monkeypatch.setattr(SealedFile, "_keys", lambda *a: opened.append(b"") or really(*a))
    provider = FileProvider(file)
    grants = await asyncio.gather(*(provider.issue("c") for _ in range(5)))
    for grant in grants:
        await provider.check(grant.lease_id)
    assert len(opened) == 1
    file.write(changed(scope=("x:read",)))
    assert (await provider.issue("c")).scope == ("x:read",)
    assert len(opened) == 3  # written, read


async def test_the_broker_goes_over_to_a_changed_secret_and_ends_a_removed_credential(file: SealedFile) -> None:
    broker, book = Broker(FileProvider(file)), Book()
    broker._book = book
    first = await broker.lease("c")
    assert isinstance(first, Lease) and broker.secret_of(first) == SECRET
    file.write(changed(secret="another-secret"))
    second = await broker.lease("c", instead_of=first)
    assert isinstance(second, Lease) and broker.secret_of(second) == "another-secret"
    file.write({})
    await broker.tick()
    gone = await broker.lease("c")
    assert isinstance(gone, NoLease) and gone.reason is Reason.CREDENTIAL_REVOKED
    assert [what for what, _ in book.said] == ["issued", "issued", "ended"]
    await broker.close()


async def test_the_settings_name_one_manager_and_one_key(file: SealedFile, tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"sealed_file": {"path": str(file.path), "key_file": str(file.key_file)}}))
    broker = load_broker(settings)
    broker._book = Book()
    assert isinstance(await broker.lease("c"), Lease)
    await broker.close()
    for wrong, words in (
        ({}, "exactly one lease manager"),
        ({"sealed_file": {"path": "x"}}, "either key_file or key_env"),
        ({"sealed_file": {"path": "x", "key_file": "k", "key_env": "K"}}, "either key_file or key_env"),
    ):
        with pytest.raises(ValueError, match=words):
            CredentialSettings.model_validate(wrong)


def test_the_commands_write_list_remove_and_reseal_without_showing_a_secret(tmp_path: Path) -> None:
    key, other, file = (str(tmp_path / name) for name in ("key", "other", "file"))

    def run(*arguments: str, says: str | None = None, status: int = 0) -> str:
        done = CliRunner().invoke(cli_secrets.app, list(arguments), input=says)
        assert done.exit_code == status, done.output
        assert SECRET not in done.output
        return " ".join(done.output.split())

    run("new-key", key)
    assert "File exists" in run("new-key", key, status=1)
    put = ("put", file, "c", "--principal", "agent", "--scope", "x:write", "--key-file", key)
    assert "c is in" in run(*put, says=SECRET + "\n")
    assert SealedFile(Path(file), key_file=Path(key)).read() == {"c": ACCOUNT}
    run(*put, says="", status=2)
    assert "agent x:write 300" in run("list", file, "--key-file", key)
    run("list", file, status=2)
    run("new-key", other)
    run("rekey", file, "--key-file", key, "--new-key-file", other)
    assert "another key" in run("list", file, "--key-file", key, status=1)
    assert "no credential d; it has: c" in run("remove", file, "d", "--key-file", other, status=1)
    run("remove", file, "c", "--key-file", other)
    assert SealedFile(Path(file), key_file=Path(other)).read() == {}
