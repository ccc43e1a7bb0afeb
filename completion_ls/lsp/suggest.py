"""The suggestion session: ask the engine for a place once, and answer from it while one types along.

A suggestion belongs to the place where it was asked for. While what is typed agrees with it, the
answer is the rest of it: no engine work, and a generation under way goes on. Typing something else,
backspace and edits elsewhere end it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from completion_ls.config.settings import Settings
from completion_ls.lsp import rules
from completion_ls.wire.client import Answer, EngineClient, EngineFailed
from completion_ls.wire.messages import Complete

log = logging.getLogger(__name__)

BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")
CLOSER_OF = {"(": ")", "[": "]", "{": "}", '"': '"', "'": "'", "`": "`", "<": ">"}


@dataclass(frozen=True, slots=True)
class Situation:
    """The text around a cursor, as the engine and the rules see it: LF line ends, code points.

    `before` and `after` are windows of at most `limit` characters each; `context` stands before
    the document (notebook cells above). `head` is the end of `before` that is not in the document:
    an item that is selected in the completion menu.
    """

    uri: str
    line: int
    column: int
    before: str
    after: str
    limit: int
    context: str = ""
    head: str = ""
    language: str = ""
    manual: bool = False

    @property
    def before_line(self) -> str:
        """The cursor's line left of the cursor."""
        return self.before[self.before.rfind("\n") + 1 :]

    @property
    def after_line(self) -> str:
        """The cursor's line right of the cursor."""
        return self.after.partition("\n")[0]


@dataclass(frozen=True, slots=True)
class Shown:
    """Text to show at a place; it takes the place of `replace_after` characters right of the cursor."""

    text: str
    replace_after: int


@dataclass(frozen=True, slots=True)
class Typed:
    """What was typed since a suggestion's start, and closers that the editor added right of it."""

    text: str
    closers: str


@dataclass(slots=True, eq=False)
class Suggestion:
    """One generation and what it was asked for."""

    start: Situation
    engine: EngineClient
    mode: rules.Mode
    max_lines: int
    raw: str = ""
    finished: bool = False
    failure: EngineFailed | None = None
    ended: bool = False
    """It was given up before it was complete."""
    waiters: int = 0
    typed_length: int = 0
    cursor: Situation | None = None
    """Where a change that agreed has left the cursor: a request that is cancelled after it does not
    stop the generation, but text that comes to disagree with it does."""
    pump: asyncio.Task[None] | None = None
    _offer: tuple[int, bool, rules.Offer | None] | None = None
    _progress: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, text: str) -> None:
        """Take more of the model's text, up to where the suggestion is complete."""
        self.raw += text
        if not self.start.before_line.strip():
            # On a blank line the model may leave that line as it is and go on below; the user
            # stands on it to write there.
            self.raw = BLANK_LINES.sub("", self.raw)
        cut = rules.stop(
            self.raw, before=self.start.before, mode=self.mode, max_lines=self.max_lines
        )
        if cut is not None:
            self.raw = self.raw[:cut]
            self.finished = True
        self.notify()

    def notify(self) -> None:
        """Wake who waits for progress."""
        self._progress.set()
        self._progress = asyncio.Event()

    async def progress(self) -> None:
        """Wait for more text, the end, or a failure."""
        await self._progress.wait()

    def offer(self) -> rules.Offer | None:
        """What the rules make of the text so far, seen from the start."""
        key = (len(self.raw), self.finished)
        if self._offer is None or self._offer[:2] != key:
            offer = rules.offer(
                self.raw,
                before=self.start.before,
                after=self.start.after,
                mode=self.mode,
                finished=self.finished,
            )
            self._offer = (*key, offer)
        return self._offer[2]

    def typed_at(self, now: Situation) -> Typed | None:
        """What was typed between the start and `now`, or None where anything else changed."""
        start = self.start
        if now.uri != start.uri or now.context != start.context:
            return None
        typed = _between(start, now)
        if typed is None:
            return None
        base = now.before[: len(now.before) - len(typed)]
        if base != start.before:
            # Windows of a long document: what fell out on the left does not matter.
            full = len(now.before) >= now.limit
            if not full or not start.before.endswith(base) or len(base) + len(typed) < now.limit:
                return None
        closers = _added_closers(start.after, now.after, now.limit, typed)
        return None if closers is None else Typed(typed, closers)

    def goes_on(self, now: Situation) -> bool:
        """Whether `now` is reached by typing along from where it was asked for last. (Backspace is
        not: it says that the suggestion is not wanted.)"""
        typed = self.typed_at(now)
        return typed is not None and len(typed.text) >= self.typed_length and self.agrees(now)

    def agrees(self, now: Situation) -> bool:
        """Whether what was typed up to `now` is a part of the suggestion, as far as it is there."""
        typed = self.typed_at(now)
        if typed is None:
            return False
        offer = self.offer()
        text = offer.text if offer else ""
        if text.startswith(typed.text):
            return len(typed.text) < len(text) or not self.finished or not typed.text
        return not self.finished and typed.text.startswith(text)

    def shown_at(self, now: Situation) -> Shown | None:
        """The rest of the suggestion at a place that agrees."""
        offer, typed = self.offer(), self.typed_at(now)
        if offer is None or typed is None:
            return None
        rest = rules.type_through(offer.text, typed.text)
        if not rest:
            return None
        covered = len(typed.closers) if _contains_in_order(rest, typed.closers) else 0
        return Shown(rest, offer.replace_after + covered if covered == len(typed.closers) else 0)


