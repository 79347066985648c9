"""The door's headers."""

from __future__ import annotations

import pytest
from fastapi_problem.error import Problem
from starlette.requests import Request

from actonce.entry.door import tenant_of


@pytest.mark.parametrize(("given", "tenant"), [([], "default"), (["acme"], "acme"), (["acme", "other"], None)])
def test_a_tenant_is_named_once(given: list[str], tenant: str | None) -> None:
    headers = [(b"actonce-tenant", value.encode()) for value in given]
    request = Request({"type": "http", "headers": headers})
    if tenant is not None:
        assert tenant_of(request) == tenant
        return
    with pytest.raises(Problem):
        tenant_of(request)
