"""Where the user is."""

from __future__ import annotations

from completion_ls.daemon.foreground import HELD_S, Foreground


def test_who_types_first_is_in_front_and_stays_while_it_types() -> None:
    foreground = Foreground()
    for key in range(50):
        foreground.typed("a", key * 0.9 * HELD_S, waited=False)
        foreground.typed("b", key * 0.9 * HELD_S + 0.1, waited=False)
        assert foreground.front == "a"


def test_who_types_when_the_other_has_paused_takes_over() -> None:
    foreground = Foreground()
    foreground.typed("a", 10.0, waited=False)
    foreground.typed("b", 10.0 + HELD_S + 0.1, waited=False)
    assert foreground.front == "b"


def test_who_waits_for_an_answer_is_still_there() -> None:
    foreground = Foreground()
    foreground.typed("a", 10.0, waited=False)
    foreground.typed("b", 10.0 + 9 * HELD_S, waited=True)
    assert foreground.front == "a"


def test_who_asks_by_hand_or_comes_into_view_is_in_front_at_once() -> None:
    foreground = Foreground()
    foreground.typed("a", 10.0, waited=False)
    foreground.came("b", 10.1)
    foreground.typed("a", 10.2, waited=False)
    assert foreground.front == "b"


def test_one_that_has_gone_holds_nobody_up() -> None:
    foreground = Foreground()
    foreground.typed("a", 10.0, waited=False)
    foreground.left("b")
    foreground.typed("b", 10.1, waited=False)
    assert foreground.front == "a"
    foreground.left("a")
    foreground.typed("b", 10.2, waited=False)
    assert foreground.front == "b"
