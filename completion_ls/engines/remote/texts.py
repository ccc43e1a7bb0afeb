"""Between tokens of our tokenizer and the texts of a server that has another one, or takes no tokens."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer

from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.remote.abilities import Abilities
from completion_ls.engines.remote.ask import Gap
from completion_ls.prompt.formats import FIM_FORMATS, find_format


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as text. `half` are the bytes of a character that is not complete at its end: they are
    left out, and the answer is to begin with them."""

    prompt: str | Gap
    half: bytes


BY_NAME = {fim.name: fim for fim in FIM_FORMATS}
MARKED = BY_NAME["qwen"]
"""The format whose tokens tell the parts of a prompt that the server is to make anew: any one with three
would do."""
Marks = tuple[int, int, int]
"""The tokens before the prefix, the suffix and the middle."""


def format_by_texts(wanted: str, abilities: Abilities, tokenizer: Tokenizer) -> str:
    """The FIM format of prompts that are sent as texts, where `wanted` was set; empty where the server
    makes the FIM prompt itself. With another vocabulary than ours, our tokenizer does not tell."""
    if wanted != "auto":
        return wanted
    if abilities.same_tokens and (fim := find_format("auto", tokenizer)):
        return fim.name
    if abilities.fim_format:
        return abilities.fim_format
    return "" if abilities.fills_in else "plain"


def with_tokens(tokenizer: Tokenizer, names: Sequence[str]) -> tuple[int, ...]:
    """Have a tokenizer know these control tokens, which the server's knows; returns their ids. (Texts are
    sent, so the numbers are ours.)"""
    missing = [name for name in names if tokenizer.token_to_id(name) is None]
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in missing]
    )
    return tuple(id for name in names if (id := tokenizer.token_to_id(name)) is not None)


class Texts:
    """Renders prompts, and knows what ends an answer."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary, marks: Marks | None) -> None:
        """`marks` tell the parts of a prompt where the server is to make the FIM prompt of them."""
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._marks = marks

    def render(self, ids: Sequence[int]) -> Rendered:
        """A prompt as text; control tokens stand in it by their names."""
        if self._marks is None or self._marks[2] not in ids:
            return self._text(ids)
        before, after = self._pieces(ids)
        first, last = self._text(before), self._text(after)
        return Rendered(Gap(str(first.prompt), str(last.prompt)), first.half)

    def control(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The names of these tokens."""
        names = (self._tokenizer.id_to_token(id) for id in ids)
        return tuple(name for name in names if name)

    def _pieces(self, ids: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """What stands before the cursor and behind it: in the prompt the lines from the anchor on stand
        last."""
        assert self._marks is not None
        prefix, suffix, middle = self._marks
        ids = list(ids)
        last = len(ids) - 1 - ids[::-1].index(middle)
        second = ids.index(suffix) if suffix in ids else last
        first = ids.index(prefix) + 1 if prefix in ids else 0
        return [*ids[first:second], *ids[last + 1 :]], ids[second + 1 : last]

    def _text(self, ids: Sequence[int]) -> Rendered:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = "".join(decoder.decode(self._bytes(id)) for id in ids)
        return Rendered(text, decoder.getstate()[0])

    def _bytes(self, token: int) -> bytes:
        spelled = self._vocabulary.bytes_of(token)
        return spelled or (self._tokenizer.id_to_token(token) or "").encode()
