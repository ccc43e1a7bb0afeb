"""Suggestion sessions on an engine that says what a test tells it, when it tells it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from completion_ls.config.settings import CompletionSettings, ServerSettings, Settings
from completion_ls.lsp import ahead, suggester
from completion_ls.lsp.rules import Offer
from completion_ls.lsp.situation import Shown, Situation
from completion_ls.wire.client import EngineFailed
from completion_ls.wire.messages import Ready
from support.session import AREA, BODY, URI, Session, at, settle, text_of


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is prepared ahead begins at once, and what nobody waits for ends at once."""
    monkeypatch.setattr(ahead, "QUIET_S", 0.0)
    monkeypatch.setattr(suggester, "LINGER_S", 0.0)


@pytest.fixture
async def alone() -> AsyncIterator[Session]:
    """Without work ahead of the user."""
    session = Session(ahead=False)
    yield session
    session.suggester.end_all()


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    found = Session()
    yield found
    found.suggester.end_all()


# Known suggestions


async def test_backspace_to_a_known_place_is_answered_at_once(alone: Session) -> None:
    assert await alone.answer(at(AREA), BODY) == BODY
    alone.suggester.changed([at(AREA + "re")], 1)
    assert await alone.known(at(AREA + "re")) == BODY[2:]
    alone.suggester.changed([at(AREA + "r")], 0)
    assert not alone.suggester.follows(URI)
    assert await alone.known(at(AREA + "r")) == BODY[1:]
    # From here one types along again.
    alone.suggester.changed([at(AREA + "ret")], 2)
    assert alone.suggester.follows(URI)
    assert await alone.known(at(AREA + "ret")) == BODY[3:]


async def test_undo_after_a_key_that_disagreed(alone: Session) -> None:
    await alone.answer(at(AREA), BODY)
    alone.suggester.changed([at(AREA + "x")], 1)
    assert await alone.answer(at(AREA + "x"), " = 1") == " = 1"
    alone.suggester.changed([at(AREA)], 0)
    assert await alone.known(at(AREA)) == BODY
    alone.suggester.changed([at(AREA + "x")], 1)
    assert await alone.known(at(AREA + "x")) == " = 1"


async def test_text_below_that_changed_is_another_state(alone: Session) -> None:
    await alone.answer(at(AREA, "\nprint(1)"), BODY)
    alone.suggester.changed([at(AREA, "\nprint(2)")], 1)
    assert await alone.answer(at(AREA, "\nprint(2)"), "pass") == "pass"
    assert await alone.known(at(AREA, "\nprint(1)")) == BODY
    assert await alone.known(at(AREA, "\nprint(2)")) == "pass"


async def test_what_is_shown_stays_while_it_is_typed(alone: Session) -> None:
    """A newer suggestion fits as well, but another is on the screen."""
    await alone.answer(at(AREA), BODY)
    alone.suggester.forget(URI)
    other = BODY.replace("height", "depth")
    alone.suggester.changed([at(AREA + "retx")], 1)
    alone.suggester._known.add(at(AREA + "re"), Offer(other[2:], 0))
    assert await alone.known(at(AREA)) == BODY
    for size in range(1, len(BODY)):
        alone.suggester.changed([at(AREA + BODY[:size])], 1)
        assert await alone.known(at(AREA + BODY[:size])) == BODY[size:]


async def test_what_failed_or_was_given_up_is_not_known(alone: Session) -> None:
    task = alone.ask(at(AREA))
    await settle()
    alone.engine.say(0, "return")
    await settle()
    assert [shown.text for shown in alone.partials] == ["return"]
    task.cancel()
    await settle()
    assert alone.engine.cancels == [(0, False)]
    failing = alone.ask(at(AREA))
    await settle()
    alone.engine.say(1, "return")
    alone.engine.fail(1)
    with pytest.raises(EngineFailed):
        await failing
    assert await alone.answer(at(AREA), BODY) == BODY
    assert alone.foreground == 3


async def test_a_cancel_says_whether_the_job_was_of_use(alone: Session) -> None:
    task = alone.ask(at("x = "))
    await settle()
    alone.engine.say(0, "1\nmore")  # complete by the rules, and the model goes on
    assert text_of(await task) == "1"
    assert alone.engine.cancels == [(0, True)]
    task = alone.ask(at("y = "))
    await settle()
    alone.engine.say(1, "1")
    await settle()
    alone.suggester.changed([at("y = z")], 1)
    await settle()
    assert alone.engine.cancels == [(0, True), (1, False)]
    assert await task is None


