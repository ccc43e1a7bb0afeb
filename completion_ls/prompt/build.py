"""The prompt of one keystroke: what changes least stands first, what is typed stands last.

With FIM the prompt is anchored at the start of the cursor's line:

    PRE prefix-up-to-the-anchor SUF suffix MID cursor's-line-up-to-the-cursor

so that typing appends after MID and the KV of everything before it stays. A model without FIM gets
text from below as context in front, then the prefix; there, too, typing only appends.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tokenizers import Tokenizer

from completion_ls.engines.contract import Unfinished
from completion_ls.prompt.formats import FimFormat, find_format
from completion_ls.prompt.window import context_after, window_after, window_before

CLOSERS = frozenset(")]}>\"'`;,: \t")
CACHED_LINE = 1000
LONGEST_WORD = 64
MOST_WORD_TOKENS = 8
PLAIN_STOPS = ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<file_sep>", "</s>")


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and the word at their end when it may go on."""

    ids: tuple[int, ...]
    unfinished: Unfinished | None


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
    ) -> Prompt:
        """The prompt, at most `budget` tokens, never none.

        `prefix` ends at the cursor and `suffix` begins there, both with LF line ends; `context` is
        text that stands before the document.
        """
        room = int(budget * suffix_share)
        if self.fim is None:
            below = self._encode(context_after(suffix, room, self._cost).strip("\n"))
            if below:
                below += self._encode("\n\n\n")
            before = window_before(context + prefix, budget - len(below), self._cost)
            return self._ending(below, before)
        rest, newline, below_line = suffix.partition("\n")
        if CLOSERS.issuperset(rest):
            # Closers that the editor put right of the cursor: the model writes its own, and the
            # rules of text see to it that each stands once. Kept out, they change no prompt.
            suffix = newline + below_line
        after = self._encode(window_after(suffix, room, self._cost))
        before = window_before(context + prefix, budget - len(after) - 3, self._cost)
        anchor = before.rfind("\n") + 1
        head = [
            self._special(self.fim.prefix),
            *self._encode(before[:anchor]),
            self._special(self.fim.suffix),
            *after,
            self._special(self.fim.middle),
        ]
        return self._ending(head, before[anchor:])

    def _ending(self, head: list[int], text: str) -> Prompt:
        """The prompt of `head` and `text`, which ends at the cursor, perhaps inside a word."""
        word = self._last_word(text)
        ids = head + self._encode(text[: len(text) - len(word)])
        if not ids or not word or len(word) > LONGEST_WORD:
            return Prompt(tuple(head + self._encode(text or "\n")), None)
        trunk = self._trunk(word)
        if len(trunk) > MOST_WORD_TOKENS:  # a sentence without blanks: the logits would fill memory
            return Prompt(tuple(head + self._encode(text)), None)
        return Prompt((*ids, *trunk), Unfinished(word.encode(), len(trunk)))

    def _last_word(self, text: str) -> str:
        """What the tokenizer splits off last before it looks for tokens (its last pre-token)."""
        if self._tokenizer.pre_tokenizer is None:
            return text[len(text.rstrip().rpartition(" ")[0]) :]
        tail = text[-4 * LONGEST_WORD :]
        parts = self._tokenizer.pre_tokenizer.pre_tokenize_str(tail)
        return tail[parts[-1][1][0] :] if parts else ""

    def _trunk(self, word: str) -> list[int]:
        """The likely tokens of a word's beginning.

        Blanks at the cursor are mostly followed by a word that takes the last of them along
        (" return" is a token), so for them it is the tokens as they are before a letter.
        """
        if not word[-1].isspace():
            return self._encode(word)
        encoding = self._tokenizer.encode(word + "a", add_special_tokens=False)
        inside = [end <= len(word) for _, end in encoding.offsets]
        return [id for id, whole in zip(encoding.ids, inside, strict=True) if whole]

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
