"""The entry as a process: ready line, loopback, settings, secrets out of its log."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.integration.entry_token import SHOWN, TOKEN, let_in


@asynccontextmanager
async def entry(dsn: str, **env: str) -> Any:
    """Start `python -m actonce.entry`; yields the process and its ready event. Ends it, whatever happened."""
    known = {k: v for k, v in os.environ.items() if not k.startswith(("ACTONCE_", "TEMPORAL_"))}
    process = await create_subprocess_exec(
        sys.executable,
        *("-m", "actonce.entry"),
        env={**known, "ACTONCE_LEDGER_DSN": dsn, "TEMPORAL_ADDRESS": "127.0.0.1:1", **env},
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        assert process.stdout is not None
        line = await process.stdout.readline()
        yield process, json.loads(line) if line else None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ended(process: Process) -> tuple[int, str]:
    _, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, err.decode()


async def test_it_says_when_and_where_it_listens_and_ends_on_sigterm(fresh_dsn: str) -> None:
    async with entry(fresh_dsn, ACTONCE_ENTRY_PORT="0", ACTONCE_RUN_ID="r1") as (process, ready):
        assert ready["event"] == "ready" and ready["pid"] == process.pid
        assert ready["url"].startswith("http://127.0.0.1:")
        let_in(fresh_dsn)
        async with httpx.AsyncClient(base_url=ready["url"], headers=SHOWN) as http:
            assert (await http.get("/health")).json()["run_id"] == "r1"
            started = await http.post("/v1/tasks/refund", json={"n": 1}, headers={"Idempotency-Key": "k"}, timeout=20)
            assert (started.status_code, started.json()["state"]) == (202, "queued")
        process.send_signal(signal.SIGTERM)
        code, err = await ended(process)
        assert code in (0, -signal.SIGTERM)
        password = fresh_dsn.split(":")[2].split("@")[0]
        assert "temporal_away" in err and password not in err and TOKEN not in err


async def test_it_listens_where_callers_were_told_it_would(fresh_dsn: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with entry(fresh_dsn, ACTONCE_ENTRY_URL=url) as (process, ready):
            assert ready is None
            code, err = await ended(process)
            assert code == 1 and "cannot listen on" in err and "ACTONCE_ENTRY_PORT" in err
    async with entry(fresh_dsn, ACTONCE_ENTRY_URL=url) as (_, ready):
        assert ready["url"] == url


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of this machine's own for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "entry")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return folder / "cert.pem", folder / "key.pem"


async def test_with_a_certificate_it_speaks_tls_and_nothing_else(fresh_dsn: str, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    tls = {"ACTONCE_ENTRY_TLS_CERT": str(cert), "ACTONCE_ENTRY_TLS_KEY": str(key)}
    async with entry(fresh_dsn, ACTONCE_ENTRY_HOST="0.0.0.0", **tls) as (_, ready):
        port = ready["url"].rpartition(":")[2]
        assert ready["url"].startswith("https://")
        trusted = ssl.create_default_context(cafile=str(cert))
        async with httpx.AsyncClient(verify=trusted, trust_env=False, timeout=20) as http:
            assert (await http.get(f"https://127.0.0.1:{port}/health")).status_code == 200
            with pytest.raises(httpx.TransportError):
                await http.get(f"http://127.0.0.1:{port}/health")


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"ACTONCE_LEDGER_DSN": "postgresql://nobody:hush@127.0.0.1:1/none"}, "the ledger cannot be used"),
        ({"ACTONCE_DEPLOYMENT": "another"}, "belongs to deployment"),
        ({"ACTONCE_LEDGER_ID": "00000000-0000-0000-0000-000000000001"}, "this deployment's is 00000000"),
        ({"ACTONCE_ENTRY_PORT": "many"}, "settings do not fit"),
        ({"ACTONCE_ENTRY_HOST": "0.0.0.0"}, "tokens would travel as plain text"),
    ],
)
async def test_it_refuses_to_start_on_what_it_cannot_use(fresh_dsn: str, env: dict[str, str], says: str) -> None:
    async with entry(fresh_dsn) as (_, ready):
        assert ready  # the ledger belongs to deployment "default" from here on
    async with entry(fresh_dsn, **env) as (process, ready):
        assert ready is None
        code, err = await ended(process)
        assert code == 1 and says in err and "hush" not in err
