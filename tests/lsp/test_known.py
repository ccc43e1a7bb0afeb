"""Finished suggestions that are known: tables, and a linear oracle."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_ls.lsp.known import Known
from completion_ls.lsp.rules import Offer
from completion_ls.lsp.situation import Situation, Typed, typed_since
from completion_ls.lsp.suggestion import Suggestion

WIDE = 100_000
AREA = "def area(width, height):\n    "


def at(text: str, offset: int | None = None, limit: int = WIDE, **more: Any) -> Situation:
    """The situation at an offset of a whole document; at its end where none is given."""
    offset = len(text) if offset is None else offset
    before = text[:offset]
    return Situation(
        uri=more.pop("uri", "file:///a.py"),
        line=before.count("\n"),
        column=offset - (before.rfind("\n") + 1),
        before=before[-limit:],
        after=text[offset:][:limit],
        limit=limit,
        **more,
    )


def knowing(*suggestions: tuple[Situation, str | None], most: int = 500) -> Known:
    known = Known(most)
    for start, text in suggestions:
        known.add(start, Offer(text, 0) if text is not None else None)
    return known


def rest(known: Known, now: Situation) -> str | None:
    """What is shown at a place: "" for a suggestion that offers nothing, None for no suggestion."""
    found = known.find(now)
    if found is None:
        return None
    assert found.agrees(now)
    shown = found.shown_at(now)
    return shown.text if shown else ""


@pytest.mark.parametrize(
    ("now", "shown"),
    [
        (at(AREA), "return width"),
        (at(AREA + "re"), "turn width"),
        (at(AREA + "return widt"), "h"),
        (at(AREA + "return width"), None),  # accepted: what comes now was not generated
        (at(AREA + "rx"), None),
        (at(AREA[:-1]), None),
        (at("# new\n" + AREA), None),
        (at(AREA.replace("width", "with")), None),
        (at(AREA + "re\n", len(AREA) + 2), None),  # the text below has changed
        (at(AREA, uri="file:///b.py"), None),
        (at(AREA, context="x = 1\n\n"), None),
        (at(AREA, language="go"), None),
    ],
)
def test_one_suggestion_and_a_place(now: Situation, shown: str | None) -> None:
    assert rest(knowing((at(AREA), "return width")), now) == shown


def test_a_block_is_found_from_its_later_lines() -> None:
    block = "for x in y:\n        print(x)\n\n        z()"
    known = knowing((at(AREA), block))
    for size in range(len(block)):
        assert rest(known, at(AREA + block[:size])) == block[size:]


def test_a_closer_that_the_editor_added() -> None:
    known = knowing((at("files = listdir\n", 15), "(path)"))
    found = known.find(now := at("files = listdir()\n", 16))
    assert found
    shown = found.shown_at(now)
    assert shown
    assert (shown.text, shown.replace_after) == ("path)", 1)
    assert rest(known, at("files = listdir]\n", 15)) is None


def test_a_suggestion_of_nothing_answers_at_its_start_only() -> None:
    known = knowing((at(AREA), None))
    assert rest(known, at(AREA)) == ""
    assert rest(known, at(AREA + "r")) is None


def test_the_one_used_last_answers() -> None:
    known = knowing((at(AREA), "return width"), (at(AREA + "re"), "turn height"))
    assert rest(known, at(AREA + "ret")) == "urn height"
    assert rest(known, at(AREA + "r")) == "eturn width"
    assert rest(known, at(AREA + "ret")) == "urn width"


def test_the_same_place_has_one_suggestion() -> None:
    known = knowing((at(AREA), "return 1"), (at(AREA), "return 2"))
    assert len(known) == 1
    assert rest(known, at(AREA)) == "return 2"
    assert rest(known, at(AREA + "return ")) == "2"


def test_the_least_recently_used_falls_out() -> None:
    places = [at(AREA + str(number)) for number in range(4)]
    known = knowing((places[0], "0"), (places[1], "1"), (places[2], "2"), most=3)
    assert rest(known, places[0]) == "0"
    known.add(places[3], Offer("3", 0))
    assert [rest(known, place) for place in places] == ["0", None, "2", "3"]


def test_closed_documents_and_other_settings_leave_nothing() -> None:
    other = at(AREA, uri="file:///b.py")
    known = knowing((at(AREA), "return width"), (other, "return 1"))
    known.drop("file:///a.py")
    assert rest(known, at(AREA)) is None
    assert rest(known, other) == "return 1"
    known.clear()
    assert rest(known, other) is None
    assert len(known) == 0


def test_in_a_long_line() -> None:
    line = "f(1);" * 1000
    known = knowing((at(line + AREA[:7]), "one"), (at(line), "two"))
    assert rest(known, at(line + AREA[:7] + "o")) == "ne"
    assert rest(known, at(line + "t")) == "wo"


LONG = "".join(f"value_{number} = {number}\n" for number in range(2000))


def test_the_window_of_a_long_document_moves_along() -> None:
    middle = LONG.index("value_1000 ")
    text = "for a in b:\n    print(a)\n"
    start = at(LONG, middle, 4096)
    known = knowing((start, text))
    assert start.before_is_cut
    assert start.after_is_cut
    for size in range(len(text)):
        grown = LONG[:middle] + text[:size] + LONG[middle:]
        assert rest(known, at(grown, middle + size, 4096)) == text[size:]
        near = grown.replace("value_995 ", "value_xxx ")
        assert rest(known, at(near, middle + size, 4096)) is None
    # What the window does not hold does not matter, but all it holds does.
    far = LONG.replace("value_7 ", "value_x ")
    assert rest(known, at(far, middle, 4096)) == text
    edge = LONG[: middle - 4096] + "#" + LONG[middle - 4095 :]
    assert rest(known, at(edge, middle, 4096)) is None
    below = LONG[: middle + 4095] + "#" + LONG[middle + 4096 :]
    assert rest(known, at(below, middle, 4096)) is None


def test_what_was_prepared_for_after_an_acceptance_that_replaced_closers() -> None:
    middle = LONG.index("value_1000 ")
    before = at(LONG[:middle] + "print()\n" + LONG[middle:], middle + 6, 4096)
    suggestion = Suggestion.recalled(before, Offer("a)", 1))
    shown = suggestion.shown_at(before)
    assert shown
    after = at(LONG[:middle] + "print(a)\n" + LONG[middle:], middle + 8, 4096)
    assert typed_since(before.accepting(shown), after) == Typed("", "")
    known = knowing((before.accepting(shown), "  # all"))
    assert rest(known, after) == "  # all"


EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("type"), st.text("ab\n", min_size=1, max_size=3)),
        st.tuples(st.just("back"), st.integers(1, 3)),
        st.tuples(st.just("move"), st.integers(0, 30)),
        st.tuples(st.just("know"), st.text("ab\n", max_size=5)),
    ),
    max_size=40,
)


@given(edits=EDITS)
@settings(max_examples=300)
def test_a_place_has_an_answer_where_some_finished_suggestion_fits(
    edits: list[tuple[str, str | int]],
) -> None:
    """The oracle knows whole documents: text before and after each suggestion's start."""
    known = Known()
    finished: list[tuple[str, str, str]] = []
    text, offset = "ab\nab", 5
    for kind, value in edits:
        before, after = text[:offset], text[offset:]
        if kind == "type":
            before += str(value)
        elif kind == "back":
            before = before[: -int(value)]
        elif kind == "move":
            offset = min(int(value), len(text))
            before, after = text[:offset], text[offset:]
        else:
            known.add(at(text, offset), Offer(str(value), 0) if value else None)
            finished = [one for one in finished if one[:2] != (before, after)]
            finished.append((before, after, str(value)))
        text, offset = before + after, len(before)
        fitting = [
            (start, below, offered)
            for start, below, offered in finished
            if below == after
            and (start + offered).startswith(before)
            and (start == before or len(start) < len(before) < len(start + offered))
        ]
        found = known.find(at(text, offset))
        assert (found is not None) == bool(fitting)
        if found:
            newest = fitting[-1]
            assert found.start == at(newest[0] + newest[1], len(newest[0]))
            shown = found.shown_at(at(text, offset))
            assert before + (shown.text if shown else "") == newest[0] + newest[2]
            finished.remove(newest)
            finished.append(newest)


