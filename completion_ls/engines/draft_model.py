"""A smaller model of the same vocabulary that guesses what the large one will say."""

from __future__ import annotations

from collections.abc import Sequence

from completion_ls.decode.sampling import choose
from completion_ls.engines.contract import Sampling
from completion_ls.engines.kv import KvCache
from completion_ls.engines.model import Model

CHUNK = 128
"""Tokens of a text that is new to it, per pass."""
KV_BYTES = 2**28
"""Most memory for its keys and values where nothing else is said."""


class DraftModel:
    """Guesses as the large model chooses: with the same temperature, filters and noise, so that
    both draw the same lot."""

    def __init__(
        self,
        model: Model,
        cost: float = 0.0,
        vocabulary: int | None = None,
        kv_bytes: int = KV_BYTES,
    ) -> None:
        """`cost` is that of one of its passes, relative to one of the large model, which has so many
        tokens in its `vocabulary`."""
        self.cost = cost
        self._model = model
        # Both may be padded, with ids that stand for nothing, and not alike.
        self._vocabulary = min(vocabulary or model.shape.vocabulary, model.shape.vocabulary)
        self._cache = KvCache(model.kv, kv_bytes)

    def propose(self, text: Sequence[int], count: int, sampling: Sampling) -> tuple[int, ...]:
        """`count` tokens that may follow `text`, prompt and output of a job. None where the text is
        too long for this model or not of its vocabulary, and none yet where much of it is new: then
        this reads a chunk of it, as more would keep the next keystroke waiting."""
        if len(text) + count > self._model.shape.context or max(text) >= self._vocabulary:
            return ()
        kv = self._cache.acquire(text[:-1], len(text) + count)
        assert kv is not None  # only jobs that spare others are refused
        try:
            kv.cut(kv.line)
            waiting = list(text[kv.line : kv.line + CHUNK])
            rows = self._model.forward(waiting, kv, 1)
            kv.extend(waiting)
            if kv.line < len(text):
                return ()
            tokens: list[int] = []
            while True:
                row = rows[-1, : self._vocabulary].numpy()
                tokens.append(choose(row, sampling, len(text) + len(tokens))[0])
                if len(tokens) == count:
                    return tuple(tokens)
                rows = self._model.forward(tokens[-1:], kv, 1)
                kv.extend(tokens[-1:])
        finally:
            self._cache.release(kv)
