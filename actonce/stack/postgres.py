"""PostgreSQL 18 with pgvector, in a private folder: TCP on 127.0.0.1 and a unix socket, password on both.

Promises durability: fsync, full_page_writes and synchronous_commit stay on. Ready means that a login with our own
password succeeded and the server serves our own data folder. Root cannot run PostgreSQL: it then runs as `postgres`
or `nobody`.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import tempfile
from pathlib import Path

import psycopg
from psycopg import sql

from actonce.stack import binaries
from actonce.stack.errors import StackError
from actonce.stack.part import NotReady, Part
from actonce.stack.ports import HOST
from actonce.stack.process import spawn

ROLE = DATABASE = "actonce"
SOCKET_PATH_MAX = 90  # the kernel's limit is 104-108 bytes, and ".s.PGSQL.65535" comes on top
INITDB_TIMEOUT_S = 120

SETTINGS = {
    "listen_addresses": HOST,
    "max_connections": "200",  # 2 workers, entry, watch, witness and probes, each with a small pool
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "password_encryption": "scram-sha-256",
    "log_timezone": "UTC",
    "timezone": "UTC",
    "log_line_prefix": "%m [%p] %a ",
}


class Postgres(Part):
    port_names = ("sql",)
    stop_signal = signal.SIGINT  # "fast": disconnects clients, writes a checkpoint
    stop_grace_s = 20.0

    @property
    def data(self) -> Path:
        return self.folder / "postgres"

    @property
    def dsn(self) -> str:
        """Over TCP (drills put a proxy in front of it)."""
        return self._dsn(HOST, self.ports["sql"])

    @property
    def socket_dsn(self) -> str:
        """Over the unix socket: a path that no network fault touches."""
        return self._dsn(self.recorded.values["socket_dir"].replace("/", "%2F"), self.ports["sql"])

    def _dsn(self, host: str, port: int, database: str = DATABASE) -> str:
        return f"postgresql://{ROLE}:{self.recorded.values['password']}@{host}:{port}/{database}"

    def command(self) -> list[str]:
        chosen = SETTINGS | {
            "port": str(self.ports["sql"]),
            "unix_socket_directories": self.recorded.values["socket_dir"],
        }
        flags = [word for key, value in chosen.items() for word in ("-c", f"{key}={value}")]
        return [str(_programs() / "postgres"), "-D", str(self.data), *flags]

    def death_signal(self) -> int:
        return int(signal.SIGQUIT)  # the postmaster ends its children at once and leaves no shared memory

    async def prepare(self) -> None:
        self.user = _unprivileged_account() if os.geteuid() == 0 else None
        values = self.recorded.values
        values.setdefault("password", secrets.token_hex(16))
        if not Path(values.get("socket_dir", "/nonexistent")).is_dir():
            values["socket_dir"] = str(self._make_socket_dir())
        self._state.save()
        if not (self.data / "PG_VERSION").exists():
            await self._initdb()

    def _make_socket_dir(self) -> Path:
        inside = self.folder / "pgsock"
        if len(os.fsencode(inside)) > SOCKET_PATH_MAX:
            inside = Path(tempfile.mkdtemp(prefix="actonce-pg-"))
        inside.mkdir(mode=0o700, exist_ok=True)
        self._give(inside)
        return inside

    def _give(self, path: Path) -> None:
        if self.user is not None:
            account = pwd.getpwnam(self.user)
            os.chown(path, account.pw_uid, account.pw_gid)

    async def _initdb(self) -> None:
        """Into a folder beside it, then renamed: a half-made cluster is never taken for a whole one."""
        fresh = self.folder / "postgres.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        password = self.folder / "pwfile"
        password.unlink(missing_ok=True)
        with os.fdopen(os.open(password, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(self.recorded.values["password"])
        self._give(fresh)
        self._give(password)
        try:
            child = spawn(
                "initdb",
                [
                    str(_programs() / "initdb"),
                    *("-D", str(fresh), "-U", ROLE, f"--pwfile={password}", "--auth=scram-sha-256"),
                    *(
                        "--encoding=UTF8",
                        "--locale-provider=builtin",
                        "--builtin-locale=C.UTF-8",
                        "--locale=C",
                    ),
                    "--no-instructions",
                ],
                log=self.log.with_name("initdb.log"),
                cwd=self.folder,
                user=self.user,
            )
            code = await child.wait(INITDB_TIMEOUT_S)
        finally:
            password.unlink()
        if code != 0:
            raise StackError(f"initdb ended with status {code}. Its log {child.log} ends:\n{child.tail()}")
        fresh.rename(self.data)

    async def check_ready(self) -> None:
        try:
            connection = await psycopg.AsyncConnection.connect(
                self._dsn(HOST, self.ports["sql"], "postgres"), connect_timeout=2, autocommit=True
            )
        except psycopg.OperationalError as error:
            raise NotReady(str(error)) from error
        async with connection:
            row = await (await connection.execute("SHOW data_directory")).fetchone()
            if row is None or Path(row[0]) != self.data:
                raise NotReady(f"the server on our port serves {row}, not {self.data}")
            found = await connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,))
            if await found.fetchone() is None:
                await connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))

    def worth_another_try(self) -> bool:
        # After a SIGKILL of the postmaster its children need a moment to notice; they hold the shared memory.
        return super().worth_another_try() or "pre-existing shared memory block" in self.log_since_start()


def _programs() -> Path:
    return binaries.postgres_for_everybody() if os.geteuid() == 0 else binaries.postgres()


def _unprivileged_account() -> str:
    for name in ("postgres", "_postgres", "nobody"):
        try:
            if pwd.getpwnam(name).pw_uid != 0:
                return name
        except KeyError:
            continue
    raise StackError(
        "PostgreSQL refuses to run as root and this machine has neither an account `postgres` nor `nobody`: run as an "
        "ordinary user, or point ACTONCE_LEDGER_DSN at a database."
    )
