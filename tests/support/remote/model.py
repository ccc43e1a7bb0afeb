"""A model without weights: what follows a context is drawn by a hash of the context, so that a test can
work out by itself what a server must answer. Where a character is begun, bytes that end it are likely."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, pre_tokenizers

Probabilities = NDArray[np.float64]

BEGUN = 8.0
"""What a token that goes on with a begun character has more, in logits."""
FOREVER = 1 << 30


class HashedModel:
    """A distribution over `tokenizer`'s vocabulary for any context.

    `end`: the token that ends a text, `end_bias` is added to its logit. Control tokens in a text are read as
    such, as servers do.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        seed: int = 0,
        *,
        end: int | None = None,
        end_bias: float = 0.0,
    ) -> None:
        self.tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self.tokenizer.encode_special_tokens = False
        self.seed, self.end, self.end_bias = seed, end, end_bias
        self.vocabulary = tokenizer.get_vocab_size()
        added = self.tokenizer.get_added_tokens_decoder()
        self.special = frozenset(id for id, token in added.items() if token.special)
        self.pieces = [self.tokenizer.id_to_token(id) or "" for id in range(self.vocabulary)]
        spelling = _spelling(self.pieces)
        self.spelled = [
            (piece.encode() if id in added else spelling(piece))
            for id, piece in enumerate(self.pieces)
        ]
        self._goes_on = np.array([0x80 <= (part or b"a")[0] < 0xC0 for part in self.spelled])

    def logprobs(self, ids: Sequence[int]) -> Probabilities:
        """Log-probabilities of what follows, [vocabulary]."""
        context = np.asarray(ids, dtype=np.int32).tobytes()
        key = blake2b(context, digest_size=16, salt=self.seed.to_bytes(16, "little")).digest()
        generator = np.random.Generator(np.random.Philox(int.from_bytes(key, "little")))
        logits = generator.normal(0.0, 3.0, self.vocabulary)
        tail = b"".join(self.spelled[id] for id in ids[-4:])
        if missing_bytes(tail):
            logits[self._goes_on] += BEGUN
        if self.end is not None:
            logits[self.end] += self.end_bias
        logits -= logits.max()
        return np.asarray(logits - np.log(np.exp(logits).sum()))

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        """The `count` most probable tokens, one after the other; the end of a text does not stop them."""
        context = list(ids)
        for _ in range(count):
            context.append(int(self.logprobs(context).argmax()))
        return context[len(ids) :]

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """What the tokens spell, without the special ones."""
        return b"".join(self.spelled[id] for id in ids if id not in self.special)


def missing_bytes(text: bytes) -> int:
    """How many bytes the last character of a UTF-8 text still lacks."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte >= 0xC0:
            return max(0, (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) - back)
        if byte < 0x80:
            return 0
    return 0


def _spelling(pieces: list[str]) -> Callable[[str], bytes]:
    """How a vocabulary writes bytes: with the byte-level alphabet, or as SentencePiece does."""
    if any(piece == "<0x41>" for piece in pieces):
        return lambda piece: (
            bytes([int(piece[3:5], 16)])
            if re.fullmatch("<0x[0-9A-F]{2}>", piece)
            else piece.replace("▁", " ").encode()
        )
    # The alphabet in the order of the bytes: what can be seen stands for itself, the rest comes after.
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    letters = {chr(byte): byte for byte in seen} | {chr(256 + i): b for i, b in enumerate(hidden)}
    assert set(letters) == set(pre_tokenizers.ByteLevel.alphabet())
    return lambda piece: bytes(letters[letter] for letter in piece)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen; `top_k` 0 and `top_p` 1 leave all. `seed` None draws by the context alone."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    allowed: frozenset[int] | None = None
    bias: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """A token that was chosen, and what was probable before anything was done to it."""

    token: int
    logprobs: Probabilities


def generate(
    model: HashedModel,
    prompt: Sequence[int],
    sampling: Sampling,
    maximum: int,
    ends: frozenset[int] = frozenset(),
    minimum: int = 0,
) -> Iterator[Step]:
    """Tokens up to `maximum`, or to one of `ends`, which is the last; none of these before `minimum`."""
    context = list(prompt)
    for position in range(maximum):
        logprobs = model.logprobs(context)
        banned = ends if position < minimum else frozenset()
        token = _choose(logprobs, sampling, banned, position)
        yield Step(token, logprobs)
        if token in ends:
            return
        context.append(token)


def _choose(
    logprobs: Probabilities, sampling: Sampling, banned: frozenset[int], position: int
) -> int:
    logits = logprobs.copy()
    for token, bias in sampling.bias.items():
        logits[token] += bias
    if sampling.allowed is not None:
        kept = sorted(sampling.allowed)
        masked = np.full_like(logits, -np.inf)
        masked[kept] = logits[kept]
        logits = masked
    logits[sorted(banned)] = -np.inf
    if sampling.temperature < 1e-5:
        return int(logits.argmax())
    logits = logits / sampling.temperature
    order = np.argsort(-logits, kind="stable")
    probabilities = np.exp(logits - logits.max())
    probabilities /= probabilities.sum()
    before = np.cumsum(probabilities[order]) - probabilities[order]
    dropped = before >= sampling.top_p
    if sampling.top_k > 0:
        dropped[sampling.top_k :] = True
    dropped |= probabilities[order] < sampling.min_p * probabilities.max()
    dropped[0] = False
    logits[order[dropped]] = -np.inf
    lots = int.from_bytes(blake2b(logprobs.tobytes(), digest_size=8).digest(), "little")
    key = lots if sampling.seed is None else (sampling.seed & (2**64 - 1)) * FOREVER + position
    return int(
        (logits + np.random.Generator(np.random.Philox(key)).gumbel(size=len(logits))).argmax()
    )


class TextOf:
    """The text of tokens as they come, as servers tell it: what may be the beginning of a character waits."""

    def __init__(self, model: HashedModel, special: bool = False) -> None:
        self._model, self._special, self._held = model, special, b""

    def add(self, token: int) -> str:
        """What is told with this token, which may be nothing, or more than its own text."""
        spelled = self._model.spelled[token]
        if token not in self._model.special or self._special:
            self._held += spelled
        text = self._held.decode(errors="replace")
        if not text or text.endswith("\ufffd"):
            return ""
        self._held = b""
        return text

    def rest(self) -> str:
        """What still waits."""
        text, self._held = self._held.decode(errors="replace"), b""
        return text
