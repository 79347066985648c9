"""What the people of the drills read on a page of the console: its words by place, its forms, and what is not there."""

from __future__ import annotations

import pytest

from drills.console.pages import read

HELD = """<html><head><title>x</title><script>var not = 'words';</script></head><body>
<form method="post" action="/sign-out"><input type="hidden" name="csrf" value="tok">
<button type="submit">Sign out</button></form>
<div role="alert" hidden>What you see may be over</div>
<main id="main"><div id="state"><span>held</span></div>
<section id="now"><h2>Held: <b>route_unavailable</b></h2><p>In the world <br>may still commit</p></section>
<a href="/operations/op1_x" title="op1_x">op1_x…</a><a href="/ui">Temporal UI</a>
<details id="act-mark_committed"><summary>Mark as committed</summary>
<form method="post" action="/operations/op1_x/decisions"><input type="hidden" name="csrf" value="tok">
<input type="hidden" name="version" value="4"><label for="o">Object id</label><input id="o" name="object_id" value="">
<label for="c">Type <code>abc123</code> to confirm</label><input id="c" name="confirm" value="">
<textarea id="r" name="reason">as typed</textarea>
<button type="submit" class="danger">Mark as committed</button></form></details>
<div id="vote"><form method="post" action="/a/approve"><button>Approve</button>
<button formaction="/a/reject" name="do" value="no">Reject</button></form></div>
</main></body></html>"""
REFUSED = """<main id="main"><div role="alert"><h1>The decision was refused</h1><p>It is not held.</p>
<p>code <code>not_held</code></p></div></main>"""


def test_a_page_is_read_by_place_and_scripts_are_no_words() -> None:
    seen = read(HELD, "/operations/op1_x", 200)
    assert (seen.state, seen.held_for, seen.csrf) == ("held", "route_unavailable", "tok")
    assert seen.now == "Held: route_unavailable In the world may still commit"
    assert seen.links == {"/operations/op1_x": "op1_x", "/ui": "Temporal UI"}
    assert "not" not in seen.words


def test_what_is_hidden_is_not_seen() -> None:
    seen = read(HELD, "/", 200)
    assert seen.alert is None and "may be over" not in seen.words


def test_a_form_brings_what_it_has_and_what_a_person_reads_beside_it() -> None:
    form = read(HELD, "/", 200).form("act-mark_committed")
    assert form is not None
    assert form.fields == {"csrf": "tok", "version": "4", "object_id": "", "confirm": "", "reason": "as typed"}
    assert form.labels["confirm"] == "Type abc123 to confirm"
    assert form.button("Mark as")[1].label == "Mark as committed"
    with pytest.raises(LookupError, match="no button 'Resume'"):
        form.button("Resume")


def test_what_is_not_offered_is_not_there() -> None:
    seen = read(HELD, "/", 200)
    assert seen.offered == ["mark_committed"] and seen.form("act-resume") is None


def test_two_buttons_of_one_form_may_go_to_two_places() -> None:
    form = read(HELD, "/", 200).form("vote")
    assert form is not None and [(b.label, b.action, b.value) for b in form.buttons] == [
        ("Approve", None, ""),
        ("Reject", "/a/reject", "no"),
    ]


def test_a_refusal_has_its_code_and_is_not_done() -> None:
    seen = read(REFUSED, "/", 409)
    assert not seen.done and seen.code == "not_held" and "It is not held." in seen.answer


def test_an_answer_that_says_nothing_is_not_done() -> None:
    seen = read("<main>fine</main>", "/", 200)
    assert not seen.done and seen.code == "200"
