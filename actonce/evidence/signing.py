"""A named person says of an evidence folder what they saw. Written beside the folder; what is in it stays as it is.

Contract: a signature names the hash of the whole folder, so that it says nothing of a folder that changed since, and
what the judge made of the folder when it was signed. It is a statement on record and no proof of who made it: no key is
involved, and whoever can write beside the folder can write one. What it adds is somebody who can be asked. A folder
that nobody signed is machine-witnessed only.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, ValidationError

from actonce.evidence.case import build
from actonce.evidence.folder import load
from actonce.evidence.record import DRILL_FILE, EvidenceError, Strict, first_error, to_json
from actonce.evidence.result import HASHES_FILE, altered, digests, verify
from actonce.evidence.single import judge_single
from actonce.evidence.verdict import MACHINE_ONLY
from actonce.evidence.writer import utc_now

SUFFIX = ".signatures.jsonl"


class Signature(Strict):
    """One line of the file beside the folder."""

    folder: str
    sha256: str
    results: dict[str, str]  # of each drill in it, as judged when it was signed
    name: str = Field(min_length=1, max_length=200)
    saw: str = Field(min_length=1, max_length=4000)
    at: str

    def __str__(self) -> str:
        return f"signed by {self.name} at {self.at[:19]}Z, who saw: {self.saw}"


def drills_in(folder: Path) -> list[Path]:
    """The drills' folders in a folder: itself, or those of a run or of a test session below it."""
    found = sorted(path.parent for path in folder.rglob(DRILL_FILE))
    if not found:
        raise EvidenceError(f"{folder} holds no {DRILL_FILE}: it is not an evidence folder")
    return found


def folder_digest(folder: Path) -> str:
    """sha256 over the names and contents of every file in a folder."""
    text = json.dumps(digests(folder), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def result_of(folder: Path) -> str:
    """What one drill's folder shows: `passed`, `failed` or `invalid`; of a single cell's control also `caught`."""
    if (folder / HASHES_FILE).exists():
        return verify(folder)[0].result
    judged = judge_single(folder)
    if not judged.valid:
        return "invalid"
    findings = [cell.expected_finding for cell in build(load(folder)).evidence.cells.values() if cell.control]
    if findings:
        return "caught" if all(judged.caught(finding or "") for finding in findings) else "failed"
    return "passed" if judged.passed else "failed"


def sign(folder: Path, name: str, saw: str) -> Signature:
    """Append a signature beside the folder. Raises EvidenceError: not evidence, or not as it was left; no name."""
    folder = folder.resolve()
    drills = drills_in(folder)
    for drill in drills:
        if (drill / HASHES_FILE).exists() and (changed := altered(drill)):
            raise EvidenceError(f"{drill} is not as it was left ({'; '.join(changed)}); it cannot be signed")
    results = {("." if drill == folder else drill.relative_to(folder).as_posix()): result_of(drill) for drill in drills}
    try:
        signature = Signature(
            folder=folder.name,
            sha256=folder_digest(folder),
            results=results,
            name=name.strip(),
            saw=saw.strip(),
            at=utc_now(),
        )
    except ValidationError as error:
        raise EvidenceError(f"not signed: {first_error(error)}") from error
    with _file(folder).open("a", encoding="utf-8") as file:
        file.write(to_json(signature) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return signature


def signatures(folder: Path) -> list[Signature]:
    """Those that were made of this folder as it is now. Raises EvidenceError for a file that cannot be read."""
    folder = folder.resolve()
    if not _file(folder).exists():
        return []
    found = list(_lines(_file(folder)))
    now = folder_digest(folder)
    return [signature for signature in found if signature.sha256 == now]


def witness_of(folder: Path) -> str:
    """Who saw a drill's folder, alone or with the whole run that it is in."""
    folder = folder.resolve()
    try:
        found = [*signatures(folder), *signatures(folder.parent)]
    except EvidenceError as error:
        return f"{MACHINE_ONLY}: {error}"
    return "; ".join(map(str, found)) or MACHINE_ONLY


def _file(folder: Path) -> Path:
    return folder.with_name(folder.name + SUFFIX)


def _lines(file: Path) -> Iterator[Signature]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            yield Signature.model_validate_json(line)
        except ValidationError as error:
            raise EvidenceError(f"{file.name}:{number} is no signature: {first_error(error)}") from error