async def test_documents_have_their_own_and_lose_it_when_closed(alone: Session) -> None:
    other = "file:///b.py"
    await alone.answer(at(AREA), BODY)
    await alone.answer(at(AREA, uri=other), "pass")
    alone.suggester.close(URI)
    assert await alone.known(at(AREA, uri=other)) == "pass"
    assert await alone.answer(at(AREA), "return 1") == "return 1"


async def test_other_settings_forget_all_and_let_who_waits_begin_again(alone: Session) -> None:
    await alone.answer(at(AREA), BODY)
    waiting = alone.ask(at("x = "))
    await settle()
    alone.suggester.change(settings=Settings(completion=CompletionSettings(seed=1, ahead=False)))
    await settle()
    assert alone.engine.requests[2].seed == 1
    alone.engine.finish(2, "1")
    assert text_of(await waiting) == "1"
    assert await alone.answer(at(AREA), "pass") == "pass"


# Ahead of the user


async def test_what_comes_after_accepting_is_there(session: Session) -> None:
    await session.answer(at(AREA), BODY)
    await settle()
    assert session.engine.lanes == ["key", "background"]
    assert session.engine.requests[1].prefix == AREA + BODY
    session.engine.finish(1, "  # done")
    await settle()
    assert session.engine.lanes == ["key", "background"]  # no chain
    session.suggester.changed([at(AREA + BODY)], len(BODY))
    assert await session.known(at(AREA + BODY)) == "  # done"
    await settle()
    assert session.engine.lanes == ["key", "background", "background"]  # its own turn
    assert session.engine.requests[2].prefix == AREA + BODY + "  # done"


async def test_the_text_after_the_first_line_is_that_of_the_suggestion(session: Session) -> None:
    body = "total = 0\n    for x in y:\n        total += x"
    await session.answer(at(AREA), body)
    await settle()
    assert [request.prefix for request in session.engine.requests] == [AREA, AREA + body]
    session.suggester.changed([at(AREA + "total = 0")], 9)
    assert await session.known(at(AREA + "total = 0")) == body[9:]
    await settle()
    assert len(session.engine.requests) == 2
    assert session.engine.cancels == []


async def test_closers_that_accepting_replaces_are_gone(session: Session) -> None:
    await session.answer(at("print(", ")\n"), "a)(b")
    await settle()
    prepared = session.engine.requests[1]
    assert (prepared.prefix, prepared.suffix) == ("print(a)(b", "\n")
    session.engine.finish(1, "  # all")
    await settle()
    session.suggester.changed([at("print(a)(b", "\n")], 4)
    assert await session.known(at("print(a)(b", "\n")) == "  # all"


async def test_typing_towards_it_keeps_it_and_anything_else_ends_it(session: Session) -> None:
    await session.answer(at(AREA), BODY)
    await settle()
    session.suggester.changed([at(AREA + "ret")], 3)
    assert await session.known(at(AREA + "ret")) == BODY[3:]
    await settle()
    assert session.engine.cancels == []
    assert session.foreground == 1
    assert len(session.engine.requests) == 2
    session.suggester.changed([at(AREA + "retx")], 1)
    await settle()
    assert session.engine.cancels == [(1, False)]


async def test_who_arrives_early_waits_on_the_key_lane(session: Session) -> None:
    await session.answer(at(AREA), BODY)
    await settle()
    session.engine.say(1, "  # a")
    session.suggester.changed([at(AREA + BODY)], len(BODY))
    await settle()
    task = session.ask(at(AREA + BODY))
    await settle()
    assert session.engine.promoted == [1]
    assert [shown.text for shown in session.partials][-1] == "  # a"
    session.engine.finish(1, "rea")
    assert text_of(await task) == "  # area"
    assert session.foreground == 1
    assert session.engine.without_pass == 0  # it did need passes


