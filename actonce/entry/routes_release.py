"""Routes about release: what waits in the backlog, and how it is let go."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends

from actonce.contracts.people import Scope
from actonce.entry.access import Who, guarded_router, needs
from actonce.entry.door import known_type
from actonce.entry.problems import documented
from actonce.entry.state import Entry, entry_of
from actonce.entry.views import ReleaseBody, ReleaseView
from actonce.ledger import release
from actonce.ledger.release import Control

router = guarded_router("/v1/release", "release")
Shared = Annotated[Entry, Depends(entry_of)]


@router.get(
    "",
    summary="The release of every task type",
    response_model=list[ReleaseView],
    responses=documented(503),
    openapi_extra=needs(Scope.READ),
)
async def controls(entry: Shared) -> list[ReleaseView]:
    """What waits, since when, and what keeps it."""
    known = sorted(entry.settings.task_types)
    return [_view(await release.control(entry.ledger, name, entry.settings.queue_of(name))) for name in known]


@router.post(
    "/{task_type}",
    summary="Pause or resume it, set its rate or its window",
    response_model=ReleaseView,
    responses=documented(404, 409, 422, 503),
    openapi_extra=needs(Scope.RELEASE),
)
async def change(task_type: str, body: ReleaseBody, entry: Shared, who: Who) -> ReleaseView:
    """Recorded with who and why before it has an effect. The same change again is answered with how it stands."""
    who.speaks_as(body.name)
    known_type(task_type, entry.settings.task_types)
    changed = await release.change(
        entry.ledger,
        task_type,
        entry.settings.queue_of(task_type),
        name=body.name,
        why=body.why,
        evidence=body.evidence,
        expected_version=body.expected_version,
        paused=body.paused,
        rate_per_s=body.rate_per_s or None,
        no_rate=body.rate_per_s == 0,
        window_max=body.window_max,
    )
    return _view(changed)


def _view(control: Control) -> ReleaseView:
    return ReleaseView(**{name: getattr(control, name) for name in ReleaseView.model_fields})
