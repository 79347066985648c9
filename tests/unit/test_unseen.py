"""What people read is what there is: nothing unseen, and nothing that turns its neighbours around."""

from __future__ import annotations

import json

import pytest

from actonce.unseen import visible, visible_json

OVERRIDE, WIDTHLESS, ESC, CSI, TAG = "\u202e", "\u200b", "\x1b", "\x9b", "\U000e0041"


@pytest.mark.parametrize("unseen", [OVERRIDE, WIDTHLESS, ESC, CSI, TAG, "\u2066", "\ufeff", "\xad", "\x7f", "\u2028"])
def test_what_is_not_seen_is_shown_as_its_escape(unseen: str) -> None:
    shown = visible(f"pay{unseen}1")
    assert unseen not in shown and shown.startswith("pay\\u") and shown.endswith("1")
    text = visible_json({"payment_id": f"pay{unseen}1"}, indent=2)
    assert unseen not in text and json.loads(text) == {"payment_id": f"pay{unseen}1"}


@pytest.mark.parametrize(
    "word", ["Zoë Ångström", "山田 太郎", "شركة", "می\u200cخواهم", "👩\u200d🔧", "line\n\tnext", ""]
)
def test_words_of_every_language_stay_as_they_are(word: str) -> None:
    assert visible(word) == word
    assert json.loads(visible_json({word: word})) == {word: word}


def test_what_is_no_plain_text_is_left_alone() -> None:
    class Markup(str):
        pass

    marked = Markup(OVERRIDE)
    assert visible(marked) is marked and visible(3) == 3 and visible(None) is None
