"""Where a Chromium is, for those who look at web pages as people do (tests, drills, pictures of the documentation).

Looks only, downloads nothing. What is found has answered `--version`: some systems have a `chromium-browser` that only
prints how to install one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from actonce.stack.errors import Missing

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW_TO_GET_ONE = (
    "python -m playwright install chromium, or your system's package (Debian: apt-get install chromium), "
    "or ACTONCE_CHROMIUM=/path/to/one"
)
ANSWERS_WITHIN_S = 30.0  # a second is usual; the first start on a busy machine takes longer


def chromium() -> Path:
    """A Chromium that runs: ACTONCE_CHROMIUM and nothing else when that is set; else on PATH, else Playwright's own.

    Raises Missing, which says how to get one.
    """
    chosen = os.environ.get("ACTONCE_CHROMIUM")
    if chosen:
        if _runs(Path(chosen)):
            return Path(chosen)
        raise Missing(f"ACTONCE_CHROMIUM is {chosen}, which does not run. Get one: {HOW_TO_GET_ONE}.")
    for found in _candidates():
        if _runs(found):
            return found
    raise Missing(f"No Chromium was found. Get one: {HOW_TO_GET_ONE}.")


def version(program: Path) -> str | None:
    """What it calls itself, None when it does not run."""
    try:
        run = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=ANSWERS_WITHIN_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip().partition("\n")[0] or None


def _runs(program: Path) -> bool:
    return "Chrom" in (version(program) or "")


def _candidates() -> Iterator[Path]:
    for name in NAMES:
        on_path = shutil.which(name)
        if on_path is not None:
            yield Path(on_path)
    patterns = ("chromium-*/chrome-linux*/chrome", "chromium-*/chrome-mac*/*.app/Contents/MacOS/*")
    for pattern in patterns:
        yield from sorted(_playwrights_folder().glob(pattern), key=_revision, reverse=True)


def _playwrights_folder() -> Path:
    """Where `playwright install` puts browsers, by its own rules."""
    chosen = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    if chosen and chosen != "0":
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ms-playwright"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ms-playwright"


def _revision(program: Path) -> int:
    folder = next(p.name for p in program.parents if p.name.startswith("chromium-"))
    number = folder.rpartition("-")[2]
    return int(number) if number.isdigit() else 0
