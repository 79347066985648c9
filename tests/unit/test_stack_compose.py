"""What can be said about docker-compose.yml and the Dockerfile without a container engine.

Not said: that the images exist, build or start.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from actonce.entry.settings import EntrySettings
from actonce.paging.settings import PagingSettings
from actonce.settings import WorkerSettings
from actonce.stack import binaries
from actonce.stack.health import CHECKS
from actonce.stack.settings import StackSettings

COMPOSE = Path("docker-compose.yml").read_text()
DOCKERFILE = Path("Dockerfile").read_text()
FILE: dict[str, Any] = yaml.safe_load(COMPOSE)
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "actonce:local"}
ONE_SHOT = {"access", "temporal-attributes"}


def test_all_parts_are_there() -> None:
    assert set(SERVICES) == {
        *("ledger", "temporal-db", "temporal", "temporal-attributes", "temporal-ui", "toxiproxy"),
        *("pages", "world", "access", "entry", "worker-1", "worker-2", "watch"),
    }
    assert set(OURS) == {"pages", "world", "access", "entry", "worker-1", "worker-2", "watch"}
    assert "NOT run with an engine" in COMPOSE


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_service_has_a_health_check_or_runs_once(name: str) -> None:
    service = SERVICES[name]
    if name in ONE_SHOT:
        assert service["restart"] == "no"
        waiting = [s["depends_on"][name]["condition"] for s in SERVICES.values() if name in s.get("depends_on", {})]
        assert waiting and set(waiting) == {"service_completed_successfully"}
        return
    check = service["healthcheck"]
    assert check["test"][0] in ("CMD", "CMD-SHELL") and {"interval", "timeout", "retries"} <= set(check)
    if "actonce.stack.health" in check["test"]:
        assert check["test"][-1] in CHECKS
    assert service["restart"] == "unless-stopped"


def pinned(image: str) -> bool:
    """A tag that names a full version: 1.2.3, or 16.11 as PostgreSQL counts."""
    name, _, tag = image.rpartition(":")
    return bool(name) and re.match(r"v?\d+\.\d+", tag) is not None


@pytest.mark.parametrize("name", sorted(set(SERVICES) - set(OURS)))
def test_image_is_pinned_to_a_version(name: str) -> None:
    assert pinned(SERVICES[name]["image"])


def test_a_moving_tag_does_not_count_as_pinned() -> None:
    assert not any(pinned(image) for image in ("postgres", "postgres:latest", "pgvector/pgvector:pg18", "postgres:18"))


def test_versions_are_those_of_the_embedded_stack() -> None:
    assert SERVICES["toxiproxy"]["image"].endswith(":" + binaries.TOXIPROXY_VERSION)
    assert f"-pg{binaries.POSTGRES_VERSION}-" in SERVICES["ledger"]["image"]
    command = SERVICES["ledger"]["command"]
    assert "synchronous_commit=on" in command and "fsync=on" in command


@pytest.mark.parametrize("name", sorted(OURS))
def test_our_command_names_what_exists_and_gets_the_signals(name: str) -> None:
    service = OURS[name]
    command = service["command"]
    assert isinstance(command, list) and command[0] == "python", "a string would put a shell before the program"
    assert service["init"] is True and service["build"] == "."
    assert (
        float(service["stop_grace_period"].removesuffix("s")) > WorkerSettings.model_fields["shutdown_grace_s"].default
    )
    if command[1] == "-m":
        assert importlib.util.find_spec(command[2]) is not None
    else:
        assert Path(command[1]).is_file()


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_setting_is_one_that_a_program_reads(name: str) -> None:
    known = {
        f"ACTONCE_{field}".upper()
        for settings in (WorkerSettings, PagingSettings, EntrySettings, StackSettings)
        for field in settings.model_fields
    }
    known |= {"ACTONCE_ENTRY_TOKEN_FILE"}  # of the client
    given = set(OURS[name]["environment"])
    assert {key for key in given if key.startswith("ACTONCE_")} <= known
    assert {key for key in given if not key.startswith("ACTONCE_")} <= {"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE"}
    assert {"ACTONCE_LEDGER_DSN", "TEMPORAL_ADDRESS"} <= given


def test_names_in_urls_are_services() -> None:
    text = json.dumps({name: [s.get("environment"), s.get("command")] for name, s in SERVICES.items()})
    hosts = set(re.findall(r"(?:://(?:[^@/\"]*@)?|shown-host=|address )([a-z][a-z0-9-]*)", text))
    assert hosts and hosts <= set(SERVICES)
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in FILE["volumes"]


def test_nothing_is_published_beyond_this_host_or_on_a_default_port() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published and all(re.fullmatch(r"127\.0\.0\.1::\d+", port) for port in published)


def test_tokens_are_where_only_those_that_need_them_can_read_them() -> None:
    private = {name for name, service in SERVICES.items() if "access:/access" in service.get("volumes", [])}
    assert private == {"access", "entry"}


def test_no_password_is_written_down() -> None:
    for match in re.findall(r"(?:PASSWORD|PWD): (.+)|://actonce:(.+?)@", COMPOSE):
        assert "".join(match).startswith("${ACTONCE_DB_PASSWORD:?")


def test_dockerfile_installs_from_the_lock_file_and_ends_in_exec_form() -> None:
    assert "--require-hashes -r /src/requirements.lock" in DOCKERFILE
    images = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert images and all(pinned(image) for image in images)
    commands = re.findall(r"^(?:CMD|ENTRYPOINT) (.+)$", DOCKERFILE, re.MULTILINE)
    assert len(commands) == 1 and json.loads(commands[0])[0] == "python"
    assert re.search(r"^USER (?!root)", DOCKERFILE, re.MULTILINE)


def test_what_the_dockerfile_copies_exists_and_is_not_ignored() -> None:
    allowed = {line[1:] for line in Path(".dockerignore").read_text().splitlines() if line.startswith("!")}
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert Path(source).exists(), source
            assert source in allowed
