"""The prompt of one keystroke: what changes least stands first, what is typed stands last.

With FIM the prompt is anchored at the start of the cursor's line:

    PRE prefix-up-to-the-anchor SUF suffix MID cursor's-line-up-to-the-cursor

so that typing appends after MID and the KV of everything before it stays. A model without FIM gets
text from below as context in front, then the prefix; there, too, typing only appends.
"""

from __future__ import annotations

from functools import lru_cache

from tokenizers import Tokenizer

from completion_ls.prompt.formats import FimFormat, find_format
from completion_ls.prompt.window import context_after, window_after, window_before

CLOSERS = frozenset(")]}>\"'`;,: \t")
CACHED_LINE = 1000
PLAIN_STOPS = ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<file_sep>", "</s>")


class PromptBuilder:
    """Builds prompts for one model."""

    def __init__(self, tokenizer: Tokenizer, format_name: str, end_of_text: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        # What looks like a special token in the user's text is text.
        tokenizer.encode_special_tokens = True
        self.fim: FimFormat | None = find_format(format_name, tokenizer)
        stops = self.fim.stops if self.fim else PLAIN_STOPS
        ids = (tokenizer.token_to_id(token) for token in stops)
        self.stop_token_ids = end_of_text | {id for id in ids if id is not None}
        self._cached_cost = lru_cache(maxsize=1 << 16)(self._count)

    def build(
        self,
        prefix: str,
        suffix: str,
        *,
        context: str,
        budget: int,
        suffix_share: float,
    ) -> tuple[int, ...]:
        """Token ids of the prompt, at most `budget` of them, never none.

        `prefix` ends at the cursor and `suffix` begins there, both with LF line ends; `context` is
        text that stands before the document.
        """
        room = int(budget * suffix_share)
        if self.fim is None:
            below = self._encode(context_after(suffix, room, self._cost).strip("\n"))
            if below:
                below += self._encode("\n\n\n")
            before = window_before(context + prefix, budget - len(below), self._cost)
            return (*below, *self._encode(before)) or tuple(self._encode("\n"))
        rest, newline, below_line = suffix.partition("\n")
        if CLOSERS.issuperset(rest):
            # Closers that the editor put right of the cursor: the model writes its own, and the
            # rules of text see to it that each stands once. Kept out, they change no prompt.
            suffix = newline + below_line
        after = self._encode(window_after(suffix, room, self._cost))
        before = window_before(context + prefix, budget - len(after) - 3, self._cost)
        anchor = before.rfind("\n") + 1
        return (
            self._special(self.fim.prefix),
            *self._encode(before[:anchor]),
            self._special(self.fim.suffix),
            *after,
            self._special(self.fim.middle),
            *self._encode(before[anchor:]),
        )

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _special(self, token: str) -> int:
        id = self._tokenizer.token_to_id(token)
        assert id is not None
        return int(id)

    def _count(self, line: str) -> int:
        return len(self._encode(line))

    def _cost(self, line: str) -> int:
        return self._cached_cost(line) if len(line) <= CACHED_LINE else self._count(line)
