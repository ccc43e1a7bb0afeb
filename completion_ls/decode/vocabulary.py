"""The bytes of every token, and which tokens begin with given bytes."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

Ids = npt.NDArray[np.int64]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Vocabulary:
    """What the tokens of a tokenizer stand for. Special tokens stand for nothing."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        tokenizer.encode_special_tokens = True  # what looks like one in the text is text
        self._bytes = _token_bytes(tokenizer)
        ordered = sorted((text, id) for id, text in self._bytes.items() if text)
        self._texts = [text for text, _ in ordered]
        self._ids = np.array([id for _, id in ordered], dtype=np.int64)

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token; none for a special one."""
        return self._bytes.get(token, b"")

    def is_canonical(self, tokens: tuple[int, ...]) -> bool:
        """Whether the tokenizer itself would read the text of these tokens so.

        The text must begin where a word of the tokenizer begins. Half a character at its end, and
        special tokens, are no objection.
        """
        known = [token for token in tokens if token in self._bytes]
        while known:
            try:
                text = b"".join(map(self.bytes_of, known)).decode()
            except UnicodeDecodeError:
                known.pop()  # half a character; what stands before it can be judged
                continue
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
            return ids == known
        return True

    def beyond(self, text: bytes) -> Ids:
        """Tokens that begin with `text` and go on behind it."""
        start = bisect_left(self._texts, text + b"\x00") if text else 0
        end = bisect_left(self._texts, _next(text)) if text else len(self._texts)
        return self._ids[start:end]

    def inside(self, text: bytes) -> Ids:
        """Tokens that `text` begins with, or is."""
        found = []
        for length in range(1, len(text) + 1):
            start = bisect_left(self._texts, text[:length])
            end = bisect_left(self._texts, text[:length] + b"\x00")
            found += [int(id) for id in self._ids[start:end]]
        return np.array(found, dtype=np.int64)


def _next(text: bytes) -> bytes:
    """The first byte string, in order, that neither begins with `text` nor lies before it."""
    stripped = text.rstrip(b"\xff")
    # No text in UTF-8 holds the byte 0xff, so there is always something left.
    return stripped[:-1] + bytes([stripped[-1] + 1])


def _token_bytes(tokenizer: Tokenizer) -> dict[int, bytes]:
    description = json.loads(tokenizer.to_str())
    special = {token["id"] for token in description["added_tokens"] if token["special"]}
    added = {token["id"] for token in description["added_tokens"]}
    byte_level = "ByteLevel" in _kinds(description.get("decoder"))
    characters = _byte_level_characters()
    found: dict[int, bytes] = {}
    for token, id in tokenizer.get_vocab(with_added_tokens=True).items():
        if id in special:
            continue
        if id in added:
            found[id] = token.encode()
        elif byte_level:
            found[id] = bytes(characters[character] for character in token)
        elif match := _BYTE_TOKEN.fullmatch(token):
            found[id] = bytes([int(match[1], 16)])
        else:
            found[id] = token.replace("▁", " ").encode()
    return found


def _kinds(decoder: Any) -> set[str]:
    if not decoder:
        return set()
    inner: set[str] = set().union(*(_kinds(part) for part in decoder.get("decoders", [])))
    return inner | {decoder["type"]}


def _byte_level_characters() -> dict[str, int]:
    """Byte-level BPE writes each byte as a visible character: itself where it is one, and the rest,
    in order, from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    characters = {chr(byte): byte for byte in visible}
    return characters | {chr(0x100 + n): byte for n, byte in enumerate(hidden)}
