"""Which slot a prompt goes into."""

from __future__ import annotations

from completion_ls.engines.remote.slots import Held, Slots


def text(letter: str, length: int) -> Held:
    return tuple(ord(letter) * 1000 + n for n in range(length))


A, B, C = (text(letter, 100) for letter in "abc")


def test_a_document_keeps_its_slot() -> None:
    slots = Slots(2)
    assert slots.of("a", A) is None
    slots.put(0, "a", A)
    slots.put(1, "b", B)
    assert (slots.of("a", A), slots.of("b", B), slots.of("c", C)) == (0, 1, None)
    assert slots.expected(0, (*A, 1)) == 100


def test_a_new_document_gets_the_slot_that_is_idle_and_longest_unused() -> None:
    slots = Slots(3)
    for number, (document, prompt) in enumerate((("a", A), ("b", B), ("c", C))):
        slots.put(number, document, prompt)
    assert slots.another([0, 1, 2]) == 0
    assert slots.another([2]) == 2
    with slots.using(0):
        assert slots.another([]) == 1
    assert slots.another([]) == 0


def test_work_ahead_goes_where_nobody_types() -> None:
    slots = Slots(2)
    slots.put(0, "a", A)
    assert slots.ahead(B) == 1
    slots.put(1, "b", B)
    assert slots.ahead(C) is None
    assert slots.ahead((*A, 1, 2)) == 0


def test_work_ahead_that_goes_on_in_a_slot_leaves_it_to_its_document() -> None:
    slots = Slots(1)
    slots.put(0, "a", A)
    slots.put(0, "", (*A, 1))
    assert slots.ahead(B) is None
    assert slots.of("a", A) == 0


def test_a_document_that_moves_on_leaves_its_slot() -> None:
    """Else it had them all after some moves, and nothing could be read ahead."""
    slots = Slots(2)
    slots.put(0, "a", A)
    for prompt in (B, C, A, B):
        ahead = slots.ahead(prompt)
        assert ahead is not None
        slots.put(ahead, "", prompt)
        found = slots.of("a", (*prompt, 1))
        assert found == ahead
        slots.put(found, "a", (*prompt, 1))


def test_the_answer_is_no_part_of_what_is_typed() -> None:
    slots = Slots(1)
    slots.put(0, "a", A, (7, 8, 9))
    assert slots.expected(0, (*A, 7, 8, 1)) == 102
    assert slots.ahead((*A, 5)) == 0


def test_a_slot_that_others_use_is_left_to_them() -> None:
    slots = Slots(2)
    slots.put(0, "a", A)
    slots.was_taken(0)
    assert slots.of("a", A) is None
    assert slots.another([0, 1]) == 1
