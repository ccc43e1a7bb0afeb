"""Other suggestions for a place, where the user asks for them: those whose first lines the text below is
most in favour of, or, where the model reads that text itself, drawn at random, with fixed seeds.

The suggestion itself stays what it is. A user who takes up one of the others, by typing or by
accepting a part of it, goes on in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from completion_ls.lsp.generator import Generator
from completion_ls.lsp.situation import Shown, Situation
from completion_ls.lsp.suggestion import Suggestion
from completion_ls.wire.client import EngineFailed

MOST = 2
"""So many beside the suggestion itself."""
DRAWS = 3
"""So many are drawn for them: some turn out equal."""
PATIENCE_S = 5.0
"""What has not come by then is not waited for."""


class Alternatives:
    """The alternatives of one editor window, for the place of each document they were last asked for."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._found: dict[str, list[Suggestion]] = {}

    async def find(self, now: Situation, shown: Shown) -> list[Shown]:
        """What else may stand at a place where `shown` does, at most `MOST`, each another text. What is
        still being drawn when the caller is cancelled ends."""
        drawn = await self._begin(now, shown)
        try:
            await self._wait(drawn)
        finally:
            for one in drawn:
                self._generator.end(one)
        others: dict[str, tuple[Suggestion, Shown]] = {}
        for one in drawn:
            other = one.shown_at(now) if one.finished else None
            if other and other.text != shown.text:
                others.setdefault(other.text, (one, other))
        chosen = list(others.values())[:MOST]
        self._found[now.uri] = [one for one, _ in chosen]
        return [other for _, other in chosen]

    async def _begin(self, now: Situation, shown: Shown) -> list[Suggestion]:
        first = shown.text.partition("\n")[0]
        try:
            lines = await self._generator.ways(now)
        except EngineFailed:
            return []
        if not lines:
            return [self._generator.begin(now, "manual", draw) for draw in range(1, DRAWS + 1)]
        others = [line for line in lines if line.text.strip() and line.text != first]
        return [self._generator.begin(now, "manual", line=line) for line in others[:MOST]]

    def taken_up(self, now: Situation) -> Suggestion | None:
        """One that the user has begun to type or accept."""
        for one in self._found.get(now.uri, []):
            typed = one.typed_at(now)
            if typed and typed.text and one.agrees(now):
                return Suggestion.recalled(one.start, one.offer())
        return None

    def drop(self, uri: str) -> None:
        """Forget those of a document."""
        self._found.pop(uri, None)

    def clear(self) -> None:
        """Forget all."""
        self._found.clear()

    async def _wait(self, drawn: Sequence[Suggestion]) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        for one in drawn:
            while not one.finished and one.usable:
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    return
                await one.progress(left)