class Suggester:
    """The live suggestions of one editor window."""

    def __init__(self, engine: EngineClient, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings
        self._live: dict[str, Suggestion] = {}
        self._newest: dict[str, object] = {}

    async def suggest(
        self, now: Situation, partial: Callable[[Shown], None] | None = None
    ) -> Shown | None:
        """The text to show at `now`; `partial` is called with what is there meanwhile.

        Raises EngineFailed. Cancelling the caller stops the engine, unless somebody typed along.
        """
        request = self._newest[now.uri] = object()
        suggestion = self._live.get(now.uri)
        computes = suggestion is None or not suggestion.goes_on(now)
        if suggestion is None or computes:
            suggestion = self._begin(now)
        while not await self._follow(suggestion, now, partial):
            # Only for the newest request: the place of an older one is no longer there.
            if self._newest.get(now.uri) is not request:
                return None
            computes = True
            suggestion = self._begin(now)
        if not computes:
            suggestion.engine.answered_without_pass()
        return suggestion.shown_at(now)

    async def _follow(
        self, suggestion: Suggestion, now: Situation, partial: Callable[[Shown], None] | None
    ) -> bool:
        """Wait for a suggestion's end. False when it was given up, or as soon as it turns out to
        disagree with what was typed."""
        typed = suggestion.typed_at(now)
        assert typed is not None
        suggestion.waiters += 1
        suggestion.cursor = None
        suggestion.typed_length = len(typed.text)
        last: Shown | None = None
        try:
            while True:
                if suggestion.failure:
                    raise suggestion.failure
                if suggestion.ended or not suggestion.agrees(now):
                    return False
                if suggestion.finished:
                    return True
                shown = suggestion.shown_at(now)
                if partial and shown and shown != last:
                    partial(shown)
                    last = shown
                await suggestion.progress()
        finally:
            self._leave(suggestion)

    def has_live(self, uri: str) -> bool:
        """Whether a document has a suggestion that a change could end."""
        return uri in self._live

    def changed(self, cursors: Sequence[Situation]) -> None:
        """The document changed, and the cursor is probably at one of these places: end what agrees
        with none of them."""
        suggestion = self._live.get(cursors[0].uri)
        if suggestion is None or suggestion.start.head:
            return  # with an item selected, only the next request knows what was typed
        agreeing = (cursor for cursor in cursors if suggestion.goes_on(cursor))
        suggestion.cursor = next(agreeing, None)
        if suggestion.cursor is None:
            self.forget(suggestion.start.uri)

    def forget(self, uri: str) -> None:
        """The document is no longer what was asked about: end its suggestion for good."""
        self._newest.pop(uri, None)
        self.end(uri)

    def end(self, uri: str) -> None:
        """Stop a document's generation; a request that waits for it begins again."""
        suggestion = self._live.pop(uri, None)
        if suggestion and suggestion.pump and not suggestion.finished:
            suggestion.ended = True
            suggestion.pump.cancel()
            suggestion.notify()

    def end_all(self) -> None:
        """Stop everything."""
        for uri in list(self._live):
            self.end(uri)

    def _leave(self, suggestion: Suggestion) -> None:
        suggestion.waiters -= 1
        if suggestion.waiters or suggestion.finished or suggestion.cursor:
            return
        if self._live.get(suggestion.start.uri) is suggestion:
            self.end(suggestion.start.uri)

    def _begin(self, now: Situation) -> Suggestion:
        self.end(now.uri)
        wanted = self.settings.completion
        mode = rules.choose_mode(now.before_line, now.after_line, wanted.lines)
        suggestion = Suggestion(now, self.engine, mode, wanted.max_lines)
        self._live[now.uri] = suggestion
        suggestion.pump = asyncio.create_task(self._generate(suggestion))
        return suggestion

    async def _generate(self, suggestion: Suggestion) -> None:
        engine = suggestion.engine
        answer: Answer | None = None
        try:
            answer = await engine.complete(self._request(suggestion))
            async for chunk in answer:
                suggestion.add(chunk.text)
                if suggestion.finished:
                    break
                if suggestion.cursor and not suggestion.agrees(suggestion.cursor):
                    self.forget(suggestion.start.uri)
                    break
        except EngineFailed as failure:
            suggestion.failure = failure
        except Exception as error:  # whoever waits must hear of it
            log.exception("a completion failed")
            suggestion.failure = EngineFailed(f"The completion failed: {error}")
        finally:
            if answer:
                engine.cancel(answer)
            if suggestion.failure and self._live.get(suggestion.start.uri) is suggestion:
                del self._live[suggestion.start.uri]
            suggestion.finished = not suggestion.ended
            suggestion.notify()

    def _request(self, suggestion: Suggestion) -> Complete:
        start, wanted = suggestion.start, self.settings.completion
        return Complete(
            id=0,
            document=start.uri,
            prefix=start.before,
            suffix=start.after,
            context=start.context,
            lane="manual" if start.manual else "key",
            prompt_tokens=self.settings.prompt.max_tokens,
            suffix_share=self.settings.prompt.suffix_share,
            max_tokens=wanted.max_tokens,
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            seed=wanted.seed,
            stop_at_line=suggestion.mode is rules.Mode.LINE,
        )


def _between(start: Situation, now: Situation) -> str | None:
    """The text from the start's place to the place of `now`, read off `now`'s window."""
    if now.line == start.line:
        length = now.column - start.column
        return now.before[len(now.before) - length :] if 0 <= length <= len(now.before) else None
    if now.line < start.line:
        return None
    line_start = len(now.before)
    for _ in range(now.line - start.line + 1):
        line_start = now.before.rfind("\n", 0, line_start)
        if line_start < 0:
            break
    # Without a line end before it, the start's line is the window's first; that holds its column
    # only where the window is the whole text.
    if line_start < 0 and len(now.before) >= now.limit:
        return None
    begin = line_start + 1 + start.column
    return now.before[begin:] if begin <= len(now.before) else None


def _added_closers(before: str, now: str, limit: int, typed: str) -> str | None:
    """Closers that stand in `now` and not in `before` (texts right of the cursor); None if more changed."""
    added = len(now) - len(before) if len(now) < limit else 0
    for length in [added] if added else range(5):
        closers, rest = now[:length], now[length:]
        if rest == before or (len(now) >= limit and before.startswith(rest)):
            openers = [CLOSER_OF[character] for character in typed if character in CLOSER_OF]
            return closers if all(character in openers for character in closers) else None
    return None


def _contains_in_order(text: str, characters: str) -> bool:
    position = 0
    for character in characters:
        position = text.find(character, position) + 1
        if not position:
            return False
    return True
