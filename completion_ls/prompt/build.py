"""The prompt of one keystroke: what changes least stands first, what is typed stands last.

With FIM the prompt is anchored at the start of the cursor's line:

    PRE prefix-up-to-the-anchor SUF suffix MID cursor's-line-up-to-the-cursor

so that typing appends after MID and the KV of everything before it stays. A model without FIM gets
the suffix as context in front, then the prefix; there, too, typing only appends.
"""

from __future__ import annotations

from functools import lru_cache

from tokenizers import Tokenizer

from completion_ls.prompt.formats import FimFormat, find_format
from completion_ls.prompt.window import window_after, window_before

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
        filename: str,
        context: str,
        budget: int,
        suffix_share: float,
    ) -> tuple[int, ...]:
        """Token ids of the prompt, at most `budget` of them, never none.

        `prefix` ends at the cursor and `suffix` begins there, both with LF line ends; `context` is
        text that stands before the document.
        """
        rest, newline, below = suffix.partition("\n")
        if CLOSERS.issuperset(rest):
            # Closers that the editor put right of the cursor: the model writes its own, and the
            # rules of text see to it that each stands once. Kept out, they change no prompt.
            suffix = newline + below
        head = self._head(filename)
        budget -= len(head) + 8
        after = window_after(suffix, int(budget * suffix_share), self._cost)
        after_ids = self._encode(after)
        before = window_before(context + prefix, budget - len(after_ids), self._cost)
        if self.fim is None:
            ids = self._plain(head, before, after)
        else:
            anchor = before.rfind("\n") + 1
            ids = [
                self._special(self.fim.prefix),
                *head,
                *self._encode(before[:anchor]),
                self._special(self.fim.suffix),
                *after_ids,
                self._special(self.fim.middle),
                *self._encode(before[anchor:]),
            ]
        return tuple(ids)

    def _plain(self, head: list[int], before: str, after: str) -> list[int]:
        context = after.strip("\n")
        return [*head, *self._encode(context + "\n\n\n" + before if context else before)]

    def _head(self, filename: str) -> list[int]:
        return []

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
