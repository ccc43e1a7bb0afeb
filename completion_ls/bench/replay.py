"""Type a recorded session through the whole product: editor, server, daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from completion_ls.bench.editor import Editor
from completion_ls.bench.figures import Keystroke
from completion_ls.bench.session import Session
from completion_ls.bench.trace import Trace, apply


async def replay(
    trace: Trace,
    *,
    uri: str,
    language: str,
    start: int,
    keystrokes: int,
    gap_s: float,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Keystroke]:
    """The records of `keystrokes` transactions from number `start` on; what is before them (and the
    first, which inserts the text that the recording began with) is applied beforehand."""
    start = max(1, start)
    text = trace.start
    for transaction in trace.transactions[:start]:
        text = apply(text, transaction)
    session = Session(Editor(uri, language, text))
    await session.start()
    try:
        for done, transaction in enumerate(trace.transactions[start : start + keystrokes]):
            for patch in transaction:
                await session.type(patch.position, patch.deleted, patch.inserted)
            progress(done + 1)
            if gap_s:
                await asyncio.sleep(gap_s)
    finally:
        await session.stop()
    return session.keystrokes
