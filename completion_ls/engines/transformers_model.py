"""Models that `llama` does not know, computed by transformers: the same answers, and slower."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from completion_ls.engines.model import KvShape, KvStore
from completion_ls.engines.shape import LANGUAGE_MODELS
from completion_ls.engines.tree import KvSequence, View

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Sizes:
    vocabulary: int
    context: int


class TransformersModel:
    """Any causal language model of transformers whose layers all keep keys and values of one size."""

    is_compiled = False

    def __init__(self, model: Any) -> None:
        """Raises ValueError or what transformers raises where it is not such a model."""
        self._model = model.eval()
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        config = model.config.get_text_config()
        layers = self._probe()
        # Within its window, attention to a window is attention to all.
        window = getattr(config, "sliding_window", None) or config.max_position_embeddings
        self.shape = _Sizes(
            vocabulary=config.vocab_size,
            context=min(config.max_position_embeddings, window),
        )
        self.kv = KvShape(len(layers), *layers[0], torch.float32)
        self._takes_count = "logits_to_keep" in parameters
        if self.shape.context < config.max_position_embeddings:
            _log.warning(
                "The model's attention reaches %d tokens far, so its context is that and not %d.",
                self.shape.context,
                config.max_position_embeddings,
            )
        # What is asked for later is tried here: a token that does not see the one before it.
        heads, size = layers[0]
        kv = KvSequence([torch.zeros(2, heads, 2, size) for _ in layers])
        self.forward([0, 0], kv, 1, View([0, 0], 0, [[0], [1]]))

    @classmethod
    def read(cls, folder: Path) -> TransformersModel:
        """Read a Hugging Face folder, in float32. Raises ValueError (a sentence) where transformers
        cannot, or the model is of another kind."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        names = [str(name) for name in config.get("architectures") or ()]
        if len(names) != 1 or not names[0].endswith(LANGUAGE_MODELS):
            raise ValueError(
                f"The model in {folder} is not a language model that continues text "
                f"({', '.join(names) or 'no architecture is named'}); name another."
            )
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
            for weight in model.parameters():
                # It may be the mapped file: a new model that is copied over it would kill us.
                weight.data = weight.data.clone()
            return cls(model)
        except Exception as error:  # each model raises what it likes
            raise ValueError(
                f"The CPU engine does not know the architecture {names[0]} of {folder}, and "
                f"transformers {transformers.__version__} cannot compute it either ({error})."
            ) from error

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return int(self._model.get_memory_footprint())

    def use_threads(self, threads: int) -> None:
        """Use so many threads from now on, in the whole process."""
        torch.set_num_threads(threads)

    @torch.inference_mode()
    def forward(
        self, tokens: Sequence[int], kv: KvStore, logits_of: int, view: View | None = None
    ) -> Tensor:
        """As `Model.forward`."""
        past, count = kv.length, len(tokens)
        view = view or View.line(past, count)
        mask = view.mask()
        if mask is None:
            mask = torch.zeros(count, past + count)
        more: dict[str, Any] = {
            self._cache_name: Cache(layers=[_Layer(layer, past, count) for layer in kv.layers])
        }
        if self._takes_count:
            more["logits_to_keep"] = max(1, logits_of)
        out = self._model(
            input_ids=torch.tensor([list(tokens)]),
            attention_mask=mask[None, None],
            position_ids=torch.tensor([view.positions]),
            use_cache=True,
            **more,
        )
        logits: Tensor = out.logits[0]
        return logits[len(logits) - logits_of :].float()

    @torch.inference_mode()
    def _probe(self) -> list[tuple[int, int]]:
        """Heads and their size of each layer's keys. Raises ValueError where they are not all alike."""
        cache = DynamicCache()
        more = {self._cache_name: cache}
        self._model(input_ids=torch.tensor([[0]]), use_cache=True, **more)
        found = [
            (part.shape[1], part.shape[3])
            for layer in cache.layers
            if isinstance(layer, CacheLayerMixin)
            for part in (layer.keys, layer.values)
            if part is not None
        ]
        if len(found) != 2 * len(cache.layers) or len(set(found)) != 1:
            raise ValueError("its layers keep no keys and values, or of different sizes")
        return found[::2]


class _Layer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer of a `KvStore` as transformers writes to it."""

    def __init__(self, store: Tensor, past: int, count: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._store, self._past, self._end = store, past, past + count
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *arguments: Any, **more: Any
    ) -> tuple[Tensor, Tensor]:
        """Put the new keys and values [1, heads, tokens, size] behind the others; all of them."""
        self._store[0, :, self._past : self._end] = key_states[0]
        self._store[1, :, self._past : self._end] = value_states[0]
        return self._store[0, None, :, : self._end], self._store[1, None, :, : self._end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length of all keys, and where they begin."""
        return self._end, 0

    def get_seq_length(self) -> int:
        """Tokens that are there."""
        return self._past

    def get_max_length(self) -> int:
        """No limit of its own."""
        return -1