async def test_who_arrives_before_the_job_is_sent_gets_it_on_the_key_lane(
    session: Session,
) -> None:
    later = asyncio.get_running_loop().call_later
    later(0.01, lambda: session.engine.finish(0, BODY))
    await session.suggester.suggest(at(AREA))
    # No task has run since, so the preparation has not sent its request.
    assert session.engine.lanes == ["key"]
    session.suggester.changed([at(AREA + BODY)], len(BODY))
    later(0.01, lambda: session.engine.finish(1, "  # area"))
    assert text_of(await session.suggester.suggest(at(AREA + BODY))) == "  # area"
    assert session.engine.lanes[:2] == ["key", "key"]
    assert session.engine.promoted == []


async def test_text_that_disagrees_with_who_went_past_ends_it(session: Session) -> None:
    await session.answer(at(AREA), BODY)
    await settle()
    session.suggester.changed([at(AREA + BODY)], len(BODY))
    session.suggester.changed([at(AREA + BODY + ";")], 1)
    session.engine.say(1, "  # area")
    await settle()
    assert session.engine.cancels == [(1, False)]
    assert await session.answer(at(AREA + BODY + ";"), " x = 1") == " x = 1"


async def test_a_preparation_that_fails_is_silent(session: Session) -> None:
    await session.answer(at(AREA), BODY)
    await settle()
    session.engine.fail(1)
    await settle()
    session.suggester.changed([at(AREA + BODY)], len(BODY))
    assert await session.answer(at(AREA + BODY), "  # area") == "  # area"


async def test_nothing_is_prepared_where_it_is_not_wanted() -> None:
    off = Session(ahead=False)
    unready = Session()
    unready.engine.ready = None
    disabled = Session()
    disabled.suggester.change(
        settings=Settings(server=ServerSettings(disabled_languages=["python"]))
    )
    for session in (off, unready, disabled):
        await session.answer(at(AREA, language="python", manual=True), BODY)
        session.suggester.warm_up(at(AREA + "x", language="python"))
        await settle()
        assert session.engine.lanes == ["manual"]


async def test_a_document_in_view_is_warmed_up_until_the_first_key(session: Session) -> None:
    session.suggester.warm_up(at(AREA, uri="file:///b.py"))
    await settle()
    session.suggester.warm_up(at(AREA))
    await settle()
    assert session.engine.lanes == ["background", "background"]
    assert [request.max_tokens for request in session.engine.requests] == [1, 1]
    assert session.engine.cancels == [(0, False)]
    session.engine.say(1, "lost")
    assert await session.answer(at(AREA), BODY) == BODY
    assert session.engine.cancels == [(0, False), (1, False)]


async def test_a_warm_up_has_the_prompt_of_the_keystroke(session: Session) -> None:
    session.engine.ready = Ready(model="scripted", max_context=1000)
    session.suggester.warm_up(at(AREA))
    await settle()
    assert session.engine.requests[0].prompt_tokens == 1000 - CompletionSettings().max_tokens


async def test_the_document_one_works_in_is_not_warmed_up(session: Session) -> None:
    task = session.ask(at(AREA))
    await settle()
    session.suggester.warm_up(at(AREA))
    await settle()
    assert session.engine.lanes == ["key"]
    session.engine.finish(0, BODY)
    await task
    session.suggester.warm_up(at(AREA + "re"))  # known
    await settle()
    assert session.engine.lanes == ["key", "background"]
    assert session.engine.requests[1].max_tokens > 1


# Waiting before text is shown


async def test_new_text_is_held_back_while_the_engine_works() -> None:
    session = Session(ahead=False, debounce_ms=200)
    clock = asyncio.get_running_loop().time
    begun = clock()
    task = session.ask(at(AREA))
    await settle()
    assert session.engine.lanes == ["key"]
    session.engine.say(0, BODY[:6])
    await settle()
    assert session.partials == []
    session.engine.finish(0, BODY[6:])
    await settle()
    assert not task.done()
    assert text_of(await task) == BODY
    assert clock() >= begun + 0.2


async def test_text_that_is_there_when_the_time_is_over_is_shown() -> None:
    session = Session(ahead=False, debounce_ms=50)
    task = session.ask(at(AREA))
    await settle()
    session.engine.say(0, BODY[:6])
    while not session.partials:
        assert not task.done()
        await asyncio.sleep(0.01)
    assert [shown.text for shown in session.partials] == [BODY[:6]]
    session.engine.finish(0, BODY[6:])
    assert text_of(await task) == BODY


