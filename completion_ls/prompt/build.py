"""The prompt of one keystroke: what changes least stands first, what is typed stands last.

With FIM the prompt is anchored at the start of a line a little above the cursor:

    PRE prefix-up-to-the-anchor SUF suffix MID from-the-anchor-to-the-cursor

so that what is typed, Enter too, appends after MID and the KV of everything before it stays. Some
formats have the suffix first; one of them has no MID, and needs no anchor: all that stands before
the cursor stands last. In a chat, PRE and SUF are in the user's message, and MID begins the reply. A
model without FIM gets the same without PRE, SUF and MID: the text from below stands between blank
lines, in front of the last lines before the cursor. In front of everything it would make each move
of the cursor cost the whole prompt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from tokenizers import Tokenizer

from completion_ls.decode.tokens import common_prefix
from completion_ls.engines.contract import Unfinished
from completion_ls.prompt.formats import FimFormat, Repository, find_format
from completion_ls.prompt.reading import Reader
from completion_ls.prompt.window import anchor_before, window_after, window_before

CLOSERS = frozenset(")]}>\"'`;,: \t")
CACHED_LINE = 1000
LONGEST_WORD = 64
"""In bytes."""
MOST_WORD_TOKENS = 8
MOST_LOST = 3
"""Most tokens of the last word that one more character may make useless."""
MIDDLE_SHARE = 4
"""The lines between anchor and cursor have at most one token in so many of the budget."""
SUFFIX_STEPS = 8
PLAIN_SHARE = 2
"""A model without FIM has less use for the text below: it gets one part in so many of the room."""
FIM_LINES = range(2, 13)
"""So many lines above the cursor's the anchor may be."""
PLAIN_LINES = range(4, 25)
"""The same for models without FIM, which should see more of the text before the cursor in one piece."""
ALMOST = 64
"""A prompt with at most so many tokens to compute need not be computed ahead."""
FILES_SHARE = 4
"""Other files have at most one token in so many of the budget."""
PLAIN_STOPS = ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<file_sep>", "</s>")
PLAIN = FimFormat("plain", "", "", "", stops=PLAIN_STOPS)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and the word at their end when it may go on."""

    ids: tuple[int, ...]
    unfinished: Unfinished | None

    @property
    def before(self) -> tuple[int, ...]:
        """What the output is put behind: all but the unfinished word."""
        return self.ids[: len(self.ids) - (self.unfinished.tokens if self.unfinished else 0)]

    @property
    def typed(self) -> str:
        """The unfinished word, with which the output begins; empty where there is none."""
        return self.unfinished.text.decode() if self.unfinished else ""


class PromptBuilder:
    """Builds prompts for one model."""

    def __init__(self, tokenizer: Tokenizer, format_name: str, end_of_text: frozenset[int]) -> None:
        self.fim: FimFormat | None = find_format(format_name, tokenizer)
        fim = self.fim or PLAIN
        ids = {token: tokenizer.token_to_id(token) for token in fim.control}
        self._control = {token: id for token, id in ids.items() if id is not None}
        self.stop_token_ids = end_of_text | frozenset(self._control.values())
        self._reader = Reader(tokenizer, self._control)
        self._pieces = re.compile(f"({'|'.join(map(re.escape, self._control)) or '(?!)'})")
        marks = (fim.suffix, fim.prefix) if fim.suffix_first else (fim.prefix, fim.suffix)
        self._first, self._second = (self._marked(mark) for mark in marks)
        self._middle = self._marked(fim.middle)
        in_files = [
            token for token in fim.control if token in fim.repository + fim.file + fim.named
        ]
        self._files = fim if self._control.keys() >= set(in_files) else PLAIN
        self._start = lru_cache(maxsize=4)(self._starting)
        self._cached_cost = lru_cache(maxsize=1 << 16)(self._reader.count)

    @property
    def format_name(self) -> str:
        """The name of its row in `formats`; "plain" without FIM."""
        return (self.fim or PLAIN).name

    def build(
        self,
        prefix: str,
        suffix: str,
        *,
        context: str,
        budget: int,
        suffix_share: float,
        repository: Repository | None = None,
    ) -> Prompt:
        """The prompt, at most `budget` tokens, never none.

        `prefix` ends at the cursor and `suffix` begins there, both with LF line ends; `context` is
        text that stands before the document.
        """
        room = int(budget * suffix_share)
        start, inside = self._start(repository, budget // FILES_SHARE)
        # One for a blank that the tokenizer puts in front.
        left = budget - len(start) - len(inside) - 1
        # In steps, so that a word more or less below the cursor does not move the window's start.
        step = max(1, room // SUFFIX_STEPS)
        if self.fim is None:
            below = self._below(suffix, room // PLAIN_SHARE)
            left -= -(-len(below) // step) * step
            before = window_before(context + prefix, left, self._cost)
            if not below:
                return self._ending(
                    [*start, *inside], self._reader.begun(before), budget, len(start)
                )
            anchor = anchor_before(before, budget // MIDDLE_SHARE, self._cost, PLAIN_LINES)
            above = self.section(self._reader.begun(before[:anchor])) if anchor else ()
            head = [*start, *inside, *above, *below]
            return self._ending(head, before[anchor:], budget, len(start))
        after = self.section(window_after(_without_closers(suffix), room, self._cost))
        left -= len(self._second) + len(self._middle) + -(-len(after) // step) * step
        before = window_before(context + prefix, left, self._cost)
        if not self.fim.middle:
            head = self._head(start, inside, after)
            return self._ending(head, self._reader.begun(before), budget, len(start))
        anchor = anchor_before(before, budget // MIDDLE_SHARE, self._cost, FIM_LINES)
        above = (*inside, *self.section(self._reader.begun(before[:anchor])))
        return self._ending(self._head(start, above, after), before[anchor:], budget, len(start))

    def fim_prompt(self, before: str, after: str) -> list[int]:
        """Two texts in the model's FIM format, which it must have: what follows stands between them."""
        start, _ = self._start(None, 0)
        above = self.section(self._reader.begun(before))
        return self._head(start, above, self.section(after))

    def plain_prompt(self, before: str, after: str) -> list[int]:
        """The same for a model without FIM: the text from below comes first."""
        below = self._set_apart(after) if after else ()
        return [*self._reader.opening, *below, *self.section(self._reader.begun(before))]

    def section(self, text: str) -> tuple[int, ...]:
        """The tokens of a text that is complete."""
        return self._reader.section(text)

    def ahead(
        self,
        prefix: str,
        suffix: str,
        *,
        context: str,
        budget: int,
        suffix_share: float,
        repository: Repository | None = None,
    ) -> Prompt | None:
        """The prompt after Enter, to be computed ahead; None where it is almost that of now."""
        now, then = (
            self.build(
                text,
                suffix,
                context=context,
                budget=budget,
                suffix_share=suffix_share,
                repository=repository,
            )
            for text in (prefix, prefix + "\n")
        )
        common = common_prefix(now.ids, then.ids)
        return then if len(then.ids) - common > ALMOST else None

    def _starting(
        self, repository: Repository | None, room: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What stands before all else, and what at the beginning of the prefix; with the files of
        `repository` that fit into `room` tokens, each as a whole."""
        opening, files = self._reader.opening, self._files
        others: list[int] = []
        for path, text in repository.files if repository else ():
            ended = text.rstrip("\n") + "\n"
            ids = (*self._marked(files.file, path), *self.section(ended))
            if len(others) + len(ids) <= room:
                others += ids
        if repository is None or not others:
            return (*opening, *self._first), ()
        others = [*self._marked(files.repository, repository.name), *others]
        if files.named:
            return (*opening, *others, *self._marked(files.named, repository.path)), ()
        return (*opening, *self._first), (*others, *self._marked(files.file, repository.path))

    def _head(
        self, start: tuple[int, ...], above: tuple[int, ...], after: tuple[int, ...]
    ) -> list[int]:
        assert self.fim is not None
        one, other = (after, above) if self.fim.suffix_first else (above, after)
        return [*start, *one, *self._second, *other, *self._middle]

    def _marked(self, mark: str, name: str = "") -> tuple[int, ...]:
        """The tokens of a format's mark, in which `name`, which is the user's, is always text."""
        ids: list[int] = []
        for piece in self._pieces.split(mark):
            if piece in self._control:
                ids.append(self._control[piece])
            elif piece:
                ids += self.section(piece.replace("{}", name))
        return tuple(ids)

    def _ending(self, head: list[int], text: str, budget: int, fixed: int) -> Prompt:
        """The prompt of `head` and `text`, which ends at the cursor, perhaps inside a word. What
        exceeds the budget is cut out behind the `fixed` first tokens."""
        reading = self._reader.open(text)
        before = head + reading.before
        word, trunk = reading.spelled, reading.word
        if word[-1:].isspace():
            # Blanks are mostly followed by a word that takes the last of them along (" return" is a
            # token), so for them it is the tokens as they are before a letter.
            trunk = self._reader.within(word.decode())
        # A word of more tokens is a sentence without blanks: the logits would fill memory.
        open = before and word and len(word) <= LONGEST_WORD and len(trunk) <= MOST_WORD_TOKENS
        if open:
            trunk = self._reader.steady(word.decode(), trunk, MOST_LOST)
        ids = before + (trunk if open else reading.word) or [*self.section("\n")]
        # The whole may, seldom, have more tokens than its lines have one by one.
        first = min(fixed, budget // 2)
        del ids[first : first + max(0, len(ids) - budget)]
        return Prompt(tuple(ids), Unfinished(word, len(trunk)) if open else None)

    def _below(self, suffix: str, room: int) -> list[int]:
        # Without the rest of the cursor's line, in which closers come and go.
        below = window_after(suffix.partition("\n")[2], room, self._cost).strip("\n")
        return [*self._set_apart(below)] if below else []

    def _set_apart(self, text: str) -> tuple[int, ...]:
        return self.section("\n\n\n" + text + "\n\n\n")

    def _cost(self, line: str) -> int:
        return self._cached_cost(line) if len(line) <= CACHED_LINE else self._reader.count(line)


def _without_closers(suffix: str) -> str:
    """The suffix without the closers that the editor put right of the cursor.

    The model writes its own, and the rules of text see to it that each stands once. Kept out, they
    change no prompt.
    """
    rest, newline, below = suffix.partition("\n")
    return newline + below if CLOSERS.issuperset(rest) else suffix
