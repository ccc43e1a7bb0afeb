"""Alternatives to a suggestion, on an engine that says what a test tells it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from completion_ls.lsp import alternatives
from completion_ls.lsp.situation import Shown
from support.session import AREA, BODY, URI, Session, at, settle, text_of

OTHER = "area = width * height\n    return area"
THIRD = "return height * width"


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    found = Session(ahead=False, temperature=0.0, seed=8)
    yield found
    found.suggester.end_all()


async def ask(session: Session, *texts: str) -> list[str]:
    """What the user may choose from when the engine gives these texts, the suggestion's first."""
    now = at(AREA, manual=True)
    first = await session.answer(now, texts[0])
    assert first is not None
    begun = len(session.engine.answers)
    task = asyncio.create_task(session.suggester.alternatives(now, Shown(first, 0)))
    await settle()
    for job, text in enumerate(texts[1:], begun):
        session.engine.finish(job, text)
    return [first, *(shown.text for shown in await task)]


async def test_each_is_another_text(session: Session) -> None:
    assert await ask(session, BODY, OTHER, BODY, THIRD) == [BODY, OTHER, THIRD]
    assert session.engine.lanes == ["manual"] * 4
    first, *drawn = session.engine.requests
    assert (first.temperature, first.seed) == (0.0, 8)
    assert len({request.seed for request in (first, *drawn)}) == 4
    assert all(request.temperature > 0.5 and not request.ahead for request in drawn)


async def test_there_may_be_fewer_and_never_more_than_two(session: Session) -> None:
    assert await ask(session, BODY, BODY, OTHER, OTHER) == [BODY, OTHER]
    session.suggester.forget(URI)
    session.suggester._known.clear()
    assert await ask(session, BODY, OTHER, THIRD, "pass") == [BODY, OTHER, THIRD]


async def test_what_does_not_come_is_not_waited_for(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alternatives, "PATIENCE_S", 0.05)
    assert await ask(session, BODY, OTHER) == [BODY, OTHER]
    assert len(session.engine.cancels) >= 2


async def test_failures_cost_nothing_but_themselves(session: Session) -> None:
    now = at(AREA, manual=True)
    await session.answer(now, BODY)
    task = asyncio.create_task(session.suggester.alternatives(now, Shown(BODY, 0)))
    await settle()
    session.engine.fail(1)
    session.engine.finish(2, OTHER)
    session.engine.fail(3)
    assert [shown.text for shown in await task] == [OTHER]


async def test_a_user_who_takes_one_up_goes_on_in_it(session: Session) -> None:
    await ask(session, BODY, OTHER, THIRD, BODY)
    # The suggestion itself is what a new request at the place gets.
    assert await session.known(at(AREA)) == BODY
    for typed in ("a", "area", "area = "):
        session.suggester.changed([at(AREA + typed)], len(typed))
        assert await session.known(at(AREA + typed)) == OTHER[len(typed) :]
    session.suggester.changed([at(AREA + "return h")], 8)
    assert await session.known(at(AREA + "return h")) == THIRD[8:]
    session.suggester.changed([at(AREA + "return w")], 8)
    assert await session.known(at(AREA + "return w")) == BODY[8:]


async def test_who_does_not_wait_stops_the_engine(session: Session) -> None:
    now = at(AREA, manual=True)
    await session.answer(now, BODY)
    task = asyncio.create_task(session.suggester.alternatives(now, Shown(BODY, 0)))
    await settle()
    task.cancel()
    await settle()
    assert task.cancelled()
    assert {job for job, complete in session.engine.cancels if not complete} >= {1, 2, 3}


async def test_a_closed_document_has_none(session: Session) -> None:
    await ask(session, BODY, OTHER, THIRD, BODY)
    session.suggester.close(URI)
    task = session.ask(at(AREA + "area"))
    await settle()
    session.engine.finish(len(session.engine.answers) - 1, " = 1")
    assert text_of(await task) == " = 1"
