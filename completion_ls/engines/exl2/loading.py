"""From settings and folders to an engine on exllamav2.

What can be refused without torch is refused before torch is imported, and what can be refused
without the weights before these are read.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from completion_ls.config.settings import DraftSettings, EngineSettings
from completion_ls.decode.draft_length import PassCost
from completion_ls.engines.exl2 import checks
from completion_ls.engines.exl2.widths import DRAFTED, OFFERED, WIDTHS, step_cost
from completion_ls.engines.vram import (
    DRAFT_CACHE,
    PAGE,
    CacheType,
    Passes,
    VramAdvice,
    VramSetting,
    advise,
    plan_vram,
    table,
)
from completion_ls.engines.vram_model import Exl2Model, read_exl2

if TYPE_CHECKING:
    from completion_ls.engines.exl2.engine import Exl2Engine
    from completion_ls.engines.exl2.generator import PagedGenerator, PagedJob
    from completion_ls.engines.exl2.prefill_stream import PrefillStream

_log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]

CHUNKS = (256, 2048)
"""Fewest and most prompt tokens of a pass."""
SETTLED = 210
"""Passes of a width until it is as fast as it gets. Read in the source: each size of matrix is
tried 200 times before its block size is chosen (AT_NUM_MEASURE), and a module's kernels become a
CUDA graph at its 205th pass of a width (MIN_GRAPH_INSTANCES)."""
ROUNDS = 5
"""The fastest of so many counts."""
SEEN = 512
"""Tokens before a pass that is measured."""
READ_SHARE = 0.6
"""Part of the progress given to reading weights."""
CACHES: dict[CacheType, str] = {
    "fp16": "ExLlamaV2Cache",
    "q8": "ExLlamaV2Cache_Q8",
    "q6": "ExLlamaV2Cache_Q6",
    "q4": "ExLlamaV2Cache_Q4",
}


def silent(text: str, fraction: float) -> None:
    """Progress that nobody looks at."""


def load(
    folder: Path,
    settings: EngineSettings,
    max_context: int | None = None,
    *,
    draft: DraftSettings,
    draft_folder: Path | None = None,
    drafts_here: Mapping[str, Path] = MappingProxyType({}),
    progress: Progress = silent,
    card: Callable[[], checks.Card] = checks.find_card,
) -> Exl2Engine:
    """Check, load and warm up an EXL2 folder, and the draft model in `draft_folder`.

    `max_context` lowers the limit of tokens per job. `card` says what the GPU has free. Of the models
    `drafts_here`, by their names in settings, one may be advised. Raises
    ValueError or RuntimeError (sentences) where the model, the machine or the settings do not fit.
    """
    checks.check_assertions()
    plan = planned(folder, settings, draft_folder)
    free = card().free_bytes
    advice = advised(plan, free, settings, folder, drafts_here)
    if advice.setting != plan:
        need = plan_vram(plan, passes(settings))
        raise ValueError("\n".join([advice.sentence, *table(need, free)]))

    from tokenizers import Tokenizer

    from completion_ls.decode.vocabulary import Vocabulary
    from completion_ls.engines.same_vocabulary import check_vocabulary

    vocabulary = Vocabulary(Tokenizer.from_file(str(folder / "tokenizer.json")))
    if draft_folder:
        check_vocabulary(folder, draft_folder)

    from completion_ls.engines.drafts import Drafts
    from completion_ls.engines.exl2.engine import Exl2Engine
    from completion_ls.engines.exl2.generator import PagedDraft

    generator = _generator(folder, settings, draft_folder, progress)
    cost, draft_cost = warm_up(generator, progress)
    if settings.prefill_stream and draft_folder:
        try_prefill_stream(generator)
    drafts = guesser = None
    if draft.max_tokens > 0 and (draft.lookup or draft_folder):
        guesser = PagedDraft(generator, draft_cost) if draft_folder else None
        drafts = Drafts(
            cost, lookup=draft.lookup, model=guesser, most=min(draft.max_tokens, DRAFTED)
        )
    limit = settings.context if max_context is None else min(settings.context, max_context)
    return Exl2Engine(generator, limit, chunk(settings), vocabulary, drafts, guesser)


def planned(folder: Path, settings: EngineSettings, draft_folder: Path | None) -> VramSetting:
    """What the settings ask of the GPU's memory, once config.json and the weights' headers of both
    folders have been checked. Raises ValueError (a sentence)."""
    target = read_exl2(folder)
    checks.check_rope(folder)
    checks.check_context(folder, settings.context, is_draft=False)
    small = None
    if draft_folder:
        small = read_exl2(draft_folder)
        checks.check_rope(draft_folder)
        checks.check_context(draft_folder, settings.context, is_draft=True)
    return VramSetting(target, small, settings.kv_cache, settings.context)


def advised(
    asked: VramSetting,
    free_bytes: int,
    settings: EngineSettings,
    folder: Path,
    drafts_here: Mapping[str, Path],
) -> VramAdvice:
    """What to do where the GPU has no more than `free_bytes`. `folder` is the target's."""
    small: list[Exl2Model] = []
    if asked.draft and not plan_vram(asked, passes(settings)).fits(free_bytes):
        found = _drafts_of(folder, drafts_here)
        small = sorted(
            (one for one in found if one.weights < asked.draft.weights),
            key=lambda one: -one.weights,
        )
    return advise(asked, free_bytes, small, passes(settings))


