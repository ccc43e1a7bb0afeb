"""Measures the engine on exllamav2, loaded as the daemon loads it, on this machine's card.

On the reference kernels, without a card, all runs the same, and the times mean nothing.
"""

from __future__ import annotations

import itertools
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import torch
from torch import Tensor

from completion_ls.bench.card_figures import Part, differences
from completion_ls.bench.own_engine import generate
from completion_ls.engines.contract import Job
from completion_ls.engines.exl2 import generator as generators
from completion_ls.engines.exl2.engine import PAGE, Exl2Engine
from completion_ls.engines.exl2.generator import PagedGenerator, PagedJob
from completion_ls.engines.exl2.loading import SETTLED

WIDTHS = (1, 2, 4, 8, 16, 17)
WIDE = 16
"""Tokens of the pass that says how near two tokens were."""
_ids = itertools.count(1 << 32)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: counts of tokens, of passes and of repetitions."""

    context: int = 2048
    long: int = 8192
    chunk: int = 2048
    settle: int = SETTLED
    passes: int = 50
    repeats: int = 3
    keys: int = 20
    copy_bytes: int = 2**30
    pieces: int = 3
    piece: int = 1024
    tokens: int = 200


DRY = Sizes(520, 1000, 512, 0, 2, 1, 2, 2**20, 2, 200, 40)


def synchronize() -> None:
    """Wait for the card."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed_ms(act: Callable[[], object]) -> float:
    """How long it takes until the card has done it."""
    synchronize()
    began = time.perf_counter()
    act()
    synchronize()
    return 1e3 * (time.perf_counter() - began)


def generator_of(engine: Exl2Engine) -> PagedGenerator:
    """What an engine runs on."""
    return engine._generator


def machine() -> dict[str, str]:
    """Names and versions."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none (reference kernels)"
    found = {
        "GPU": gpu,
        "driver": _driver(),
        "CUDA": str(torch.version.cuda),
        "Python": platform.python_version(),
        "torch": torch.__version__,
    }
    found |= {name: _version(name) for name in ("exllamav2", "flash_attn")}
    return found | {"load average": f"{os.getloadavg()[0]:.1f}"}


def copied_per_s(size: int) -> float:
    """Bytes a second that a large copy on the card reads and writes: twice those it copies. The best of
    a few."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    best_ms = min(timed_ms(lambda: target.copy_(source)) for _ in range(10))
    return 2 * size / (best_ms / 1e3)


def measure_passes(
    part: Part,
    generator: PagedGenerator,
    sizes: Sizes,
    context: int,
    widths: Sequence[int],
    *,
    key: str,
    what: str,
    draft: bool = False,
) -> None:
    """Milliseconds of passes of these widths behind so many tokens; of the draft model, too."""
    with _read(generator, random_ids(generator, context), sizes.chunk) as job:
        for width in widths:

            def look(width: int = width) -> Tensor:
                return generator.look(job, [1] * (width - 1))

            with _as_wide_as_asked():
                value = _settled_ms(look, sizes)
                part.add(f"{key}_{width}", f"{what}, {width} wide", value, "ms")
                _check_finite(part, f"{what}, {width} wide", look())
        if draft:
            last = job.text(job.position, job.position + 1)

            def guess() -> Tensor:
                return generator.look_with_draft(job, last, job.position)

            part.add("draft_ms", "draft: a token", _settled_ms(guess, sizes), "ms")
            _check_finite(part, "the draft", guess())


def measure_prefill(
    part: Part, generator: PagedGenerator, sizes: Sizes, length: int, chunk: int
) -> None:
    """Prompt tokens a second, through both models, in chunks of one size."""
    ids = random_ids(generator, length + 1)

    def run() -> None:
        job = _begin(generator, ids)
        while job.position < length:
            generator.read(job, chunk)
        synchronize()
        generator.end(job)

    run()
    value = median(timed_ms(run) for _ in range(sizes.repeats))
    text = f"prefill of {length:,} in chunks of {chunk:,}"
    part.add(f"prefill_{chunk}", text, 1e3 * length / value, "tokens/s", "through both models")


def cold_ms(engine: Exl2Engine, sizes: Sizes) -> float:
    """Until the first token of a prompt of `sizes.context` that nobody has seen."""
    ids = random_ids(generator_of(engine), sizes.context)
    times = [_first(engine, ids, fresh=True)[0] for _ in range(sizes.repeats + 1)]
    return median(times[1:])


def measure_keystroke(part: Part, engine: Exl2Engine, sizes: Sizes, floor_ms: float) -> None:
    """Until the first token of a prompt that is known but for its last token."""
    ids = random_ids(generator_of(engine), sizes.context + sizes.keys)
    ends = range(sizes.context, sizes.context + sizes.keys + 1)
    keys = [_first(engine, ids[:end]) for end in ends][1:]
    value = median(took for took, _ in keys)
    most = max(computed for _, computed in keys)
    note = f"one token more behind {sizes.context:,}; at most {most} computed"
    part.add("keystroke_ms", "first token after a keystroke", value, "ms", note)
    part.add("keystroke_over_floor", "... times the floor", value / floor_ms, "")