async def test_what_is_there_or_asked_for_is_not_held_back() -> None:
    session = Session(ahead=False, debounce_ms=2000)
    assert await at_once(session, at(AREA, manual=True), BODY) == BODY
    assert await at_once(session, at(AREA + "re")) == BODY[2:]
    session.suggester.changed([at(AREA + "r")], 0)
    assert await at_once(session, at(AREA + "r")) == BODY[1:]
    session.suggester.changed([at(AREA + BODY)], len(BODY) - 1)
    assert await at_once(session, at(AREA + BODY), "  # area") == "  # area"


async def test_only_accepting_counts_as_accepting() -> None:
    session = Session(ahead=False, debounce_ms=2000)
    assert await at_once(session, at(AREA, manual=True), BODY) == BODY
    session.suggester.changed([at(AREA + "raise")], 5)  # a paste
    assert await at_once(session, at(AREA + "raise"), " x") is False


async def test_accepting_what_replaced_closers_counts() -> None:
    session = Session(ahead=False, debounce_ms=2000)
    assert await at_once(session, at("print(", ")\n", manual=True), "a)(b") == "a)(b"
    session.suggester.changed([at("print(a)(b", "\n")], 4)
    assert await at_once(session, at("print(a)(b", "\n"), "  # all") == "  # all"


async def at_once(session: Session, now: Situation, text: str = "") -> str | bool | None:
    """What is shown without any time going by; False where it is held back."""
    task, jobs = session.ask(now), len(session.engine.answers)
    await settle()
    if len(session.engine.answers) > jobs:
        session.engine.finish(jobs, text)
        await settle()
    if task.done():
        return text_of(await task)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return False


async def test_nothing_is_prepared_while_somebody_types(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "QUIET_S", 3600.0)
    await session.answer(at(AREA), BODY)
    await settle()
    assert session.engine.lanes == ["key"]
    assert session.suggester.follows(URI)


@pytest.mark.parametrize(("typed", "goes_on"), [("r", True), ("x", False)])
async def test_a_cancel_before_the_change_that_it_belongs_to(
    alone: Session, monkeypatch: pytest.MonkeyPatch, typed: str, goes_on: bool
) -> None:
    """Clients may cancel first and tell what was typed afterwards."""
    monkeypatch.setattr(suggester, "LINGER_S", 3600.0)
    task = alone.ask(at(AREA))
    await settle()
    alone.engine.say(0, "ret")
    await settle()
    task.cancel()
    await settle()
    alone.suggester.changed([at(AREA + typed)], 1)
    await settle()
    assert alone.engine.cancels == ([] if goes_on else [(0, False)])
    again = alone.ask(at(AREA + typed))
    await settle()
    assert alone.foreground == (1 if goes_on else 2)
    alone.engine.finish(alone.foreground - 1, BODY[3:] if goes_on else "y")
    assert text_of(await again) == (BODY[1:] if goes_on else "y")


async def test_a_known_place_ends_what_was_prepared_for_another(session: Session) -> None:
    assert await session.answer(at(AREA), BODY) == BODY
    await settle()
    assert session.engine.lanes == ["key", "background"]
    # Elsewhere, and back: the text after accepting is prepared again, once.
    assert await session.answer(at("x = "), "1") == "1"
    await settle()
    assert await session.known(at(AREA)) == BODY
    await settle()
    assert (3, False) in session.engine.cancels
    assert session.engine.requests[-1].prefix == AREA + BODY


async def test_what_was_prepared_and_has_text_is_not_held_back() -> None:
    session = Session(debounce_ms=200)
    try:
        await session.answer(at("x = "), "1")
        await settle()
        session.engine.say(1, " + 2")
        await settle()
        task = session.ask(at("x = 1"))
        await settle()
        assert session.engine.promoted == [1]
        assert [shown.text for shown in session.partials][-1] == " + 2"
        task.cancel()
    finally:
        session.suggester.end_all()


