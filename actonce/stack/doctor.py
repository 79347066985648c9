"""What a machine has and lacks, before any work starts. Looks only; builds and starts nothing."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from actonce.stack import binaries, chromium, elsewhere
from actonce.stack.errors import StackError
from actonce.stack.program import programs_of
from actonce.stack.settings import StackSettings

PYTHON_MIN = (3, 11)
FREE_DISK_MIN_BYTES = 2 * 1024**3  # wheels 0.5 GB, Toxiproxy's build 0.6 GB, data


@dataclass(frozen=True)
class Finding:
    """`needed` and not `ok`: the stack cannot start. `text` says what is there, or how to get it."""

    part: str
    ok: bool
    needed: bool
    text: str


async def examine(project: Path) -> list[Finding]:
    """One finding for each part."""
    settings = StackSettings.load()
    findings = [_python(), _platform()]
    looks = {"postgres": _postgres, "temporal": _temporal, "toxiproxy": _toxiproxy}
    for name, look in looks.items():
        try:
            text = await elsewhere.check(name, settings) if elsewhere.is_elsewhere(name, settings) else look()
            findings.append(Finding(name, True, True, text))
        except StackError as error:
            findings.append(Finding(name, False, True, str(error)))
    findings.append(_chromium())
    findings.append(_programs(project))
    findings.append(_disk(project))
    return findings


def _python() -> Finding:
    here = platform.python_version()
    ok = sys.version_info >= PYTHON_MIN
    return Finding(
        "python", ok, True, f"{here} ({sys.executable})" if ok else f"{here} is too old: install 3.11 or later"
    )


def _platform() -> Finding:
    here = (sys.platform, platform.machine())
    ok = here in (("linux", "x86_64"), ("darwin", "arm64"))
    hint = "" if ok else ": embedded servers exist for Linux x86-64 and macOS arm64; elsewhere use docker compose"
    return Finding("platform", ok, False, f"{here[0]} {here[1]}{hint}")


def _first_line(command: list[str | Path]) -> str:
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise StackError(f"{command[0]} cannot be run: {error}") from error
    return (run.stdout or run.stderr).strip().splitlines()[0]


def _postgres() -> str:
    folder = binaries.postgres()
    control = folder.parent / "share" / "extension" / "vector.control"
    if not control.exists():
        control = next(folder.parent.rglob("vector.control"), control)
    vector = "no pgvector"
    if control.exists():
        for line in control.read_text().splitlines():
            if line.startswith("default_version"):
                vector = "pgvector " + line.split("'")[1]
    return f"{_first_line([folder / 'postgres', '--version'])}, {vector} ({folder})"


def _temporal() -> str:
    program = binaries.temporal()
    return f"{_first_line([program, '--version'])} ({program})"


def _toxiproxy() -> str:
    present = binaries.toxiproxy_present()
    if present is not None:
        return f"{binaries.TOXIPROXY_VERSION} ({present})"
    compilers = binaries.compilers()
    if not compilers:
        raise StackError(
            f"neither toxiproxy-server {binaries.TOXIPROXY_VERSION} nor Go to build it: pip install 'actonce[drills]' "
            "(in a checkout: pip install -e '.[stack,drills]'), or point ACTONCE_TOXIPROXY_URL at a server"
        )
    return f"{binaries.TOXIPROXY_VERSION} will be built at first start with {compilers[0]} (about a minute)"


def _chromium() -> Finding:
    try:
        program = chromium.chromium()
    except StackError as error:
        return Finding("chromium", False, False, f"{error} Without it the browser tests do not run")
    return Finding("chromium", True, False, f"{chromium.version(program)} ({program})")


def _programs(project: Path) -> Finding:
    try:
        specs = programs_of(project)
    except StackError as error:
        return Finding("programs", False, True, str(error))
    listed = ", ".join(f"{s.name}×{s.count}" if s.count > 1 else s.name for s in specs)
    return Finding("programs", bool(specs), False, listed or f"none in {project}: see [tool.actonce.stack.programs]")


def _disk(project: Path) -> Finding:
    free = shutil.disk_usage(project).free
    ok = free >= FREE_DISK_MIN_BYTES
    return Finding("disk", ok, False, f"{free / 1024**3:.1f} GiB free" + ("" if ok else "; 2 GiB are wanted"))