@given(edits=EDITS, closers=st.lists(st.sampled_from(["(", "[", "()", "[]", "x"]), max_size=10))
@settings(max_examples=300)
def test_windows_and_closers_are_compared_as_for_the_live_suggestion(
    edits: list[tuple[str, str | int]], closers: list[str]
) -> None:
    limit = 64

    def near(start: Situation) -> tuple[int, int, str, str]:
        return start.line, start.column, start.before[-48:], start.after[:48]

    known, finished = Known(), list[Suggestion]()
    text, offset = "abab\nab\n" * 20, 80
    pairs = iter(closers)
    for kind, value in edits:
        before, after = text[:offset], text[offset:]
        if kind == "type":
            pair = next(pairs, "")
            before += str(value) + pair[:1]
            after = pair[1:] + after
        elif kind == "back":
            before = before[: -int(value)]
        elif kind == "move":
            offset = 70 + int(value)
            before, after = text[:offset], text[offset:]
        else:
            start, offer = at(text, offset, limit), Offer(str(value) + "(a)[b]x", 0)
            known.add(start, offer)
            # Two that differ at the far ends of the windows only share a place.
            finished = [one for one in finished if near(one.start) != near(start)]
            finished.append(Suggestion.recalled(start, offer))
        text, offset = before + after, len(before)
        now = at(text, offset, limit)
        fitting = [one for one in finished if one.agrees(now)]
        found = known.find(now)
        assert (found is not None) == bool(fitting)
        if found:
            assert found.start in [one.start for one in fitting]


def test_unasked_only_a_part_of_a_suggestion_may_be_offered() -> None:
    known = Known()
    known.add(at(AREA), Offer("return width", 0), unasked=Offer("return", 0))
    assert rest(known, at(AREA)) == "return"
    assert rest(known, at(AREA + "ret")) == "urn"
    assert rest(known, at(AREA + "return")) is None
    for typed in ("", "ret", "return", "return wid"):
        assert rest(known, at(AREA + typed, manual=True)) == "return width"[len(typed) :]
    known.add(at(AREA), Offer("return width", 0), unasked=None)
    assert rest(known, at(AREA)) == ""
    assert rest(known, at(AREA + "ret")) is None
    assert rest(known, at(AREA + "ret", manual=True)) == "urn width"


def test_what_was_stopped_is_no_answer_for_who_asks_by_hand() -> None:
    known = Known()
    known.add(at(AREA), Offer("return", 0), stopped=True)
    assert rest(known, at(AREA + "re")) == "turn"
    assert rest(known, at(AREA + "re", manual=True)) is None
    found = known.find(at(AREA))
    assert found and found.stopped
