"""`torch_cpu` in a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from torch import Tensor

from completion_ls.bench.acceptance import truncated
from completion_ls.bench.sweep_drafts import ArmDrafts
from completion_ls.bench.sweep_figures import Arm
from completion_ls.bench.sweep_plan import Facts
from completion_ls.config.settings import DraftSettings, EngineSettings
from completion_ls.decode.draft_length import MOST
from completion_ls.engines.draft_model import DraftModel
from completion_ls.engines.drafts import Guesser
from completion_ls.engines.llama import Llama
from completion_ls.engines.model import KvShape, KvStore, Model, Shape
from completion_ls.engines.torch_cpu import TorchCpuEngine
from completion_ls.engines.tree import View

LOOKED_UP = DraftSettings(lookup=True)
FLOAT32_BYTES = {"int8": 4, "int4": 8, "bf16": 2, "float32": 1}
"""How many times the bytes of these weights float32 takes, at most."""


class TorchSubject:
    """The engine, others of it with other weights or a split pass, and what guesses."""

    def __init__(self, folder: Path, draft_folder: Path | None, settings: EngineSettings) -> None:
        self._folder = folder
        self._settings = settings
        engine = TorchCpuEngine.load(folder, settings, draft=LOOKED_UP, draft_folder=draft_folder)
        assert engine.drafts
        self._cost = engine.drafts.cost
        self._model = engine.drafts.model
        self._engines = {("", False): engine}
        self._layers: dict[int, Guesser] = {}
        llama = engine.model if isinstance(engine.model, Llama) else None
        needed = engine.model.nbytes * FLOAT32_BYTES[settings.weights]
        self.facts = Facts(
            kind=settings.kind,
            max_context=engine.max_context,
            threads=torch.get_num_threads(),
            most=MOST,
            layers=llama.shape.layers if llama else 0,
            has_model=self._model is not None,
            weights=settings.weights if llama else "float32",
            has_room=needed < psutil.virtual_memory().available / 2,
        )

    @contextmanager
    def engine(self, arm: Arm) -> Iterator[TorchCpuEngine]:
        """One with the arm's weights."""
        key = arm.weights, arm.split
        if key not in self._engines:
            model = self._plain(arm.weights).model
            self._engines[key] = self._of(SplitModel(model) if arm.split else model)
        yield self._engines[key]

    def drafts(self, arm: Arm) -> ArmDrafts:
        """New ones."""
        model = {"model": self._model}.get(arm.source)
        if arm.source == "layers":
            model = self._first_layers(arm.layers)
        return ArmDrafts(
            self._cost,
            lookup=arm.source == "lookup",
            model=model,
            length=arm.length,
            own_noise=arm.own_noise,
        )

    def _first_layers(self, layers: int) -> Guesser:
        if layers not in self._layers:
            model = self._plain("").model
            assert isinstance(model, Llama)
            share = layers / model.shape.layers
            self._layers[layers] = DraftModel(truncated(model, layers), share)
        return self._layers[layers]

    def _plain(self, weights: str) -> TorchCpuEngine:
        key = weights, False
        if key not in self._engines:
            settings = self._settings.model_copy(
                update={"weights": weights, "threads": self.facts.threads}
            )
            self._engines[key] = TorchCpuEngine.load(self._folder, settings)
        return self._engines[key]

    def _of(self, model: Model) -> TorchCpuEngine:
        return TorchCpuEngine(model, self._settings, self.facts.max_context, None)


class SplitModel:
    """A model that takes what is to be checked in a pass for each token."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def shape(self) -> Shape:
        """As the model's."""
        return self._model.shape

    @property
    def kv(self) -> KvShape:
        """As the model's."""
        return self._model.kv

    @property
    def nbytes(self) -> int:
        """As the model's."""
        return self._model.nbytes

    @property
    def is_compiled(self) -> bool:
        """As the model's."""
        return self._model.is_compiled

    def use_threads(self, threads: int) -> None:
        """As the model's."""
        self._model.use_threads(threads)

    def forward(
        self, tokens: Sequence[int], kv: KvStore, logits_of: int, view: View | None = None
    ) -> Tensor:
        """As `Model.forward`. Chunks of a prompt, which have no view, stay whole."""
        if view is None or len(tokens) == 1:
            return self._model.forward(tokens, kv, logits_of, view)
        assert logits_of == len(tokens)
        rows = []
        for number, token in enumerate(tokens):
            longer = _Longer(kv.length + number, kv.layers)
            rows.append(self._model.forward([token], longer, 1, _at(view, number, longer.length)))
        return torch.cat(rows)


@dataclass(frozen=True, slots=True)
class _Longer:
    """Keys and values of a sequence of which so many are there already."""

    length: int
    layers: Sequence[Tensor]


def _at(view: View, number: int, past: int) -> View:
    """What one of the tokens sees."""
    if view.paths is None:
        return View.line(past, 1)
    return View([view.positions[number]], view.common, [view.paths[number]])