def measure_text(
    part: Part, load: Callable[[str], Exl2Engine], pieces: Sequence[Sequence[int]], tokens: int
) -> None:
    """Tokens a second behind pieces of code, without drafts and with both kinds, and whether the text
    stays the same. `load` makes an engine for "plain", "model" or "lookup"."""
    plain = load("plain")
    prompts = [tuple(piece) for piece in pieces]
    texts, rate = _texts(plain, prompts, tokens)
    part.add("plain_per_s", "pair: without drafts", rate, "tokens/s")
    compared = 0
    for kind, what in (("model", "with the draft model"), ("lookup", "with that and look-up")):
        engine = load(kind)
        _, rate = _texts(engine, prompts, tokens)
        stats = engine.stats()
        share = stats.draft_tokens_accepted / max(1, stats.draft_tokens_checked)
        checked = f"of {stats.draft_tokens_checked:,} checked"
        part.add(f"{kind}_per_s", f"pair: {what}", rate, "tokens/s")
        part.add(f"{kind}_accepted", "... of drafts accepted", 100 * share, "%", checked)
        for prompt, text in zip(prompts, texts, strict=True):
            part.differences += _differences(plain, engine, prompt, text)
            compared += len(text)
    part.add("compared_tokens", "... tokens compared with those without", compared, "")


def random_ids(generator: PagedGenerator, count: int) -> list[int]:
    """Token ids of no text."""
    chosen = torch.randint(
        generator.vocabulary, (count,), generator=torch.Generator().manual_seed(1)
    )
    return [int(token) for token in chosen]


def _texts(
    engine: Exl2Engine, prompts: Sequence[tuple[int, ...]], tokens: int
) -> tuple[list[list[int]], float]:
    done = [generate(engine, prompt, tokens) for prompt in prompts]
    rest = sum(len(one["tokens"]) - one["first"] for one in done)
    return [one["tokens"] for one in done], rest / sum(sum(one["steps_s"]) for one in done)


def _differences(
    plain: Exl2Engine, drafting: Exl2Engine, prompt: tuple[int, ...], text: Sequence[int]
) -> list[float]:
    generator = generator_of(plain)

    def drafted(start: int) -> list[int]:
        found = generate(drafting, (*prompt, *text[:start]), len(text) - start)
        return list(found["tokens"])

    def below_highest(at: int, token: int) -> float:
        ids = (*prompt, *text[:at])
        with _read(generator, ids[: 1 - WIDE], PAGE) as job:
            row = generator.look(job, ids[1 - WIDE :])[-1]
            return float(row.max() - row[token])

    return differences(text, drafted, below_highest)


def _first(engine: Exl2Engine, prompt: Sequence[int], *, fresh: bool = False) -> tuple[float, int]:
    """Milliseconds until a token, and how many tokens of the prompt were computed."""
    # More than one token, or the time of letting go of the job would count.
    job = Job(next(_ids), tuple(prompt), 2, fresh=fresh)
    synchronize()
    began = time.perf_counter()
    engine.add(job)
    while True:
        (event,) = engine.step()
        if event.tokens:
            break
    took = time.perf_counter() - began
    while engine.step():
        pass
    return 1e3 * took, event.computed


@contextmanager
def _read(generator: PagedGenerator, ids: Sequence[int], chunk: int) -> Iterator[PagedJob]:
    job = _begin(generator, ids)
    while job.position < len(ids) - 1:
        generator.read(job, chunk)
    yield job
    generator.end(job)


def _begin(generator: PagedGenerator, ids: Sequence[int]) -> PagedJob:
    job = generator.begin(ids, WIDE, fresh=True)
    if job is None:
        raise RuntimeError(f"The cache has no pages for {len(ids):,} tokens.")
    return job


def _settled_ms(act: Callable[[], object], sizes: Sizes) -> float:
    for _ in range(sizes.settle):
        act()
    return median(timed_ms(act) for _ in range(sizes.passes))


@contextmanager
def _as_wide_as_asked() -> Iterator[None]:
    """Have passes not filled up to a width that is warm: each is to be seen as it is."""
    names = vars(generators)
    filled = names["filled"]
    names["filled"] = lambda width: width
    try:
        yield
    finally:
        names["filled"] = filled


def _check_finite(part: Part, what: str, logits: Tensor) -> None:
    if not bool(torch.isfinite(logits).all()):
        part.problems.append(f"Logits of {what} are not finite; its figures may mean nothing.")


def _driver() -> str:
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found: Any = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return str(found.stdout.partition("\n")[0]).strip() or "unknown"


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"