def _drafts_of(target: Path, models: Mapping[str, Path]) -> Iterator[Exl2Model]:
    """Those that have the target's vocabulary."""
    from completion_ls.engines.same_vocabulary import check_vocabulary

    for name, folder in models.items():
        try:
            found = read_exl2(folder)
            check_vocabulary(target, folder)
        except ValueError:
            continue
        yield replace(found, name=name)


def chunk(settings: EngineSettings) -> int:
    """Prompt tokens of a pass: whole pages."""
    fewest, most = CHUNKS
    return min(most, max(fewest, -(-settings.prefill_chunk // PAGE) * PAGE))


def passes(settings: EngineSettings) -> Passes:
    """The widest passes that there will be."""
    return Passes(chunk=chunk(settings), sequences=1, positions=1 + OFFERED)


def warm_up(generator: PagedGenerator, progress: Progress = silent) -> tuple[PassCost, float]:
    """Take both models through passes of all `WIDTHS` until they are as fast as they get, and
    measure these: what a pass costs by its width, and one of the draft model for one token (0
    without it).

    What was measured is not kept for the next start: the warm-up must be gone through then, too,
    and the figures come with it.
    """
    import torch

    # There is nothing to settle on kernels that are not compiled.
    settled, rounds = (SETTLED, ROUNDS) if torch.cuda.is_available() else (0, 1)
    room = generator.max_total_tokens - 2 * PAGE
    text = [number % generator.vocabulary for number in range(min(SEEN, room))]
    job = generator.begin(text, PAGE, fresh=True)
    assert job is not None  # nobody else has a page yet
    while job.position < len(text) - 1:
        generator.read(job, generator.max_chunk_size)
    # Below zero: passes of the draft model, which reads its last token and perhaps the one behind it.
    widths = [*WIDTHS, *([-2, -1] if generator.draft_model else [])]
    seconds: list[float] = []
    for number, width in enumerate(widths):
        times = []
        for done in range(settled + rounds):
            if done % 10 == 0:
                share = (number + done / (settled + rounds)) / len(widths)
                progress("Warming up", READ_SHARE + (1 - READ_SHARE) * share)
            began = time.perf_counter()
            _one_pass(generator, job, width)
            times.append(time.perf_counter() - began)
        seconds.append(min(times[-rounds:]))
    generator.end(job)
    generator.reset_page_table()
    draft_cost = seconds[-1] / seconds[0] if generator.draft_model else 0.0
    return step_cost(seconds[: len(WIDTHS)]), draft_cost


def try_prefill_stream(generator: PagedGenerator) -> None:
    """Let the draft model read prompts beside the target from here on, where the first token of a
    chunk's prompt then comes sooner."""
    import torch

    if not torch.cuda.is_available():
        _log.warning("engine.prefill_stream: there are no streams without a GPU, it stays off")
        return
    from completion_ls.engines.exl2.prefill_stream import PrefillStream

    stream = PrefillStream(generator.model.modules[-1].device_idx)
    before, beside = first_token_seconds(generator, (None, stream))
    use_prefill_stream(generator, stream if beside < before else None)
    _log.info(
        "engine.prefill_stream is %s: the first token of %d takes %.1f ms with it, %.1f without",
        "on" if generator.prefill_stream else "off, as it does not win",
        generator.max_chunk_size,
        1000 * beside,
        1000 * before,
    )


def use_prefill_stream(generator: PagedGenerator, stream: PrefillStream | None) -> None:
    """Turn it on, with all that belongs to it, or off."""
    from completion_ls.engines.exl2.prefill_stream import wait_for_copies

    generator.prefill_stream = stream
    wait_for_copies(stream is None)


def first_token_seconds(
    generator: PagedGenerator, streams: Sequence[PrefillStream | None]
) -> list[float]:
    """How long the first token of a new prompt of one chunk takes with each of `streams`: the medians
    of a few, in turns. What follows is not waited for. Leaves the generator without any."""
    import torch

    length = min(generator.max_chunk_size + 1, generator.max_total_tokens - 2 * PAGE)
    text = [number % generator.vocabulary for number in range(length)]
    times: list[list[float]] = [[] for _ in streams]
    for _ in range(ROUNDS):
        for stream, taken in zip(streams, times, strict=True):
            use_prefill_stream(generator, stream)
            job = generator.begin(text, PAGE, fresh=True)
            assert job is not None  # nobody has a page yet
            torch.cuda.synchronize()
            began = time.perf_counter()
            while job.position < length - 1:
                generator.read(job, generator.max_chunk_size)
            generator.look(job, ()).cpu()
            taken.append(time.perf_counter() - began)
            torch.cuda.synchronize()
            generator.end(job)
    use_prefill_stream(generator, None)
    generator.reset_page_table()
    return [median(taken) for taken in times]


def _one_pass(generator: PagedGenerator, job: PagedJob, width: int) -> None:
    """Either kind, until its logits are on the CPU."""
    if width > 0:
        generator.look(job, [1] * (width - 1)).cpu()
    else:
        generator.look_with_draft(job, [1] * -width, job.position).cpu()


def _generator(
    folder: Path, settings: EngineSettings, draft_folder: Path | None, progress: Progress
) -> PagedGenerator:
    with redirect_stdout(sys.stderr):  # the library prints its warnings
        import exllamav2
        import exllamav2.attn

        from completion_ls.engines.exl2.generator import PagedGenerator

        names = [one for one in (folder, draft_folder) if one]
        models: list[Any] = []
        for number, one in enumerate(names):

            def tell(done: int, of: int, number: int = number, name: str = one.name) -> None:
                share = (number + done / max(1, of)) / len(names)
                progress(f"Loading {name}", READ_SHARE * share)

            models.append(_model(one, settings, tell))
        small: dict[str, Any] = {}
        if draft_folder:
            small_cache = cache(models[1], DRAFT_CACHE, settings.context)
            small = {
                "draft_model": models[1],
                "draft_cache": small_cache,
                "num_draft_tokens": DRAFTED,
            }
        generator = PagedGenerator(
            models[0],
            cache(models[0], settings.kv_cache, settings.context),
            exllamav2.ExLlamaV2Tokenizer(models[0].config),
            max_batch_size=1,  # by default it reserves room for the logits of many
            max_q_size=OFFERED,
            max_chunk_size=chunk(settings),
            max_sampling_threads=1,
            filter_background_eval=False,
            **small,
        )
    # Nothing of ours calls it; should the library do, a key must not wait for pages to move.
    generator.defrag_cache = _stay
    return generator


def _model(folder: Path, settings: EngineSettings, tell: Callable[[int, int], None]) -> Any:
    import exllamav2

    config = exllamav2.ExLlamaV2Config(str(folder))
    checks.check_architecture(config.architecture, config.arch.arch_string)
    config.max_seq_len = settings.context
    config.max_input_len = chunk(settings)
    config.max_batch_size = 1
    config.no_sdpa = True  # it is not causal over a prompt; should pages ever be missing, this is
    if config.architecture.startswith("Qwen3"):
        config.arch.lm.headnorm = "rmsnorm"  # it takes these for layer norms
    config.arch_compat_overrides()
    has_paged = (
        exllamav2.attn.has_flash_attn_with_paged and "EXLLAMA_NO_FLASH_ATTN" not in os.environ
    )
    checks.check_paged(has_paged, config.no_flash_attn)
    model = exllamav2.ExLlamaV2(config)
    model.load(callback=tell)
    return model


def cache(model: Any, kind: CacheType, tokens: int) -> Any:
    """The library's cache of a kind, for so many tokens of a model's."""
    import exllamav2

    return getattr(exllamav2, CACHES[kind])(model, max_seq_len=tokens)


def _stay() -> None:
    """Move no pages."""
