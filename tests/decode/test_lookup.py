"""Looking drafts up, against a search that compares every place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from completion_ls.decode import lookup
from completion_ls.decode.lookup import (
    LONGEST,
    MOST_DOCUMENTS,
    MOST_GHOSTS,
    MOST_TEXT,
    TEXT_STEP,
    Lookup,
    Proposal,
    Recent,
    Source,
    TextIndex,
)

texts = st.lists(st.integers(0, 3), max_size=40)


def matches(text: list[int], ending: list[int]) -> dict[int, int]:
    """For each place of a text with something behind it, how many tokens before it are the last
    ones of `ending`."""
    found = {}
    for place in range(1, len(text)):
        length = 0
        while length < min(place, len(ending)) and text[place - 1 - length] == ending[-1 - length]:
            length += 1
        found[place] = length
    return found


def longest(text: list[int], ending: list[int]) -> tuple[int, int]:
    """The longest match and, of those, the latest place; (0, 0) where there is none."""
    found = matches(text, ending)
    place = max(found, key=lambda place: (found[place], place), default=0)
    return (found[place], place) if place and found[place] else (0, 0)


@pytest.fixture(scope="module", autouse=True)
def _all_places() -> Iterator[None]:
    """Texts of four tokens have each in more places than any code has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup, "MOST_PLACES", 1000)
        yield


@given(texts, texts, st.integers(0, 5))
@example([1, 2, 1, 2], [1, 2], 0)
@example([1, 2], [3, 1], 0)
@example([0] * 40, [0] * 16, 15)
@example([0] * 2, [0] * 16, 5)
def test_the_longest_match_is_found_and_of_equals_the_latest(
    text: list[int], ending: list[int], longer_than: int
) -> None:
    length, place = longest(text, ending)
    found = TextIndex(text).find(ending, longer_than)
    if length <= longer_than:
        assert found is None
    else:
        assert found is not None
        assert found[0] == length
        assert TextIndex(text).following(found[1], 40) == tuple(text[place:])


@given(st.lists(texts, max_size=5), texts)
def test_an_index_that_grew_and_changed_finds_what_a_new_one_does(
    history: list[list[int]], ending: list[int]
) -> None:
    index, text = TextIndex(), list[int]()
    for number, tokens in enumerate(history):
        if number % 2:
            index.extend(tokens)
            text = text + tokens
        else:
            text = text[: len(tokens)] + tokens  # often with a common beginning
            index.become(text)
        fresh = TextIndex(text)
        assert len(index) == len(text)
        assert index.tail(7) == text[-7:]
        for length in range(len(ending) + 1):
            assert index.find(ending[:length], 0) == fresh.find(ending[:length], 0)


@given(
    st.permutations(range(12)), st.integers(0, 12), st.permutations(range(12)), st.integers(0, 12)
)
@example([*range(12)], 8, [*range(12)], 0)
def test_nothing_is_left_of_the_text_that_was_there_before(
    old: list[int], common: int, new: list[int], more: int
) -> None:
    text = old[:common] + new[:more]
    index = TextIndex(old)
    index.become(text)
    for token in range(12):
        assert index.find([token], 0) == TextIndex(text).find([token], 0)


def test_only_the_latest_places_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "MOST_PLACES", 3)
    for text, length, following in [
        ([7, 8, 5, 1, 8, 5, 2, 5, 3], 3, (1, 8, 5, 2, 5, 3)),
        ([7, 8, 5, 1, 8, 5, 2, 5, 3, 5, 4], 2, (2, 5, 3, 5, 4)),
    ]:
        found = TextIndex(text).find([7, 8, 5], 0)
        assert found is not None
        assert (found[0], TextIndex(text).following(found[1], 9)) == (length, following)


def begun(recent: Recent, prompt: list[int], output: list[int], document: str = "a") -> Lookup:
    one = recent.lookup(document, prompt)
    one.extend(output)
    return one


def test_the_prompt_is_looked_through() -> None:
    far = list(range(100, 100 + LONGEST))
    one = begun(Recent(), [1, 2, 3, 4, 5, 9, *far, 1, 2], [3])
    assert one.propose(2) == Proposal((4, 5), 3, Source.TEXT)
    one.extend([4, 5])
    assert one.propose(2 + LONGEST) == Proposal((9, *far, 1), 5, Source.TEXT)
    assert one.propose(99) == Proposal((9, *far, 1, 2), 5, Source.TEXT)
    one.extend([77])
    assert one.propose(8) is None


def test_the_output_is_looked_through_and_repeats_itself() -> None:
    one = begun(Recent(), [1, 2, 3], [10, 11, 12, 10, 11])
    assert one.propose(7) == Proposal((12, 10, 11, 12, 10, 11, 12), 2, Source.TEXT)


