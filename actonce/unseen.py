"""Text as people can see it: what would be invisible, or would turn its neighbours around, is shown as its escape.

Who approves a payment reads what will run. `pay_1` with an override of direction in it may read as another payment, and
one with a space of no width as the same; a terminal obeys what is written to it. Escaping markup does not change that.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

# Controls but tab and line ends, soft hyphens, marks and overrides of direction, widthless spaces and other invisible
# marks, tags. Not the joiners U+200C and U+200D: words of some languages, and some pictures, are made of them.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
_UNSEEN_IN_JSON = frozenset({"Cc", "Cf", "Zl", "Zp", "Co", "Cs", "Cn"})


def visible(value: Any) -> Any:
    """Text with its unseen characters as escapes. Whatever is no plain text (markup, a number) stays as it is."""
    return _UNSEEN.sub(_escape, value) if type(value) is str else value


def visible_json(value: Any, indent: int | None = None) -> str:
    """JSON for people. It means the same as any other, and there is no character in it that cannot be seen."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(_escaped(c) if c != "\n" and unicodedata.category(c) in _UNSEEN_IN_JSON else c for c in text)


def _escape(found: re.Match[str]) -> str:
    return _escaped(found[0])


def _escaped(character: str) -> str:
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]
