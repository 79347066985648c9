"""The procedures of docs/operations, as pages: a small part of Markdown, everything in it escaped.

They are shipped in the wheel (folder `procedures` of this package); in a checkout they are read from `docs/operations`.
What this does not know of Markdown is shown as the text it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from markupsafe import Markup, escape

_HERE = Path(__file__).parent
_FOLDERS = (_HERE / "procedures", _HERE.parents[1] / "docs" / "operations")
_NAME = re.compile(r"[a-z_]+")
_INLINE = re.compile(
    r"(?P<code>`[^`]+`)|\*\*(?P<bold>[^*]+)\*\*|\*(?P<soft>[^*\s][^*]*)\*|\[(?P<text>[^\]]+)\]\((?P<to>[^)\s]+)\)"
)
_ITEM = re.compile(r"(\d+\.|-)\s+")


_TABLE = (
    '<div class="wide" tabindex="0" role="region" aria-label="Table">'
    "<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>"
)


def folder() -> Path | None:
    """Where the procedures are; None in an installation that lost them."""
    return next((f for f in _FOLDERS if (f / "README.md").is_file()), None)


def text_of(name: str) -> str | None:
    """One procedure by its reason code; `index` is the table of all. None: there is no such one."""
    where = folder()
    if where is None or not _NAME.fullmatch(name):
        return None
    file = where / ("README.md" if name == "index" else f"{name}.md")
    return file.read_text(encoding="utf-8") if file.is_file() else None


def render(text: str) -> Markup:
    """HTML of a procedure."""
    return Markup("\n").join(_blocks(text.splitlines()))


def _blocks(lines: list[str]) -> Iterator[Markup]:
    n = 0
    while n < len(lines):
        line = lines[n]
        if not line.strip():
            n += 1
        elif line.startswith("```"):
            end = next((i for i in range(n + 1, len(lines)) if lines[i].startswith("```")), len(lines))
            yield Markup("<pre>{}</pre>").format("\n".join(lines[n + 1 : end]))
            n = end + 1
        elif heading := re.fullmatch(r"(#{1,4})\s+(.+)", line):
            level = len(heading[1])
            yield Markup("<h{0}>{1}</h{0}>").format(level, _inline(heading[2]))
            n += 1
        elif line.startswith("|"):
            end = _while(lines, n, lambda text: text.startswith("|"))
            yield _table(lines[n:end])
            n = end
        elif _ITEM.match(line):
            end = _while(lines, n, lambda text: bool(_ITEM.match(text)) or text.startswith("  "))
            yield _list(lines[n:end])
            n = end
        else:
            end = _while(lines, n, lambda text: bool(text.strip()) and not text.startswith(("|", "```", "#")))
            yield Markup("<p>{}</p>").format(_inline(" ".join(part.strip() for part in lines[n:end])))
            n = end


def _while(lines: list[str], start: int, fits: Callable[[str], bool]) -> int:
    return next((i for i in range(start + 1, len(lines)) if not fits(lines[i])), len(lines))


def _list(lines: list[str]) -> Markup:
    items: list[list[str]] = []
    for line in lines:
        if found := _ITEM.match(line):
            items.append([line[found.end() :]])
        else:
            items[-1].append(line.strip())
    kind = "ol" if lines[0][0].isdigit() else "ul"
    # A list that was cut by a block goes on with its own number.
    first = int(lines[0].split(".")[0]) if kind == "ol" else 1
    inner = Markup("").join(Markup("<li>{}</li>").format(_inline(" ".join(item))) for item in items)
    start = Markup(' start="{}"').format(first) if first != 1 else ""
    return Markup("<{0}{1}>{2}</{0}>").format(kind, start, inner)


def _table(lines: list[str]) -> Markup:
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    body = [row for row in rows[1:] if not all(set(cell) <= set("-: ") for cell in row)]
    head = Markup("").join(Markup('<th scope="col">{}</th>').format(_inline(cell)) for cell in rows[0])
    inner = Markup("").join(
        Markup("<tr>{}</tr>").format(Markup("").join(Markup("<td>{}</td>").format(_inline(cell)) for cell in row))
        for row in body
    )
    return Markup(_TABLE).format(head, inner)


def _inline(text: str) -> Markup:
    made, at = Markup(""), 0
    for found in _INLINE.finditer(text):
        made += escape(text[at : found.start()])
        at = found.end()
        if found["code"]:
            made += Markup("<code>{}</code>").format(found["code"][1:-1])
        elif found["bold"]:
            made += Markup("<strong>{}</strong>").format(_inline(found["bold"]))
        elif found["soft"]:
            made += Markup("<em>{}</em>").format(_inline(found["soft"]))
        else:
            made += _link(found["text"], found["to"])
    return made + escape(text[at:])


def _link(text: str, to: str) -> Markup:
    """Another procedure becomes its page; what is elsewhere in the documentation stays text."""
    name = re.fullmatch(r"([a-z_]+|README)\.md(#.*)?", to)
    if name is None:
        return _inline(text)
    return Markup('<a href="/procedures/{}">{}</a>').format("" if name[1] == "README" else name[1], _inline(text))
