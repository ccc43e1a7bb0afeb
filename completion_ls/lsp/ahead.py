"""Work ahead of the user: what comes after accepting, and the document that has come into view.

All of it goes on the background lane, where it waits for every keystroke of every window, and only
to a daemon that has its model loaded. Its failures concern nobody.

What is prepared is the text after accepting all of a suggestion, and where there is none, the text
after Enter, which comes next then. After its first line or word the text is there already: it is the
rest of the same suggestion, and must be that (ghost text that changes while one accepts it would be
worse than none).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from completion_ls.context.surroundings import Surroundings
from completion_ls.lsp.generator import Generator
from completion_ls.lsp.occasion import allows
from completion_ls.lsp.situation import Situation, Typed, typed_since
from completion_ls.lsp.suggestion import Suggestion
from completion_ls.wire.client import Answer, EngineFailed
from completion_ls.wire.messages import Complete

log = logging.getLogger(__name__)

QUIET_S = 0.25
"""Nothing is prepared before the user has paused so long: a key would wait for a step of it."""


class Ahead:
    """What is under way in the background: one suggestion a document, and one warm-up a window,
    since the user looks at one document."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._prepared: dict[str, Suggestion] = {}
        self._waiting: dict[str, asyncio.TimerHandle] = {}
        self._warming: tuple[str, asyncio.Task[None]] | None = None

    def prepare(self, place: Situation) -> None:
        """Have the text for a place ready when the user comes there; what was prepared for another
        place of the document is given up."""
        running = self._running(place.uri)
        if running and typed_since(running.start, place) == Typed("", ""):
            return
        self.end(place.uri)
        if self._wanted(place):
            loop = asyncio.get_running_loop()
            self._waiting[place.uri] = loop.call_later(QUIET_S, self._begin, place)

    def is_preparing(self, uri: str) -> bool:
        """Whether a document has a preparation that a change could end."""
        return uri in self._waiting or self._running(uri) is not None

    def take(self, now: Situation) -> Suggestion | None:
        """What is being prepared for a place, which the user has reached: served as a keystroke."""
        suggestion = self._running(now.uri)
        if suggestion is None or not suggestion.goes_on(now):
            return None
        del self._prepared[now.uri]
        self._generator.promote(suggestion)
        return suggestion

    def follow(self, cursors: Sequence[Situation]) -> None:
        """The document changed, and the cursor is probably at one of these places: give up what is
        prepared for none of them."""
        uri = cursors[0].uri
        suggestion = self._running(uri)
        if suggestion is None:
            self.end(uri)
            return
        suggestion.cursor = next((place for place in cursors if suggestion.goes_on(place)), None)
        on_the_way = any(typed_since(place, suggestion.start) for place in cursors)
        if suggestion.cursor is None and not on_the_way:
            self.end(uri)

    def warm_up(self, now: Situation) -> None:
        """Have the prompt for a place computed before the first key; an older warm-up is given up."""
        self.end_warm_up()
        if self._wanted(now) and self._generator.known.find(now) is None:
            self._begin_warm_up(now)

    def warm_up_with(self, now: Situation, others: Surroundings, done: Callable[[], None]) -> bool:
        """The same with these other files; `done` is called at the end, unless it is given up. False
        where no work is wanted ahead."""
        self.end_warm_up()
        if not self._wanted(now):
            return False
        self._begin_warm_up(now, others, done)
        return True

    def end_warm_up(self, uri: str | None = None) -> None:
        """Stop the warm-up (that of a document, or any). What it computed stays in the daemon."""
        if self._warming and uri in (None, self._warming[0]):
            self._warming[1].cancel()
            self._warming = None

    def end(self, uri: str) -> None:
        """Stop preparing for a document."""
        if waiting := self._waiting.pop(uri, None):
            waiting.cancel()
        suggestion = self._prepared.pop(uri, None)
        if suggestion:
            self._generator.end(suggestion)

    def end_all(self) -> None:
        """Stop everything."""
        self.end_warm_up()
        for uri in [*self._waiting, *self._prepared]:
            self.end(uri)

    def _begin(self, place: Situation) -> None:
        del self._waiting[place.uri]
        if not self._wanted(place):
            return
        known = self._generator.known.find(place)
        if known is None:
            suggestion = self._prepared[place.uri] = self._generator.begin(place, "background")
            assert suggestion.pump
            suggestion.pump.add_done_callback(lambda _: self._after(place, suggestion))
        elif known.offer() is None:
            self._begin_line(place)

    def _after(self, place: Situation, suggestion: Suggestion) -> None:
        if self._prepared.get(place.uri) is suggestion and suggestion.finished:
            del self._prepared[place.uri]  # it is known
            if suggestion.offer() is None:
                self._begin_line(place)

    def _begin_line(self, place: Situation) -> None:
        """Without indentation: where the editor puts the same as the model, it is typed along."""
        below = place.after_enter()
        if self._generator.known.find(below) is None:
            self._prepared[place.uri] = self._generator.begin(below, "background")

    def _running(self, uri: str) -> Suggestion | None:
        suggestion = self._prepared.get(uri)
        if suggestion and (suggestion.finished or not suggestion.usable):
            del self._prepared[uri]  # what is finished is known
            return None
        return suggestion

    def _wanted(self, place: Situation) -> bool:
        settings = self._generator.settings
        return (
            settings.completion.ahead
            and self._generator.engine.ready is not None  # nothing is started for this
            and allows(settings, place)
        )

    def _begin_warm_up(
        self,
        now: Situation,
        others: Surroundings | None = None,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        ready = self._generator.engine.ready
        assert ready
        request = self._generator.warm_up_request(now, ready.max_context, others)
        self._warming = now.uri, asyncio.create_task(self._warm_up(request, done))

    async def _warm_up(self, request: Complete, done: Callable[[], None]) -> None:
        engine = self._generator.engine
        answer: Answer | None = None
        try:
            answer = await engine.complete(request)
            async for _ in answer:
                pass
        except EngineFailed as failure:
            log.debug("a document could not be warmed up: %s", failure)
        finally:
            if answer:
                engine.cancel(answer)
        done()
