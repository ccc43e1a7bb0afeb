"""exllamav2 in a sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from completion_ls.bench.card import generator_of
from completion_ls.bench.sweep_drafts import ArmDrafts
from completion_ls.bench.sweep_figures import Arm
from completion_ls.bench.sweep_plan import Facts
from completion_ls.config.settings import DraftSettings, EngineSettings
from completion_ls.engines.exl2 import checks, loading
from completion_ls.engines.exl2.engine import Exl2Engine
from completion_ls.engines.exl2.generator import PagedGenerator, PagedJob
from completion_ls.engines.exl2.prefill_stream import PrefillStream
from completion_ls.engines.exl2.widths import DRAFTED
from completion_ls.engines.vram import CacheType, plan_vram

LOOKED_UP = DraftSettings(lookup=True)


class Exl2Subject:
    """The engine, and the caches that its models can have."""

    def __init__(
        self,
        folder: Path,
        draft_folder: Path | None,
        settings: EngineSettings,
        card: Callable[[], checks.Card],
    ) -> None:
        found = card()
        fitting = tuple(
            kind
            for kind in get_args(CacheType)
            if _fits(folder, draft_folder, settings, kind, found.free_bytes)
        )
        self._engine = loading.load(
            folder, settings, draft=LOOKED_UP, draft_folder=draft_folder, card=lambda: found
        )
        assert self._engine.drafts
        self._cost = self._engine.drafts.cost
        self._model = self._engine.drafts.model
        self._generator = generator_of(self._engine)
        self._set = self._has = settings.kv_cache
        is_card = torch.cuda.is_available()
        self._stream = (
            PrefillStream(self._generator.model.modules[-1].device_idx) if is_card else None
        )
        self.facts = Facts(
            kind=settings.kind,
            max_context=self._engine.max_context,
            threads=torch.get_num_threads(),
            most=DRAFTED,
            has_model=self._model is not None,
            kv_cache=settings.kv_cache,
            kv_caches=fitting,
            has_streams=is_card,
            is_meaningful=is_card,
        )

    @contextmanager
    def engine(self, arm: Arm) -> Iterator[Exl2Engine]:
        """The engine, with the arm's cache."""
        self._use_cache(arm.kv_cache or self._set)
        with ExitStack() as stack:
            if arm.split:
                stack.enter_context(_split(self._generator))
            if arm.fresh:
                before = self._generator.prefill_stream
                loading.use_prefill_stream(self._generator, self._stream if arm.stream else None)
                stack.callback(loading.use_prefill_stream, self._generator, before)
            yield self._engine

    def drafts(self, arm: Arm) -> ArmDrafts:
        """New ones."""
        return ArmDrafts(
            self._cost,
            lookup=arm.source == "lookup",
            model=self._model if arm.source == "model" else None,
            length=arm.length,
            own_noise=arm.own_noise,
        )

    def _use_cache(self, kind: CacheType) -> None:
        if kind == self._has:
            return
        generator = self._generator
        tokens = generator.max_total_tokens
        generator.cache = None  # its memory is the next one's
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        generator.cache = loading.cache(generator.model, kind, tokens)
        generator.reset_page_table()
        self._has = kind


def _fits(
    folder: Path,
    draft_folder: Path | None,
    settings: EngineSettings,
    kind: CacheType,
    free_bytes: int,
) -> bool:
    other = settings.model_copy(update={"kv_cache": kind})
    plan = plan_vram(loading.planned(folder, other, draft_folder), loading.passes(other))
    return plan.fits(free_bytes)


@contextmanager
def _split(generator: PagedGenerator) -> Iterator[None]:
    """What is to be checked goes through the target in a pass for each token."""
    generator.__dict__["look"] = partial(_look_one_by_one, generator)
    try:
        yield
    finally:
        del generator.__dict__["look"]


def _look_one_by_one(generator: PagedGenerator, job: PagedJob, offered: Sequence[int]) -> Tensor:
    """As `PagedGenerator.look`."""
    sequence = job.sequences[0]
    position = int(sequence.kv_position)
    wanted = 1 + len(offered)
    blocks = job.get_block_index(sequence, position + wanted)
    job.rewind_pages()
    draft = torch.tensor([[*offered]], dtype=torch.long)
    (ids,) = job.get_input_ids_list(draft, 0, add_to_cache=True)
    rows = []
    for number in range(wanted):
        start = torch.tensor([position + number], dtype=torch.int32)
        params = generator.get_paged_params(1, blocks.unsqueeze(0), start, 1)
        found = generator.model.forward_chunk(
            input_ids=ids[:, number : number + 1], attn_params=params, cache=generator.cache
        )
        rows.append(found["logits"][0, :, : generator.vocabulary].float())
    return torch.cat(rows)
