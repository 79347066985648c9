"""A double with the shape of GitHub's issues: no keys, a marker in the body that anybody can quote.

Reads: by number; a list with pages (`Link: …; rel="next"`), oldest first on request, that declares no total; a search
with lag whose `total_count` is of the search index, not of the list. An issue can be closed, renamed and edited by
others, and its list shows pull requests among the issues.
"""

from __future__ import annotations

from typing import Any

from actonce.testing.journal import iso_utc
from actonce.testing.listener import BODY_MARKER, Reply, Request
from drills.world.desk import Desk, Shape
from drills.world.modes import RouteName
from drills.world.truth import Thing, View

PER_PAGE_MAX = 100


def metadata_of(body: dict[str, Any]) -> dict[str, Any]:
    found = BODY_MARKER.search(str(body.get("body", "")))
    return {"operation_id": found[1], "key": found[1], "digest": found[2]} if found else {}


def render(thing: Thing) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "number": thing.seq,
        "title": thing.fields.get("title", ""),
        "body": thing.fields.get("body", thing.text or ""),
        "state": "open" if thing.state == "succeeded" else thing.state,
        "user": {"login": thing.author},
        "created_at": iso_utc(thing.committed_at),
    }
    if thing.kind == "pull_request":
        shown["pull_request"] = {}
    return shown


def reads(desk: Desk, name: RouteName, request: Request, view: View) -> Reply:
    """`/v1/{account}/issues/{number}`, `…/issues?page=&per_page=&direction=`, `…/search?q=`."""
    issues = [t for t in view.things if t.kind in ("issue", "pull_request")]
    if name == "by_id":
        thing = next((t for t in issues if str(t.seq) == request.segments[-1]), None)
        return Reply(200, render(thing)) if thing else _not_found()
    if name == "search":
        found = _search(view, request.query.get("q", [""])[0].strip('"'))
        items = [render(t) for t in found[: desk.modes.page_size]]
        return Reply(200, {"total_count": len(found), "incomplete_results": False, "items": items})
    if name == "log":
        return _not_found()
    number = int(request.query.get("page", ["1"])[0])
    size = min(int(request.query.get("per_page", ["30"])[0]), desk.modes.page_size, PER_PAGE_MAX)
    if request.query.get("direction", ["desc"])[0] == "desc":
        issues.reverse()
    page = issues[(number - 1) * size : number * size]
    more = number * size < len(issues)
    following = number + 1
    if desk.modes.route(name).mode == "looping":
        page, more, following = issues[:size], True, 1
    headers = {"Link": f'<{request.path}?page={following}>; rel="next"'} if more else {}
    return Reply(200, [render(t) for t in page], headers)


def _search(view: View, text: str) -> list[Thing]:
    """Words in titles, bodies and comments; a comment shows the issue that it is on."""
    found: list[Thing] = []
    for thing in view.things:
        if not text or not thing.mentions(text):
            continue
        if thing.kind in ("issue", "pull_request"):
            found.append(thing)
        elif thing.kind == "comment":
            found += [t for t in view.things if t.seq == thing.fields.get("issue") and t not in found]
    return found


def _not_found() -> Reply:
    return Reply(404, {"error": {"code": "not_found", "detail": "Not Found"}})


def error(reply: Reply) -> Reply:
    """Errors here carry a message and a link, no code."""
    told = reply.body.get("error", {})
    reply.body = {"message": str(told.get("detail", "")), "documentation_url": "https://docs.github-like.invalid"}
    return reply


GITHUB_LIKE = Shape(
    destination="github_like",
    kind="issue",
    collection="issues",
    fields={"title": str, "body": str},
    natural=("title",),
    render=render,
    defaults={"late_arrival": "none"},
    metadata_of=metadata_of,
    reads=reads,
    error=error,
)
