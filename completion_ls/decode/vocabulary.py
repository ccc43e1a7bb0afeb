"""The bytes of every token, and which tokens begin with given bytes."""

from __future__ import annotations

import codecs
import json
import re
from bisect import bisect_left
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer

Ids = npt.NDArray[np.int64]

BLANK = "▁"
FOLLOWERS = ("a", "1", "(", " ", "\n")
"""One character of each kind that tokenizers tell apart when they split a text into words."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CONTROL = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)
"""Tokens that steer a model, also where their tokenizer does not call them special: Qwen's and
DeepSeek's for filling in the middle are not."""


def inner_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer that reads text as it stands in the middle of a document.

    It shares the model of `tokenizer` and its splitting, but puts no blank in front (as SentencePiece
    models do at the beginning of a text), adds no tokens of its own, cuts nothing off, and takes
    what looks like a control token in the text for text.
    """
    parts = {
        "normalizer": _without_prefix(_state(tokenizer.normalizer)),
        "pre_tokenizer": _without_prefix(_state(tokenizer.pre_tokenizer)),
    }
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    inner = Tokenizer.from_str(json.dumps({"version": "1.0", **_NOTHING, **parts, "model": empty}))
    inner.model = tokenizer.model
    # In the order of their ids, so that those that the model does not know get the same ones.
    for _, token in sorted(tokenizer.get_added_tokens_decoder().items()):
        if token.special or _CONTROL.fullmatch(token.content):
            inner.add_special_tokens([_special(token)])
        else:
            inner.add_tokens([token])
    inner.encode_special_tokens = True
    return inner


class Spelling:
    """The bytes that each token of a tokenizer adds to a text. Control tokens add none."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        kinds = _kinds(_state(tokenizer.decoder)) | _kinds(_state(tokenizer.pre_tokenizer))
        self._byte_level = "ByteLevel" in kinds
        self._added = tokenizer.get_added_tokens_decoder()
        self._known: dict[int, bytes] = {}

    def __call__(self, token: int) -> bytes:
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._spell(token)
        return found

    def _spell(self, token: int) -> bytes:
        added = self._added.get(token)
        if added and (added.special or _CONTROL.fullmatch(added.content)):
            return b""
        text = added.content if added else self._tokenizer.id_to_token(token) or ""
        if self._byte_level:
            try:
                return text.encode() if added else bytes(map(_CHARACTERS.__getitem__, text))
            except KeyError:  # not one of the byte-level tokens
                return text.encode()
        if match := _BYTE_TOKEN.fullmatch(text):
            return bytes([int(match[1], 16)])
        return text.replace(BLANK, " ").encode()


@lru_cache(maxsize=8)
def spelling_of(tokenizer: Tokenizer) -> Spelling:
    """The spelling of a tokenizer whose tokens are complete."""
    return Spelling(tokenizer)


class Vocabulary:
    """What the tokens of a tokenizer stand for. Special tokens stand for nothing."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._inner = inner_tokenizer(tokenizer)
        spell = Spelling(tokenizer)
        self._bytes = {
            id: text
            for id in tokenizer.get_vocab(with_added_tokens=True).values()
            if (text := spell(id))
        }
        ordered = sorted((text, id) for id, text in self._bytes.items())
        self._texts = [text for text, _ in ordered]
        self._ids = np.array([id for _, id in ordered], dtype=np.int64)

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token; none for a special one."""
        return self._bytes.get(token, b"")

    def read(self, text: str) -> tuple[int, ...]:
        """The tokens of a text that stands inside a longer one, from the start of a word on."""
        return tuple(self._inner.encode(text, add_special_tokens=False).ids)

    def is_canonical(self, tokens: tuple[int, ...]) -> bool:
        """Whether the tokenizer itself would read the text of these tokens so.

        The text must begin where a word of the tokenizer begins, inside a longer text. Half a
        character at its end, and special tokens, are no objection.
        """
        known = [token for token in tokens if token in self._bytes]
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            text = decoder.decode(b"".join(map(self.bytes_of, known)))
        except UnicodeDecodeError:
            return False
        half = len(decoder.getstate()[0])
        while half > 0:  # what stands before it can be judged
            half -= len(self.bytes_of(known.pop()))
        if half < 0:
            return self.is_canonical(tuple(known))
        return self.read(text) == tuple(known)

    def may_begin(self, tokens: tuple[int, ...]) -> bool:
        """Whether the tokenizer could read a text so whose first tokens are these.

        It is not enough that it reads them so alone: many tokenizers leave the last blank to the
        word that follows.
        """
        text = b"".join(map(self.bytes_of, tokens)).decode(errors="ignore")
        return self.is_canonical(tokens) or any(
            self.read(text + next)[: len(tokens)] == tokens for next in FOLLOWERS
        )

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


_NOTHING: dict[str, Any] = {
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "post_processor": None,
    "decoder": None,
}


def _special(token: AddedToken) -> AddedToken:
    return AddedToken(token.content, special=True, normalized=False)


def _state(part: Any) -> Any:
    """A part of a tokenizer as it stands in tokenizer.json."""
    return None if part is None else json.loads(part.__getstate__())


def _without_prefix(part: Any) -> Any:
    """The same part, but nothing is put in front of a text."""
    match part and part["type"]:
        case "Sequence":
            [key] = {"normalizers", "pretokenizers"} & part.keys()
            kept = [inner for one in part[key] if (inner := _without_prefix(one))]
            return {**part, key: kept} if kept else None
        case "Prepend":
            return None
        case "Metaspace":
            return {**part, "prepend_scheme": "never"}
        case "ByteLevel":
            return {**part, "add_prefix_space": False}
    return part


def _kinds(part: Any) -> set[str]:
    if not part:
        return set()
    parts = part.get("decoders") or part.get("pretokenizers") or []
    return {part["type"]}.union(*map(_kinds, parts))


def _byte_level_characters() -> dict[str, int]:
    """Byte-level BPE writes each byte as a visible character: itself where it is one, and the rest,
    in order, from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    characters = {chr(byte): byte for byte in visible}
    return characters | {chr(0x100 + n): byte for n, byte in enumerate(hidden)}


_CHARACTERS = _byte_level_characters()
