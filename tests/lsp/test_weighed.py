"""Asked by hand, with text below the cursor: lines that the engine has weighed by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from completion_ls.lsp import generator
from completion_ls.lsp.situation import Shown, Situation
from completion_ls.wire.client import EngineFailed
from support.session import URI, Session, at, settle, text_of

BEFORE = "def area(width, height):\n    result = "
BELOW = "\n    return result\n"
BEST, SECOND, THIRD = "width * height", "width + height", "max(width, height)"


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    found = Session(ahead=False, temperature=0.0, show_above=0.0)
    yield found
    found.suggester.end_all()


def by_hand(typed: str = "", before: str = BEFORE) -> Situation:
    return at(before + typed, BELOW, manual=True)


def weigh(session: Session, *lines: str) -> None:
    """The engine's answer to the last request."""
    job = len(session.engine.answers) - 1
    for line in lines:
        session.engine.say(job, line, logprob=-1.0)
    session.engine.finish(job)


async def test_the_best_line_is_the_suggestion_and_others_follow(session: Session) -> None:
    task = session.ask(by_hand())
    await settle()
    [request] = session.engine.requests
    assert (request.ways, request.lane, request.suffix) == (generator.WAYS, "manual", BELOW)
    weigh(session, BEST, SECOND, THIRD)
    assert text_of(await task) == BEST
    others = await session.suggester.alternatives(by_hand(), Shown(BEST, 0))
    assert [other.text for other in others] == [SECOND, THIRD]
    assert len(session.engine.requests) == 1  # in the middle of a line one line is all
    assert not session.engine._answers


async def test_lines_below_it_are_the_models(session: Session) -> None:
    before = "def area(width, height):\n"
    task = session.ask(by_hand("", before))
    await settle()
    weigh(session, "    result = " + BEST)
    await settle()
    _, request = session.engine.requests
    assert request.ways == 0
    assert request.prefix == before + "    result = " + BEST + "\n"
    assert request.suffix == BELOW[1:]
    session.engine.finish(1, "    print(result)\n    return result\n")
    assert text_of(await task) == f"    result = {BEST}\n    print(result)"


async def test_where_nothing_is_weighed_it_is_asked_as_always(session: Session) -> None:
    task = session.ask(by_hand())
    await settle()
    weigh(session)
    await settle()
    assert [request.ways for request in session.engine.requests] == [generator.WAYS, 0]
    session.engine.finish(1, SECOND)
    assert text_of(await task) == SECOND
    drawn = asyncio.create_task(session.suggester.alternatives(by_hand(), Shown(SECOND, 0)))
    await settle()
    assert [request.temperature > 0 for request in session.engine.requests[2:]] == [True] * 3
    for job in (2, 3, 4):
        session.engine.finish(job, THIRD)
    assert [other.text for other in await drawn] == [THIRD]


async def test_a_line_that_says_nothing_is_none(session: Session) -> None:
    task = session.ask(by_hand())
    await settle()
    weigh(session, "", BEST)
    assert text_of(await task) == BEST


async def test_only_who_asks_by_hand_and_has_text_below_waits_for_it(session: Session) -> None:
    tasks = [session.ask(at(BEFORE, BELOW)), session.ask(at(BEFORE, "  \n\n", "b.py", manual=True))]
    await settle()
    assert [request.ways for request in session.engine.requests] == [0, 0]
    for job in (0, 1):
        session.engine.finish(job, SECOND)
    assert [text_of(await task) for task in tasks] == [SECOND, SECOND]


async def test_what_is_on_the_screen_stays_the_first(session: Session) -> None:
    assert await session.answer(at(BEFORE, BELOW), SECOND) == SECOND
    assert await session.known(by_hand()) == SECOND
    others = asyncio.create_task(session.suggester.alternatives(by_hand(), Shown(SECOND, 0)))
    await settle()
    weigh(session, BEST, SECOND, THIRD)
    assert [other.text for other in await others] == [BEST, THIRD]


async def test_it_stays_while_it_is_typed_and_is_no_answer_elsewhere(session: Session) -> None:
    task = session.ask(by_hand())
    await settle()
    weigh(session, BEST)
    await task
    typed = at(BEFORE + "wid", BELOW)
    session.suggester.changed([typed], 3)
    assert await session.known(typed) == "th * height"
    session.suggester.forget(URI)
    task = session.ask(at(BEFORE, BELOW))
    await settle()
    session.engine.finish(1, SECOND)  # unasked it is the model's own
    assert text_of(await task) == SECOND


async def test_typing_meanwhile_goes_on_in_it_or_ends_it(session: Session) -> None:
    task = session.ask(by_hand())
    await settle()
    typed = at(BEFORE + "width", BELOW)
    session.suggester.changed([typed], 5)
    again = session.ask(typed)
    await settle()
    weigh(session, BEST)
    assert text_of(await again) == " * height"
    await task
    task = session.ask(by_hand("1"))
    await settle()
    typed = at(BEFORE + "12", BELOW)
    session.suggester.changed([typed], 1)
    again = session.ask(typed)
    await settle()
    weigh(session, ".5")
    await settle()
    assert session.engine.requests[-1].ways == 0
    assert session.engine.requests[-1].prefix == BEFORE + "12"
    again.cancel()


async def test_while_the_model_loads_nobody_waits_for_it(session: Session) -> None:
    session.engine.ready = None
    task = session.ask(by_hand())
    await settle()
    assert [request.ways for request in session.engine.requests] == [0]
    session.engine.finish(0, SECOND)
    assert text_of(await task) == SECOND


async def test_nobody_waits_for_ever(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "WEIGHING_S", 0.01)
    task = session.ask(by_hand())
    while len(session.engine.requests) < 2:
        await asyncio.sleep(0.01)
    assert (0, False) in session.engine.cancels
    session.engine.finish(1, SECOND)
    assert text_of(await task) == SECOND


async def test_with_other_settings_lines_are_weighed_anew(session: Session) -> None:
    task = session.ask(by_hand())
    await settle()
    weigh(session, BEST)
    assert text_of(await task) == BEST
    session.suggester.change(settings=session.suggester._generator.settings)
    task = session.ask(by_hand())
    await settle()
    weigh(session, SECOND)
    assert text_of(await task) == SECOND


async def test_who_gives_up_ends_it_and_a_failure_is_told(session: Session) -> None:
    task = session.ask(by_hand())
    await settle()
    task.cancel()
    session.suggester.forget(URI)
    await settle()
    assert (0, False) in session.engine.cancels
    task = session.ask(by_hand())
    await settle()
    session.engine.fail(1)
    with pytest.raises(EngineFailed):
        await task


async def test_that_nothing_was_there_is_no_answer_by_hand(session: Session) -> None:
    """Whether it is known, or on its way."""
    assert await session.answer(at(BEFORE, BELOW), "") is None
    task = session.ask(by_hand())
    await settle()
    weigh(session, BEST)
    assert text_of(await task) == BEST
    session.suggester.forget(URI)
    session.suggester._known.clear()
    tasks = [session.ask(at(BEFORE + "1", BELOW))]
    await settle()
    tasks.append(session.ask(by_hand("1")))
    await settle()
    session.engine.finish(len(session.engine.answers) - 1, "")
    await settle()
    weigh(session, "00 * width")
    assert text_of(await tasks[1]) == "00 * width"
    await tasks[0]
