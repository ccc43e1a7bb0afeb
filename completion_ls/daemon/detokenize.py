"""Tokens become text as they come, never half a character."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

# Decoders may treat the first token of a text differently (a leading blank is dropped), so a few
# tokens of the prompt are decoded along and cut off again.
CONTEXT_TOKENS = 4
INCOMPLETE = "�"


class Detokenizer:
    """The text of one job's output, without its first `skip` characters (a word that was typed)."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], skip: int = 0) -> None:
        self._tokenizer = tokenizer
        self._context = list(prompt[-CONTEXT_TOKENS:])
        self._context_length = len(self._decode([]))
        self._tokens: list[int] = []
        self._given = skip

    def add(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """The text that these tokens add. Bytes of an unfinished character wait for the next call,
        unless this is the last."""
        self._tokens += tokens
        text = self._decode(self._tokens)[self._context_length :]
        if not last:
            text = text.rstrip(INCOMPLETE)
        new = text[self._given :]
        self._given = max(self._given, len(text))
        return new

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode([*self._context, *tokens], skip_special_tokens=False)
        return text
