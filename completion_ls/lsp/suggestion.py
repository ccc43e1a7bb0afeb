"""One suggestion: the text of one generation, seen from the place it was asked for and beyond."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from completion_ls.config.settings import CompletionSettings
from completion_ls.lsp import confidence, rules
from completion_ls.lsp.situation import Shown, Situation, Typed, typed_since
from completion_ls.wire.client import Answer, EngineFailed

Lane = Literal["key", "manual", "background"]

BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+")


@dataclass(frozen=True, slots=True)
class Line:
    """How the cursor's line may go on, up to its end, and the natural-log probability of that."""

    text: str
    logprob: float


@dataclass(slots=True, eq=False)
class Suggestion:
    """One generation and what it was asked for."""

    start: Situation
    mode: rules.Mode
    max_lines: int
    lane: Lane
    draw: int = 0
    """Not 0 for an alternative: the number with which it is drawn."""
    least: float = confidence.OFF
    """The log probability that a line has at least (lsp/confidence.py)."""
    weighed: bool = False
    """It begins with a line that the text below was in favour of: what only who asks by hand gets."""
    raw: str = ""
    tokens: list[tuple[str, float]] = field(default_factory=list)
    """What the model gave: texts, and the natural-log probability of each under the model itself."""
    line: float = 0.0
    """The log probability of the last line of `raw`."""
    finished: bool = False
    """It is complete: by the rules, because the model ended it, or because it was stopped."""
    stopped: bool = False
    """The model would have more to say, but with less than the least probability."""
    cut: bool = False
    """It is finished because it had as many tokens as it may have: its last line is not whole."""
    failure: EngineFailed | None = None
    ended: bool = False
    """It was given up: nobody is to begin with it again."""
    waiters: int = 0
    typed_length: int = 0
    cursor: Situation | None = None
    """Where a change that agreed has left the cursor: a request that is cancelled after it does not
    stop the generation, but text that comes to disagree with it does."""
    shown: tuple[Situation, Shown] | None = None
    """What the editor was given last, and for which place."""
    answer: Answer | None = None
    pump: asyncio.Task[None] | None = None
    _offer: tuple[int, bool, rules.Offer | None] | None = None
    _progress: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def at(
        cls,
        start: Situation,
        wanted: CompletionSettings,
        lane: Lane = "key",
        *,
        draw: int = 0,
        least: float = confidence.OFF,
    ) -> Suggestion:
        """One that begins at a place, without text yet; the settings say how far it is to go."""
        mode = rules.choose_mode(start.before_line, start.after_line, wanted.lines)
        return cls(start, mode, wanted.max_lines, lane, draw, least)

    @classmethod
    def recalled(
        cls, start: Situation, offer: rules.Offer | None, *, stopped: bool = False
    ) -> Suggestion:
        """One that was finished before."""
        found = cls(start, rules.Mode.LINE, 0, "key", finished=True, stopped=stopped)
        found._offer = (0, True, offer)
        return found

    @property
    def usable(self) -> bool:
        """Whether it has, or will have, an answer."""
        return not self.ended and not self.failure

    def add(self, text: str, logprobs: Sequence[float] = (), sizes: Sequence[int] = ()) -> None:
        """Take more of the model's text, up to where the suggestion is complete; token by token, so
        that it does not matter how many come at once."""
        for token in confidence.tokens(text, logprobs, sizes):
            if not self.finished:
                self._take(*token)
        self.notify()

    def _take(self, text: str, logprob: float) -> None:
        self.tokens.append((text, logprob))
        line, self.line = confidence.line_with(self.line, self.raw, text, logprob)
        if line < self.least:
            self.raw = confidence.whole_lines(self.raw)
            self.finished = self.stopped = True
            return
        self.raw += text
        if not self.start.before_line.strip():
            # On a blank line the model may leave that line as it is and go on below; the user
            # stands on it to write there.
            self.raw = BLANK_LINES.sub("", self.raw)
        cut = rules.stop(
            self.raw,
            before=self.start.before,
            after=self.start.after,
            language=self.start.language,
            mode=self.mode,
            max_lines=self.max_lines,
        )
        if cut is not None:
            self.raw = self.raw[:cut]
            self.finished = True

    def begin_with(self, line: Line) -> None:
        """Take a whole line that has been weighed."""
        self.weighed = True
        self.add(line.text, [line.logprob], [len(line.text)])
        self.add("\n")

    def offer_all(self) -> None:
        """Somebody asked for it by hand: from now on it is offered however sure the model is."""
        if not self.finished:
            self.least, self._offer = confidence.OFF, None

    def limited(self, least: float) -> Suggestion:
        """What has come of it, as it would be with another least probability."""
        found = Suggestion(self.start, self.mode, self.max_lines, self.lane, self.draw, least)
        for text, logprob in self.tokens:
            found.add(text, [logprob], [len(text)])
        found.finished |= self.finished
        found.cut = self.cut and not found.stopped
        return found

    def notify(self) -> None:
        """Wake who waits for progress."""
        self._progress.set()
        self._progress = asyncio.Event()

    async def progress(self, timeout_s: float | None = None) -> None:
        """Wait for more text, the end, or a failure; not longer than the time given."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._progress.wait()

    def offer(self) -> rules.Offer | None:
        """What the rules make of the text so far, seen from the start."""
        key = (len(self.raw), self.finished)
        if self._offer is None or self._offer[:2] != key:
            offer = rules.offer(
                self.raw,
                before=self.start.before,
                after=self.start.after,
                language=self.start.language,
                mode=self.mode,
                finished=self.finished,
                cut=self.cut,
            )
            self._offer = (*key, offer)
        return self._offer[2]

    def typed_at(self, now: Situation) -> Typed | None:
        """What was typed between the start and `now`, or None where anything else changed."""
        return typed_since(self.start, now)

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

    def strayed(self) -> bool:
        """Whether the text has come to disagree with what was typed meanwhile."""
        return self.cursor is not None and not self.agrees(self.cursor)

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

    def whole_lines_at(self, now: Situation) -> Shown | None:
        """The whole lines of that; None where none is sure yet. They replace nothing right of the
        cursor."""
        offer, shown = self.offer(), self.shown_at(now)
        if offer is None or shown is None or shown.replace_after:
            return None
        text = shown.text
        # Right of the cursor stands what the last line may still be fitted to.
        if self.start.after_line.strip() or self.raw.count("\n") <= offer.text.count("\n"):
            text = text.rpartition("\n")[0].rstrip()
        return Shown(text, 0) if text.strip() else None

    def is_taken_over(self, cursor: Situation) -> bool:
        """Whether a cursor stands inside of the text that was shown, or where all of it was
        accepted."""
        if self.shown is None:
            return False
        place, shown = self.shown
        typed = typed_since(place, cursor)
        if typed is not None and typed.text and shown.text.startswith(typed.text):
            return True
        return typed_since(place.accepting(shown), cursor) == Typed("", "")


def _contains_in_order(text: str, characters: str) -> bool:
    position = 0
    for character in characters:
        position = text.find(character, position) + 1
        if not position:
            return False
    return True
