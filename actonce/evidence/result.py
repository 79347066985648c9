"""Writes the verdict beside the record, and judges a finished folder again.

Contract: `write_verdict` is the last thing that touches a folder: it writes verdict.json (validated against the shipped
schema), junit.xml, report.html and then hashes.json over every other file. `verify` looks at the hashes first; a file
that changed, vanished or was added makes the folder invalid, whatever is in it. Then it judges again, from the folder
alone, with the checkers of today; it does not trust verdict.json. Hashes show accidents and careless edits; they are no
signature: whoever can write the folder can write new ones.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from xml.etree import ElementTree

from actonce.evidence.judge import Judgement, examine
from actonce.evidence.report import render
from actonce.evidence.verdict import SCHEMA_FILE, Check, Verdict

VERDICT_FILE, JUNIT_FILE, REPORT_FILE, HASHES_FILE = "verdict.json", "junit.xml", "report.html", "hashes.json"
# Characters that XML 1.0 cannot hold at all.
NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_verdict(folder: Path) -> Verdict:
    """Judge the folder and write verdict, JUnit, report and hashes. Needs jsonschema (extra `drills`)."""
    judgement = examine(folder)
    verdict = judgement.verdict
    validate(json.loads(verdict.text()))
    (folder / VERDICT_FILE).write_text(verdict.text(), encoding="utf-8")
    (folder / JUNIT_FILE).write_text(junit(verdict), encoding="utf-8")
    (folder / REPORT_FILE).write_text(render(judgement), encoding="utf-8")
    files = {name: digest for name, digest in sorted(digests(folder).items()) if name != HASHES_FILE}
    text = json.dumps({"algorithm": "sha256", "files": files}, indent=2) + "\n"
    (folder / HASHES_FILE).write_text(text, encoding="utf-8")
    return verdict


def verify(folder: Path) -> tuple[Verdict, int]:
    """Judge a finished folder again: the verdict and the exit code (0 passed, 1 failed, 3 invalid)."""
    verdict = _rejudge(folder).verdict
    return verdict, verdict.exit_code


def _rejudge(folder: Path) -> Judgement:
    judgement = examine(folder)
    changed = altered(folder)
    check = Check(name="files unchanged", ok=not changed, detail="; ".join(changed) or "all as hashed")
    update: dict[str, object] = {"checks": [check, *judgement.verdict.checks]}
    if changed:
        sentence = f"Invalid: the folder is not as it was left: {'; '.join(changed)}"
        update |= {"result": "invalid", "sentence": sentence}
    verdict = judgement.verdict.model_copy(update=update)
    return Judgement(verdict, judgement.case, judgement.strikes, judgement.findings)


def altered(folder: Path) -> list[str]:
    """Every way in which the folder differs from its hashes."""
    try:
        known = json.loads((folder / HASHES_FILE).read_text(encoding="utf-8"))["files"]
        known = {str(name): str(digest) for name, digest in known.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{HASHES_FILE} cannot be read: {type(error).__name__}"]
    now = digests(folder)
    now.pop(HASHES_FILE, None)
    return (
        [f"{name} is gone" for name in sorted(known.keys() - now.keys())]
        + [f"{name} was added" for name in sorted(now.keys() - known.keys())]
        + [f"{name} was changed" for name in sorted(known.keys() & now.keys()) if known[name] != now[name]]
    )


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file below a folder, by relative path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                found[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def validate(verdict: object) -> None:
    """Check a verdict against the shipped schema; jsonschema's ValidationError says where it does not fit."""
    import jsonschema  # only drills write verdicts: not a dependency of the library

    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(verdict)


def junit(verdict: Verdict) -> str:
    """The checks and controls as JUnit: a failed check is a failure, an invalid drill's check an error."""
    cases = [(f"check: {check.name}", check.ok, check.detail) for check in verdict.checks]
    for control in verdict.controls:
        detail = f"expected {control.expected_finding}; found {'; '.join(control.found) or 'nothing'}"
        cases.append((f"control: {control.name} ({control.cell})", control.caught, detail))
    bad = sum(not ok for _, ok, _ in cases)
    tag = "error" if verdict.result == "invalid" else "failure"
    totals = {
        "tests": str(len(cases)),
        "failures": str(bad * (tag == "failure")),
        "errors": str(bad * (tag == "error")),
    }
    suite = ElementTree.Element("testsuite", {"name": f"drill {verdict.drill}", **totals})
    ElementTree.SubElement(suite, "properties").append(
        ElementTree.Element("property", name="sentence", value=_xml(verdict.sentence))
    )
    for name, ok, detail in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=verdict.drill, name=_xml(name))
        if not ok:
            ElementTree.SubElement(case, tag, message=_xml(detail)[:500]).text = _xml(detail)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _xml(text: str) -> str:
    return NOT_XML.sub("\ufffd", text)
