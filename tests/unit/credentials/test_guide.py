"""The guide's own code and files are what they say they are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from actonce.contracts.credential import AccessPolicy, authorise
from actonce.credentials import CredentialSettings
from actonce.destinations.base import Destination

GUIDE = (Path(__file__).parents[3] / "docs/guides/credentials.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.S)


async def test_the_guides_destination_leases_what_it_declares() -> None:
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(block, names)
    made = names["helpdesk"]
    assert isinstance(made, Destination)
    use = made.contract.write_credential
    assert use is not None and (use.name, use.scope) == ("acme/write", "tickets:write")
    await names["client"].aclose()


def test_the_guides_files_are_read_and_belong_together() -> None:
    settings, sealed, policy = (json.loads(block) for block in blocks("json"))
    assert CredentialSettings.model_validate(sealed).sealed_file is not None
    vault = CredentialSettings.model_validate(settings).vault
    assert vault is not None
    leased = vault.credentials["acme/write"]
    decided = authorise(
        AccessPolicy.model_validate(policy),
        principal=leased.principal,
        destination="helpdesk",
        action="open",
        scope="tickets:write",
        granted=leased.scope,
    )
    assert decided.allowed, decided.words