def test_the_rest_of_the_last_suggestion_is_proposed_again() -> None:
    recent = Recent()
    prompt = list(range(100, 130))
    begun(recent, prompt, [1, 2, 3, 4, 5])
    begun(recent, prompt, [1, 2, 6])
    assert begun(recent, prompt, []).propose(9) == Proposal((1, 2, 6), LONGEST, Source.GHOST)
    assert begun(recent, prompt, [9, 3]).propose(9) == Proposal((4, 5), 1, Source.GHOST)
    assert begun(recent, prompt, [9, 3], "b").propose(9) is None


def test_a_longer_match_goes_before_a_better_source() -> None:
    recent = Recent()
    begun(recent, [50], [2, 3, 4])
    one = begun(recent, [1, 2, 3, 5, 60], [1, 2, 3])
    assert one.propose(1) == Proposal((5,), 3, Source.TEXT)
    begun(recent, [50], [1, 2, 3, 6])
    assert one.propose(1) == Proposal((6,), 3, Source.GHOST)


def test_other_documents_are_asked_where_the_own_one_knows_next_to_nothing() -> None:
    recent = Recent()
    begun(recent, [1, 2, 3, 4, 5], [], "b").propose(1)
    begun(recent, [2, 3, 6, 7], [], "c").propose(1)
    assert begun(recent, [70], [2, 3]).propose(9) == Proposal((6, 7), 2, Source.OTHER)
    assert begun(recent, [1], [2, 3]).propose(9) == Proposal((4, 5), 3, Source.OTHER)
    assert begun(recent, [70], [88, 3]).propose(9) is None
    recent = Recent()
    begun(recent, [1, 2, 3, 4, 5], [], "b").propose(1)
    assert begun(recent, [3, 9], [2, 3]).propose(1) == Proposal((9,), 1, Source.TEXT)
    assert begun(recent, [3, 9, 1], [2, 3]).propose(1) == Proposal((4,), 3, Source.OTHER)
    begun(recent, [6, 7, 8, 1, 2, 3, 4], [], "b").propose(1)
    near = begun(recent, [2, 3, 9, *range(20, 20 + LONGEST), 6, 7, 8, 1], [2, 3])
    assert near.propose(1) == Proposal((9,), 2, Source.TEXT)


@given(texts, texts, texts)
def test_no_match_crosses_from_one_text_into_another(
    ghost: list[int], prompt: list[int], output: list[int]
) -> None:
    recent = Recent()
    if ghost:
        begun(recent, [], ghost)
    text = prompt + output
    proposal = begun(recent, prompt, output).propose(5)
    ending = text[-LONGEST:]
    own = prompt[-LONGEST:] + output
    best = max(longest(one, ending)[0] for one in (ghost, own, prompt))
    if best == 0:
        assert proposal is None
        return
    assert proposal is not None
    assert proposal.match == best
    assert 1 <= len(proposal.tokens) <= 5
    # What is proposed stands behind the match in one of the texts, or begins anew.
    joined = ending[-best:] + list(proposal.tokens)
    candidates = [ghost, prompt, own + own[longest(own, ending)[1] :] * 5]
    assert any(
        joined == one[start : start + len(joined)]
        for one in candidates
        for start in range(len(one))
    )


def test_only_the_latest_suggestions_are_kept() -> None:
    recent = Recent()
    for number in range(MOST_GHOSTS + 1):
        begun(recent, [], [10 * number, 10 * number + 1])
    ask = recent.lookup("a", [0])  # its own output is none of them yet
    assert ask.propose(1) is None
    assert recent.lookup("a", [10]).propose(1) == Proposal((11,), 1, Source.GHOST)


def test_the_documents_that_were_used_last_are_kept() -> None:
    recent = Recent()
    names = range(100, 100 + MOST_DOCUMENTS)
    for name in [*names, names[0], 200, 201]:
        recent.lookup(name, [name, 5, 6]).propose(1)
    later = [*names[4:], names[0], 200, 201]
    kept = {name: begun(recent, [name], [5], "x").propose(1) for name in [*names, 200, 201]}
    expected = Proposal((6,), 2, Source.OTHER)
    # The one that asks is a document, too.
    assert kept == {name: expected if name in later else None for name in kept}


@pytest.mark.parametrize(
    "length, start",
    [
        (MOST_TEXT, 0),
        (MOST_TEXT + 1, TEXT_STEP),
        (MOST_TEXT + TEXT_STEP, TEXT_STEP),
        (MOST_TEXT + TEXT_STEP + 1, 2 * TEXT_STEP),
    ],
)
def test_of_a_very_long_prompt_the_end_is_kept_from_a_start_that_seldom_moves(
    length: int, start: int
) -> None:
    recent = Recent()
    prompt = [*range(length - 1), start]
    assert recent.lookup("a", prompt).propose(1) == Proposal((start + 1,), 1, Source.TEXT)
    if start:
        prompt = [*range(length - 1), start - 1]
        assert recent.lookup("a", prompt).propose(1) is None
