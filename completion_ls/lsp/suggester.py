"""The suggestion session: ask the engine for a place once, and answer from it while one types along.

A request is answered from, in this order: the live suggestion of its document, while what is typed
agrees with it (finished or still running: then the generation goes on); a finished one that is
known; one that is being prepared for this place; a new one. So the text on the screen stays what it
is while one types it, and nothing is computed twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from completion_ls.config.settings import Settings
from completion_ls.context.surroundings import NOTHING, Surroundings
from completion_ls.lsp.ahead import Ahead
from completion_ls.lsp.alternatives import Alternatives
from completion_ls.lsp.generator import Generator
from completion_ls.lsp.situation import Shown, Situation
from completion_ls.lsp.suggestion import Suggestion
from completion_ls.wire.client import EngineClient

LINGER_S = 0.03
"""A generation goes on for so long after the last request for it was cancelled."""
ENOUGH_S = 0.15
"""Who cannot be given text while it grows waits no longer than this for lines after the first."""


class Suggester:
    """The suggestions of one editor window."""

    def __init__(
        self,
        engine: EngineClient,
        settings: Settings,
        others: Callable[[str], Surroundings] = lambda uri: NOTHING,
    ) -> None:
        """`others` gives what a document has of other files."""
        self._generator = Generator(engine, settings, others)
        self._known = self._generator.known
        self._ahead = Ahead(self._generator)
        self._alternatives = Alternatives(self._generator)
        self._live: dict[str, Suggestion] = {}
        self._newest: dict[str, object] = {}
        self._accepted: set[str] = set()

    @property
    def engine(self) -> EngineClient:
        """The connection that requests go to."""
        return self._generator.engine

    def change(self, *, engine: EngineClient | None = None, settings: Settings) -> None:
        """Go on with other settings, and another engine where one is given: what there was is
        forgotten, and requests that wait begin again."""
        self._generator.change(engine or self.engine, settings)
        self._alternatives.clear()
        self.end_all()

    async def suggest(
        self, now: Situation, partial: Callable[[Shown], None] | None = None
    ) -> Shown | None:
        """The text to show at `now`; `partial` is called with what is there meanwhile.

        Without `partial`, and where nobody asked by hand, that may be the first lines only: the rest
        is there when it is asked for again, here or behind what was accepted of it.

        Raises EngineFailed. Cancelling the caller stops the engine, unless somebody typed along.
        """
        request = self._newest[now.uri] = object()
        suggestion = self._at_hand(now)
        computes = suggestion is None
        if suggestion is None:
            suggestion = self._begin(now)
            is_there = bool(suggestion.raw)  # it was being prepared
        else:
            is_there = bool(suggestion.finished or suggestion.shown)
        began = asyncio.get_running_loop().time()
        not_before = began + self._patience_s(now, is_there)
        enough_at = None if partial or now.manual else max(not_before, began + ENOUGH_S)
        while True:
            followed = await self._follow(suggestion, now, partial, not_before, enough_at)
            # What was there, or on its way, may say nothing where who asks by hand gets something.
            in_vain = now.manual and not suggestion.start.manual and _says_nothing(suggestion, now)
            if followed and not in_vain:
                break
            # Only for the newest request: the place of an older one is no longer there.
            if self._newest.get(now.uri) is not request:
                return None
            computes = True
            suggestion = self._begin(now) if followed else self._at_hand(now) or self._begin(now)
        if not computes:
            self.engine.answered_without_pass()
        shown = suggestion.shown_at(now) if suggestion.finished else suggestion.whole_lines_at(now)
        if self._newest.get(now.uri) is request:
            if shown and not suggestion.finished:
                suggestion.shown = now, shown
            elif shown:
                suggestion.shown = now, shown
                self._ahead.prepare(now.accepting(shown))
            elif now.before_line.strip() and not now.after_line.strip() and not suggestion.stopped:
                self._ahead.prepare(now.after_enter())  # the line is complete
        return shown

    async def alternatives(self, now: Situation, shown: Shown) -> list[Shown]:
        """Other texts for a place where `shown` is shown, perhaps none."""
        return await self._alternatives.find(now, shown)

    def live(self, uri: str) -> Suggestion | None:
        """The suggestion that answers in a document now."""
        return self._live.get(uri)

    def is_on_screen(self, now: Situation) -> bool:
        """Whether the editor was given what the live suggestion has for a place, here or before it was
        typed up to here."""
        live = self._live.get(now.uri)
        return bool(live and live.usable and live.shown and live.goes_on(now))

    @property
    def model(self) -> str:
        """The name of the model that answers."""
        ready = self.engine.ready
        return ready.model if ready else self.engine.config.model.name

    def warm_up(self, now: Situation) -> None:
        """A document has come into view, and the next key probably comes at this place."""
        live = self._live.get(now.uri)
        if not live or live.finished or not live.usable:
            self._ahead.warm_up(now)

    def warm_up_with(self, now: Situation, others: Surroundings, done: Callable[[], None]) -> bool:
        """Have the prompt at a place computed with these other files; `done` is called when it is,
        and not when a key came before. False where no work is done ahead of the user."""
        return self._ahead.warm_up_with(now, others, done)

    def follows(self, uri: str) -> bool:
        """Whether a document has anything that a change could end."""
        return uri in self._live or self._ahead.is_preparing(uri)

    def changed(self, cursors: Sequence[Situation], inserted: int) -> None:
        """The document changed by an insertion of so many characters, and the cursor is probably at
        one of these places: end what agrees with none of them."""
        uri = cursors[0].uri
        live = self._live.get(uri)
        # A pair of characters may be one that the editor closes; to take that for an acceptance
        # shows text early that agrees with what is typed.
        if inserted > 1 and live and any(live.is_taken_over(cursor) for cursor in cursors):
            self._accepted.add(uri)
        else:
            self._accepted.discard(uri)
        self._newest.pop(uri, None)  # older requests are about another text
        if live and live.start.head:
            return  # with an item selected, only the next request knows what was typed
        if live:
            live.cursor = next((cursor for cursor in cursors if live.goes_on(cursor)), None)
        if live is None or live.cursor is None:
            self._end_live(uri)
            self._ahead.follow(cursors)

    def forget(self, uri: str) -> None:
        """The document is no longer what was asked about: end its suggestions for good."""
        self._newest.pop(uri, None)
        self._accepted.discard(uri)
        self._end_live(uri)
        self._ahead.end(uri)

    def close(self, uri: str) -> None:
        """The document is gone."""
        self.forget(uri)
        self._ahead.end_warm_up(uri)
        self._alternatives.drop(uri)
        self._known.drop(uri)

    def end_all(self) -> None:
        """Stop everything; requests that wait begin again."""
        self._ahead.end_all()
        for uri in list(self._live):
            self._end_live(uri)

    def _at_hand(self, now: Situation) -> Suggestion | None:
        """A suggestion that answers at a place: the live one, or one that is known and live again."""
        live = self._live.get(now.uri)
        if live and live.usable and live.goes_on(now) and not (live.stopped and now.manual):
            if now.manual:
                live.offer_all()
            if not (now.manual and _says_nothing(live, now)):
                return live
        # The suggestion itself before its alternatives: what was typed may be the start of both.
        found = self._known.find(now) or self._alternatives.taken_up(now)
        if found and not (now.manual and _says_nothing(found, now)):
            self._ahead.follow([now])
            self._set_live(found)
            return found
        return None

    def _begin(self, now: Situation) -> Suggestion:
        """A generation for a place; that which is being prepared for it, if there is one."""
        self._ahead.end_warm_up(now.uri)
        suggestion = self._ahead.take(now)
        if suggestion and now.manual:
            suggestion.offer_all()
        if suggestion is None:
            self._ahead.end(now.uri)
            suggestion = self._generator.begin(now, "manual" if now.manual else "key")
        self._set_live(suggestion)
        return suggestion

    def _set_live(self, suggestion: Suggestion) -> None:
        self._end_live(suggestion.start.uri)
        self._live[suggestion.start.uri] = suggestion

    def _patience_s(self, now: Situation, is_there: bool) -> float:
        """How long new text is held back. What is there already, or was asked for, is not."""
        accepted = now.uri in self._accepted
        self._accepted.discard(now.uri)
        if now.manual or accepted or is_there:
            return 0.0
        return self._generator.settings.completion.debounce_ms / 1e3

    async def _follow(
        self,
        suggestion: Suggestion,
        now: Situation,
        partial: Callable[[Shown], None] | None,
        not_before: float,
        enough_at: float | None,
    ) -> bool:
        """Wait for a suggestion's end; from `enough_at` on, its first whole line will do, and the
        generation goes on. False when it was given up, or as soon as it turns out to disagree with
        what was typed."""
        typed = suggestion.typed_at(now)
        assert typed is not None
        suggestion.waiters += 1
        suggestion.cursor = None
        suggestion.typed_length = len(typed.text)
        clock = asyncio.get_running_loop().time
        last: Shown | None = None
        try:
            while True:
                if suggestion.failure:
                    raise suggestion.failure
                if suggestion.ended or not suggestion.agrees(now):
                    return False
                held_s = not_before - clock()
                if suggestion.finished and held_s <= 0:
                    return True
                shown = suggestion.shown_at(now)
                if partial and held_s <= 0 and shown and shown != last:
                    partial(shown)
                    suggestion.shown = now, shown
                    last = shown
                until = not_before if held_s > 0 else None
                is_enough = not suggestion.finished and suggestion.whole_lines_at(now)
                if enough_at is not None and is_enough:
                    if clock() >= enough_at:
                        suggestion.cursor = now  # nobody waits for the rest, but it is wanted
                        return True
                    until = enough_at
                await suggestion.progress(None if until is None else max(0.0, until - clock()))
        finally:
            self._leave(suggestion)

    def _leave(self, suggestion: Suggestion) -> None:
        suggestion.waiters -= 1
        if not self._is_wanted(suggestion):
            # Some clients cancel the older request before they tell what was typed, and that may
            # agree: then the generation is to go on.
            loop = asyncio.get_running_loop()
            loop.call_later(LINGER_S, self._end_unwanted, suggestion)

    def _end_unwanted(self, suggestion: Suggestion) -> None:
        uri = suggestion.start.uri
        if self._live.get(uri) is suggestion and not self._is_wanted(suggestion):
            self._end_live(uri)

    def _is_wanted(self, suggestion: Suggestion) -> bool:
        return bool(suggestion.waiters or suggestion.finished or suggestion.cursor)

    def _end_live(self, uri: str) -> None:
        suggestion = self._live.pop(uri, None)
        if suggestion:
            self._generator.end(suggestion)


def _says_nothing(suggestion: Suggestion, now: Situation) -> bool:
    """Whether a suggestion is complete and has nothing for a place."""
    return suggestion.finished and suggestion.shown_at(now) is None
