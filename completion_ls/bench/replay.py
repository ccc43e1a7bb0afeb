"""Type a recorded session through the whole product: editor, server, daemon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from completion_ls.bench.editor import Editor
from completion_ls.bench.future import came_next
from completion_ls.bench.session import Session
from completion_ls.bench.shown import Key, Worth, worth
from completion_ls.bench.trace import Stretch


async def replay(
    stretch: Stretch,
    *,
    uri: str,
    language: str,
    progress: Callable[[int], None] = lambda done: None,
) -> Session:
    """Type a stretch; returns the session with its records. Raises EditorError and EngineFailed.

    Before the count begins, the session asks once where the typing begins. A key is typed when its
    gap after the one before is over, but not before that one has its first text (or the answer that
    there is none), so that every key has a time to it; then the older request is cancelled.
    """
    session = Session(Editor(uri, language, stretch.text))
    try:
        await session.start()
        await session.warm_up(stretch.cursor)
        steps = zip(stretch.transactions, stretch.gaps_s, strict=True)
        for done, (transaction, gap_s) in enumerate(steps, start=1):
            sent = time.perf_counter()
            await session.type(*transaction)
            session.check()
            progress(done)
            await pause(sent, gap_s)
        await session.finish()
    finally:
        await session.stop()
    return session


def worth_of(session: Session, stretch: Stretch) -> Worth:
    """What the ghost text of a typed stretch was worth."""
    transactions = [*stretch.transactions, *stretch.later]
    keys = []
    for number, screen in enumerate(session.screens, start=1):
        came = came_next(screen.text[screen.cursor :], screen.cursor, transactions[number:])
        keys.append(Key(screen.text, screen.cursor, screen.ghost, came))
    return worth(keys)


async def pause(sent: float, gap_s: float) -> None:
    """Wait until `gap_s` after `sent` (a time of perf_counter)."""
    left = sent + gap_s - time.perf_counter()
    if left > 0:
        await asyncio.sleep(left)
