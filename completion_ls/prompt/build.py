"""The prompt of one keystroke: what changes least stands first, what is typed stands last.

With FIM the prompt is anchored at the start of a line a little above the cursor:

    PRE prefix-up-to-the-anchor SUF suffix MID from-the-anchor-to-the-cursor

so that what is typed, Enter too, appends after MID and the KV of everything before it stays. A
model without FIM gets the same without PRE, SUF and MID: the text from below stands between blank
lines, in front of the last lines before the cursor. In front of everything it would make each move
of the cursor cost the whole prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tokenizers import Tokenizer

from completion_ls.decode.tokens import common_prefix
from completion_ls.engines.contract import Unfinished
from completion_ls.prompt.formats import FimFormat, find_format
from completion_ls.prompt.reading import Reader
from completion_ls.prompt.window import (
    anchor_before,
    context_after,
    window_after,
    window_before,
)

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
PLAIN_STOPS = ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<file_sep>", "</s>")


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and the word at their end when it may go on."""

    ids: tuple[int, ...]
    unfinished: Unfinished | None


class PromptBuilder:
    """Builds prompts for one model."""

    def __init__(self, tokenizer: Tokenizer, format_name: str, end_of_text: frozenset[int]) -> None:
        self.fim: FimFormat | None = find_format(format_name, tokenizer)
        self._tokenizer = tokenizer
        stops = self.fim.stops if self.fim else PLAIN_STOPS
        ids = (tokenizer.token_to_id(token) for token in stops)
        self.stop_token_ids = end_of_text | {id for id in ids if id is not None}
        control = (self.fim.prefix, self.fim.suffix, self.fim.middle) if self.fim else ()
        self._reader = Reader(tokenizer, control)
        self._cached_cost = lru_cache(maxsize=1 << 16)(self._reader.count)

    def build(
        self,
        prefix: str,
        suffix: str,
        *,
        context: str,
        budget: int,
        suffix_share: float,
    ) -> Prompt:
        """The prompt, at most `budget` tokens, never none.

        `prefix` ends at the cursor and `suffix` begins there, both with LF line ends; `context` is
        text that stands before the document.
        """
        room = int(budget * suffix_share)
        opening = self._reader.opening
        left = budget - len(opening) - 1  # one for a blank that the tokenizer puts in front
        # In steps, so that a word more or less below the cursor does not move the window's start.
        step = max(1, room // SUFFIX_STEPS)
        if self.fim is None:
            below = self._below(suffix, room // PLAIN_SHARE)
            left -= -(-len(below) // step) * step
            before = window_before(context + prefix, left, self._cost)
            if not below:
                return self._ending([*opening], self._reader.begun(before), budget)
            anchor = anchor_before(before, budget // MIDDLE_SHARE, self._cost, PLAIN_LINES)
            above = self.section(self._reader.begun(before[:anchor])) if anchor else []
            return self._ending([*opening, *above, *below], before[anchor:], budget)
        after = window_after(_without_closers(suffix), room, self._cost)
        taken = len(self.section(after))
        left -= 3 + -(-taken // step) * step
        before = window_before(context + prefix, left, self._cost)
        anchor = anchor_before(before, budget // MIDDLE_SHARE, self._cost, FIM_LINES)
        head = self.fim_prompt(before[:anchor], after)
        return self._ending(head, before[anchor:], budget)

    def fim_prompt(self, before: str, after: str) -> list[int]:
        """Two texts in the model's FIM format, which it must have: what follows stands between them."""
        assert self.fim is not None
        return [
            *self._reader.opening,
            self._special(self.fim.prefix),
            *self.section(self._reader.begun(before)),
            self._special(self.fim.suffix),
            *self.section(after),
            self._special(self.fim.middle),
        ]

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
    ) -> Prompt | None:
        """The prompt after Enter, to be computed ahead; None where it is almost that of now."""
        now, then = (
            self.build(text, suffix, context=context, budget=budget, suffix_share=suffix_share)
            for text in (prefix, prefix + "\n")
        )
        common = common_prefix(now.ids, then.ids)
        return then if len(then.ids) - common > ALMOST else None

    def _ending(self, head: list[int], text: str, budget: int) -> Prompt:
        """The prompt of `head` and `text`, which ends at the cursor, perhaps inside a word."""
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
        first = len(self._reader.opening) + (self.fim is not None)
        del ids[first : first + max(0, len(ids) - budget)]
        return Prompt(tuple(ids), Unfinished(word, len(trunk)) if open else None)

    def _below(self, suffix: str, room: int) -> list[int]:
        below = context_after(suffix, room, self._cost).strip("\n")
        return [*self._set_apart(below)] if below else []

    def _set_apart(self, text: str) -> tuple[int, ...]:
        return self.section("\n\n\n" + text + "\n\n\n")

    def _special(self, token: str) -> int:
        id = self._tokenizer.token_to_id(token)
        assert id is not None
        return int(id)

    def _cost(self, line: str) -> int:
        return self._cached_cost(line) if len(line) <= CACHED_LINE else self._reader.count(line)


def _without_closers(suffix: str) -> str:
    """The suffix without the closers that the editor put right of the cursor.

    The model writes its own, and the rules of text see to it that each stands once. Kept out, they
    change no prompt.
    """
    rest, newline, below = suffix.partition("\n")
    return newline + below if CLOSERS.issuperset(rest) else suffix