async def test_where_nothing_comes_after_accepting_the_next_line_is_prepared(
    session: Session,
) -> None:
    assert await session.answer(at(AREA), BODY) == BODY
    await settle()
    session.engine.finish(1, "\n")  # the line is complete
    await settle()
    assert session.engine.requests[-1].prefix == AREA + BODY + "\n"
    assert session.engine.lanes == ["key", "background", "background"]
    session.engine.say(2, "    print(")
    # It goes on while the user accepts and asks there, ...
    session.suggester.changed([at(AREA + BODY)], len(BODY))
    assert await session.known(at(AREA + BODY)) is None
    await settle()
    assert session.engine.cancels == []
    # ... and Enter, with the indentation, finds it.
    session.suggester.changed([at(AREA + BODY + "\n    ")], 5)
    task = session.ask(at(AREA + BODY + "\n    "))
    await settle()
    assert session.engine.promoted == [2]
    session.engine.finish(2, "area(1, 2))")
    assert text_of(await task) == "print(area(1, 2))"
    assert session.foreground == 1


async def test_the_line_below_one_that_was_typed_to_its_end_is_prepared(session: Session) -> None:
    assert await session.answer(at(AREA + BODY), "\n") is None
    await settle()
    assert session.engine.requests[-1].prefix == AREA + BODY + "\n"
    assert session.engine.lanes == ["key", "background"]
    # Something else is typed: it is given up.
    session.suggester.changed([at(AREA + BODY + ";")], 1)
    await settle()
    assert session.engine.cancels[-1] == (1, False)


# The first whole line


