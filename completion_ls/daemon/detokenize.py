"""Tokens become text as they come, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from tokenizers import Tokenizer

from completion_ls.decode.vocabulary import spelling_of

LONGEST_CHARACTER = 4
"""Bytes of a character, and so the most tokens of which one can consist."""


class Detokenizer:
    """The text of one job's output, without its first `skip` characters (a word that was typed).

    `prompt` are the tokens before the output: a character may begin in one and end in the other.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], skip: int = 0) -> None:
        self._spell = spelling_of(tokenizer)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(b"".join(map(self._spell, prompt[-LONGEST_CHARACTER:])))
        self._skip = skip

    def add(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """The text that these tokens add. Bytes of an unfinished character wait for the next call,
        unless this is the last."""
        text = self._decoder.decode(b"".join(map(self._spell, tokens)), last)
        skipped = min(self._skip, len(text))
        self._skip -= skipped
        return text[skipped:]
