"""A page of the console as somebody reads it: its words by their place, its links, its forms with their labels.

Contract: pure; knows HTML and the console's ids, and nothing of the system. What a page does not have is missing here
too: a form that is not offered is None, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

_VOID = frozenset({"input", "meta", "link", "br", "hr", "img", "path", "circle", "rect", "line", "polyline", "wbr"})
_NOT_LIVE = "not-live"  # about the page itself, and no answer to a press
_UNSEEN = frozenset({"script", "style", "title"})


@dataclass(frozen=True)
class Button:
    """One way to send a form."""

    label: str
    name: str = ""
    value: str = ""
    action: str | None = None  # where it sends the form, when not where the others do


@dataclass
class Form:
    """One form. `about`: id of the part of the page that it is in."""

    action: str
    about: str
    fields: dict[str, str] = field(default_factory=dict)  # what each begins with
    labels: dict[str, str] = field(default_factory=dict)  # what a person reads beside each
    buttons: list[Button] = field(default_factory=list)

    def button(self, label: str) -> tuple[int, Button]:
        """The button that begins with these words, and which of them it is. Raises LookupError."""
        for number, one in enumerate(self.buttons):
            if one.label.startswith(label):
                return number, one
        raise LookupError(f"{self.action} has no button {label!r}: {', '.join(b.label for b in self.buttons)}")


@dataclass(frozen=True)
class Seen:
    """A page as it was shown."""

    path: str
    status: int
    words: str  # of the whole page
    parts: dict[str, str]  # words by id
    links: dict[str, str]  # address -> its title, else its words
    forms: list[Form]
    notice: str | None  # what was done
    alert: str | None  # why something was not done

    @property
    def state(self) -> str:
        """The state as the page's head says it."""
        return self.parts.get("state", "")

    @property
    def now(self) -> str:
        """Where it stands."""
        return self.parts.get("now", "")

    @property
    def held_for(self) -> str | None:
        """The reason code of the hold that an operation's page is about."""
        found = re.match(r"Held: ([a-z_]+)", self.now)
        return found.group(1) if found else None

    @property
    def offered(self) -> list[str]:
        """Decisions for which there is a button now."""
        return [form.about.removeprefix("act-") for form in self.forms if form.action.endswith("/decisions")]

    @property
    def done(self) -> bool:
        """After a press: was it taken?"""
        return self.status == 200 and self.alert is None and self.notice is not None

    @property
    def code(self) -> str:
        """After a press that was refused: the code."""
        found = re.search(r"code (\S+)$", self.alert or "")
        return found.group(1) if found else str(self.status)

    @property
    def answer(self) -> str:
        """What the page says about the press."""
        return (self.notice if self.done else self.alert) or f"status {self.status}: {self.words[-300:]}"

    @property
    def csrf(self) -> str:
        """What every form of this sign-in carries."""
        return next((form.fields["csrf"] for form in self.forms if "csrf" in form.fields), "")

    def form(self, about: str) -> Form | None:
        """The form in that part of the page, if there is one."""
        return next((form for form in self.forms if form.about == about), None)

    def sent_to(self, action: str) -> Form | None:
        """The form that is sent there, if there is one."""
        return next((form for form in self.forms if form.action == action), None)


def read(html: str, path: str, status: int) -> Seen:
    """Read a page."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    parts = {name: _plain(words) for name, words in reader.parts.items()}
    for form in reader.forms:
        form.buttons = [Button(_plain([b.label]), b.name, b.value, b.action) for b in form.buttons]
    return Seen(
        path=path,
        status=status,
        words=_plain(reader.words),
        parts=parts,
        links={address: title or _plain(words) for address, title, words in reader.links},
        forms=reader.forms,
        notice=_plain(reader.roles["status"]) or None,
        alert=_plain(reader.roles["alert"]) or None,
    )


def _plain(words: Iterable[str]) -> str:
    return " ".join(" ".join(words).split())


@dataclass
class _Open:
    """An element whose end has not come yet."""

    tag: str
    sinks: list[list[str]]  # who wants its words
    id: str
    unseen: bool


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.words: list[str] = []
        self.parts: dict[str, list[str]] = {}
        self.roles: dict[str, list[str]] = {"status": [], "alert": []}
        self.links: list[tuple[str, str, list[str]]] = []
        self.forms: list[Form] = []
        self._open: list[_Open] = []
        self._form: Form | None = None
        self._label_for: dict[str, list[str]] = {}
        self._field_ids: dict[str, tuple[Form, str]] = {}
        self._pressed: tuple[Button, list[str]] | None = None
        self._text_field: tuple[Form, str, list[str]] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        sinks: list[list[str]] = []
        if has.get("id"):
            sinks.append(self.parts.setdefault(has["id"], []))
        if has.get("role") in self.roles and has.get("id") != _NOT_LIVE:
            sinks.append(self.roles[has["role"]])
        if tag == "a" and has.get("href"):
            words: list[str] = []
            self.links.append((has["href"], has.get("title", ""), words))
            sinks.append(words)
        if tag == "label" and has.get("for"):
            sinks.append(self._label_for.setdefault(has["for"], []))
        if tag == "form" and has.get("method", "").lower() == "post":
            about = next((one.id for one in reversed(self._open) if one.id), "")
            self._form = Form(has.get("action", ""), about)
            self.forms.append(self._form)
        if self._form is not None:
            sinks += self._in_form(self._form, tag, has)
        if tag not in _VOID:
            self._open.append(_Open(tag, sinks, has.get("id", ""), tag in _UNSEEN or "hidden" in has))

    def _in_form(self, form: Form, tag: str, has: dict[str, Any]) -> list[list[str]]:
        if tag == "button":
            self._pressed = (Button("", has.get("name", ""), has.get("value", ""), has.get("formaction")), [])
            return [self._pressed[1]]
        if tag in ("input", "textarea") and has.get("name"):
            form.fields[has["name"]] = has.get("value", "")
            if has.get("id"):
                self._field_ids[has["id"]] = (form, has["name"])
            if tag == "textarea":
                self._text_field = (form, has["name"], [])
                return [self._text_field[2]]
        return []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _VOID:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID or not any(one.tag == tag for one in self._open):
            return
        while self._open and self._open.pop().tag != tag:
            pass
        if tag == "form":
            self._form = None
        if tag == "button" and self._form is not None and self._pressed is not None:
            button, words = self._pressed
            self._form.buttons.append(Button(" ".join(words), button.name, button.value, button.action))
            self._pressed = None
        if tag == "textarea" and self._text_field is not None:
            form, name, words = self._text_field
            form.fields[name] = "".join(words)
            self._text_field = None

    def handle_data(self, data: str) -> None:
        if any(one.unseen for one in self._open):
            return
        self.words.append(data)
        for one in self._open:
            for sink in one.sinks:
                sink.append(data)

    def close(self) -> None:
        super().close()
        for id_, (form, name) in self._field_ids.items():
            form.labels[name] = _plain(self._label_for.get(id_, []))