@pytest.fixture
def first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for more than the first whole line."""
    monkeypatch.setattr(suggester, "ENOUGH_S", 0.0)


async def begin(session: Session, now: Situation) -> asyncio.Task[Shown | None]:
    """Ask as a client does that cannot be given text while it grows."""
    task = asyncio.create_task(session.suggester.suggest(now))
    await settle()
    return task


@pytest.mark.usefixtures("first_line")
async def test_who_gets_no_parts_gets_the_first_line_and_then_the_rest(session: Session) -> None:
    task = await begin(session, at(AREA))
    session.engine.say(0, "size = width")
    await settle()
    assert not task.done()
    session.engine.say(0, " * height\n    ret")
    assert text_of(await task) == "size = width * height"
    await settle()
    assert session.engine.cancels == []  # it goes on, and nothing is prepared meanwhile
    assert len(session.engine.requests) == 1
    accepted = AREA + "size = width * height"
    session.suggester.changed([at(accepted)], 21)
    session.engine.finish(0, "urn size\n")
    await settle()
    assert await session.known(at(accepted)) == "\n    return size"
    assert await session.known(at(AREA)) == "size = width * height\n    return size"


@pytest.mark.usefixtures("first_line")
async def test_text_that_disagrees_with_the_first_line_ends_the_rest(alone: Session) -> None:
    task = await begin(alone, at(AREA))
    alone.engine.say(0, "size = 1\n")
    assert text_of(await task) == "size = 1"
    alone.suggester.changed([at(AREA + "x")], 1)
    await settle()
    assert alone.engine.cancels == [(0, False)]


@pytest.mark.usefixtures("first_line")
async def test_by_hand_and_with_parts_one_waits_for_the_whole(alone: Session) -> None:
    task = await begin(alone, at(AREA, manual=True))
    alone.engine.say(0, "size = 1\n    return size\n")
    await settle()
    assert not task.done()
    alone.engine.finish(0)
    assert text_of(await task) == "size = 1\n    return size"
    task = alone.ask(at(AREA + "b = "))
    await settle()
    alone.engine.say(1, "1")
    await settle()
    assert not task.done()


@pytest.mark.usefixtures("first_line")
async def test_a_line_that_replaces_text_right_of_the_cursor_waits(alone: Session) -> None:
    task = await begin(alone, at("area(", ")"))
    alone.engine.say(0, "\n    1,\n    2,\n")
    assert text_of(await task) == "\n    1,"
    alone.suggester.forget(URI)
    task = await begin(alone, at("f(area(", "))"))
    alone.engine.say(1, "1),\n  2")
    await settle()
    assert not task.done()


async def test_what_is_complete_waits_for_the_debounce_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suggester, "ENOUGH_S", 3600.0)
    session = Session(ahead=False, debounce_ms=50)
    task = await begin(session, at(AREA))
    session.engine.finish(0, "size = 1\n    return size\n")
    assert text_of(await asyncio.wait_for(task, 60)) == "size = 1\n    return size"
    session.suggester.end_all()


async def test_a_line_that_the_limit_cut_is_not_offered_behind_others(alone: Session) -> None:
    task = alone.ask(at(AREA))
    await settle()
    alone.engine.finish(0, "size = width\n    return si", why="length")
    assert text_of(await task) == "size = width"
    task = alone.ask(at("x = "))
    await settle()
    alone.engine.finish(1, "width_of(the_first_of_all_that_there_are, the_sec", why="length")
    assert text_of(await task) == "width_of(the_first_of_all_that_there_are,"


# How sure the model is


@pytest.fixture
async def strict() -> AsyncIterator[Session]:
    """Shows what is right with a probability of a half (the default model's table says which)."""
    session = Session(ahead=False, show_above=0.5)
    yield session
    session.suggester.end_all()


async def test_what_is_not_sure_is_shown_by_hand_only(strict: Session) -> None:
    task = strict.ask(at(AREA))
    await settle()
    strict.engine.say(0, "return", logprob=-3.0)
    assert await task is None  # at once: nobody waits for the rest
    assert strict.engine.cancels == [(0, True)]
    assert await strict.known(at(AREA)) is None
    # By hand all of it is wanted, and that needs a job.
    task = strict.ask(at(AREA, manual=True))
    await settle()
    strict.engine.finish(1, "return", BODY[6:], logprob=-3.0)
    assert text_of(await task) == BODY
    assert strict.foreground == 2
    assert await strict.known(at(AREA, manual=True)) == BODY
    # It stays while it is typed.
    strict.suggester.changed([at(AREA + "re")], 1)
    assert await strict.known(at(AREA + "re")) == BODY[2:]
    # Elsewhere and back it is there for who asks by hand.
    await strict.answer(at("x = "), "1")
    assert await strict.known(at(AREA)) is None
    assert await strict.known(at(AREA + "re", manual=True)) == BODY[2:]


async def test_a_suggestion_ends_where_it_is_no_longer_sure(strict: Session) -> None:
    task = strict.ask(at(AREA))
    await settle()
    strict.engine.say(0, "return", " width", logprob=-0.1)
    await settle()
    strict.engine.say(0, " *", logprob=-2.0)
    assert text_of(await task) == "return width"
    assert [shown.text for shown in strict.partials] == ["return width"]
    assert strict.engine.cancels == [(0, True)]
    for typed in ("return", "ret"):
        assert await strict.known(at(AREA + typed)) == "return width"[len(typed) :]
    # Behind it the model is asked anew: given what was typed it may be sure.
    assert await strict.answer(at(AREA + "return width"), " * height") == " * height"
    # By hand there is more to be had.
    task = strict.ask(at(AREA + "ret", manual=True))
    await settle()
    strict.engine.finish(2, "urn width * height", logprob=-2.0)
    assert text_of(await task) == "urn width * height"


async def test_who_asks_by_hand_takes_over_what_runs(strict: Session) -> None:
    task = strict.ask(at(AREA))
    await settle()
    strict.engine.say(0, "return", logprob=-0.1)
    await settle()
    again = strict.ask(at(AREA, manual=True))
    await settle()
    task.cancel()
    strict.engine.finish(0, " width", logprob=-5.0)
    assert text_of(await again) == "return width"
    assert strict.foreground == 1
    strict.suggester.forget(URI)
    assert await strict.known(at(AREA)) == "return"
    assert await strict.known(at(AREA, manual=True)) == "return width"


async def test_what_was_prepared_is_as_sure_as_what_is_asked_for() -> None:
    session = Session(show_above=0.5)
    try:
        await session.answer(at("x = "), "1")
        await settle()
        session.engine.say(1, " + 2", logprob=-0.1)
        session.engine.say(1, " + 3", logprob=-3.0)
        await settle()
        session.suggester.changed([at("x = 1")], 1)
        assert await session.known(at("x = 1")) == " + 2"
        task = session.ask(at("x = 1", manual=True))
        await settle()
        job = len(session.engine.answers) - 1
        session.engine.finish(job, " + 2", " + 3", logprob=-3.0)
        assert text_of(await task) == " + 2 + 3"
    finally:
        session.suggester.end_all()


async def test_a_threshold_of_nothing_shows_everything() -> None:
    session = Session(ahead=False, show_above=0.0)
    task = session.ask(at(AREA))
    await settle()
    session.engine.finish(0, "return", BODY[6:], logprob=-50.0)
    assert text_of(await task) == BODY
    session.suggester.end_all()
