"""The text around a cursor, and what was typed between two such places of one document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from completion_ls.lsp.documents import Place

CLOSER_OF = {"(": ")", "[": "]", "{": "}", '"': '"', "'": "'", "`": "`", "<": ">"}
MOST_CLOSERS = 4
"""An editor adds so many at once; a paste may end in thousands, each a place to compare."""
CHARACTERS_PER_TOKEN = 8
MAX_WINDOW = 400_000
"""Most characters of a window, so that every message fits a frame."""


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


@dataclass(frozen=True, slots=True)
class Situation:
    """The text around a cursor, as the engine and the rules see it: LF line ends, code points.

    `before` and `after` are windows of at most `limit` characters each; `context` stands before
    the document (notebook cells above). `head` is the end of `before` that is not in the document:
    an item that is selected in the completion menu. `short`: where the text goes on, `after` has so
    many characters fewer than `limit` (what was accepted took their place).
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
    short: int = 0

    @property
    def before_line(self) -> str:
        """The cursor's line left of the cursor."""
        return self.before[self.before.rfind("\n") + 1 :]

    @property
    def after_line(self) -> str:
        """The cursor's line right of the cursor."""
        return self.after.partition("\n")[0]

    @property
    def before_is_cut(self) -> bool:
        """Whether the document may have text in front of `before`."""
        return len(self.before) >= self.limit

    @property
    def after_is_cut(self) -> bool:
        """Whether the document may have text behind `after`."""
        return len(self.after) + self.short >= self.limit

    def accepting(self, shown: Shown) -> Situation:
        """The situation once all that is shown here has been accepted."""
        place = Place(self.line, self.column).behind(shown.text)
        return replace(
            self,
            line=place.line,
            column=place.column,
            before=(self.before + shown.text)[-self.limit :],
            after=self.after[shown.replace_after :],
            short=self.short + shown.replace_after,
            head="",
            manual=False,
        )

    def after_enter(self) -> Situation:
        """The situation after Enter, at the start of the next line."""
        return self.accepting(Shown("\n", 0))


def window(prompt_tokens: int) -> int:
    """Most characters of the text on each side of a cursor, for a prompt of so many tokens."""
    return min(MAX_WINDOW, CHARACTERS_PER_TOKEN * prompt_tokens)


def typed_since(start: Situation, now: Situation) -> Typed | None:
    """What was typed between `start` and `now`, or None where anything else is different.

    The windows of a long document are cut: what stands in both must be equal.
    """
    if (now.uri, now.context, now.language) != (start.uri, start.context, start.language):
        return None
    typed = _between(start, now)
    if typed is None:
        return None
    base = now.before[: len(now.before) - len(typed)]
    if base != start.before and not (now.before_is_cut and start.before.endswith(base)):
        return None
    closers = _added_closers(start, now, typed)
    return None if closers is None else Typed(typed, closers)


def possible_closers(start_length: int, start_is_cut: bool, now: Situation) -> Sequence[int]:
    """How many closers may have been added right of the cursor since the text there had
    `start_length` characters."""
    if start_is_cut and now.after_is_cut:
        return range(MOST_CLOSERS + 1)
    added = len(now.after) - start_length
    return (added,) if added >= 0 else ()


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
    if line_start < 0 and now.before_is_cut:
        return None
    begin = line_start + 1 + start.column
    return now.before[begin:] if begin <= len(now.before) else None


def _added_closers(start: Situation, now: Situation, typed: str) -> str | None:
    """Closers that were added right of the cursor; None if more changed there."""
    both_cut = start.after_is_cut and now.after_is_cut
    for length in possible_closers(len(start.after), start.after_is_cut, now):
        closers, rest = now.after[:length], now.after[length:]
        if rest == start.after or (both_cut and _one_begins_the_other(rest, start.after)):
            openers = [CLOSER_OF[character] for character in typed if character in CLOSER_OF]
            return closers if all(character in openers for character in closers) else None
    return None


def _one_begins_the_other(a: str, b: str) -> bool:
    return a.startswith(b) or b.startswith(a)
