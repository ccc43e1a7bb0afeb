"""How much GPU memory exllamav2 will take, worked out before anything is loaded.

The sizes are those of exllamav2 0.3.2, loaded onto one GPU with `load()`, and follow its source
module by module. The engine must then set `max_seq_len` of target and draft to the context,
`max_input_len` to `Passes.chunk` with `max_batch_size` 1, and leave `max_dq_size` as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from completion_ls.engines.vram_model import Exl2Model, padded

CacheType = Literal["fp16", "q8", "q6", "q4"]

CACHE_TYPES: tuple[CacheType, ...] = ("fp16", "q8", "q6", "q4")
"""From most to fewest bits."""

PAGE = 256
"""Tokens of a page; a cache holds whole pages."""

SHORTEST_CONTEXT = 4096
"""No shorter context is proposed: prompt, suffix and other files' chunks need room."""

DRAFT_CACHE: CacheType = "fp16"
"""The draft's KV is not quantised: it is small, and unpacking it would cost time in every one of
the draft's many short passes."""

UNPACKED_ELEMENTS = 512 * 2**20
"""exllamav2's `max_dq_size`: most elements of one layer that are unpacked to float16 at once."""

RESERVE = 640 * 2**20
"""What no formula gives. The CUDA context with the kernels of torch, cuBLAS, flash-attn and
exllamav2 takes 400 to 500 MiB on cards of 24 GB, cuBLAS's workspace up to 32 MiB. The rest is for
the ends of the allocator's blocks; it is enough with PYTORCH_CUDA_ALLOC_CONF set to
expandable_segments:True. Without, every tensor of 10 MiB or more is rounded up to 2 MiB, which can
cost 0.5 GiB more for a model of 27B."""

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Passes:
    """The widest forward passes that the engine will ask for."""

    chunk: int = 2048
    """Prompt tokens of one prefill pass."""
    sequences: int = 4
    """Jobs that decode in one pass."""
    positions: int = 17
    """Tokens of one job in a decoding pass: sixteen drafted and one before them."""


@dataclass(frozen=True, slots=True)
class VramSetting:
    """What decides the need, of all that a user can choose."""

    target: Exl2Model
    draft: Exl2Model | None
    cache: CacheType
    """Of the target."""
    context: int
    """Tokens of KV that both models keep; rounded up to whole pages."""


@dataclass(frozen=True, slots=True)
class VramPlan:
    """Bytes by purpose."""

    rows: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        return sum(size for _, size in self.rows)

    def fits(self, free_bytes: int) -> bool:
        return self.total <= free_bytes


@dataclass(frozen=True, slots=True)
class VramAdvice:
    """What to do with some free memory."""

    setting: VramSetting | None
    """The one that was asked for, or the nearest that fits; None when none does."""
    plan: VramPlan
    """Of that setting; of the smallest one tried when none fits."""
    sentence: str
    """For the user."""


def plan_vram(setting: VramSetting, passes: Passes | None = None) -> VramPlan:
    """The need of `setting`."""
    passes = passes or Passes()
    context = _whole_pages(setting.context)
    models = [("target", setting.target, setting.cache, passes.positions)]
    if setting.draft is not None:
        # It drafts token by token: one position of logits.
        models.append(("draft", setting.draft, DRAFT_CACHE, 1))
    rows: list[tuple[str, int]] = []
    for role, model, cache, positions in models:
        rows += [
            (f"{role} weights", model.weights),
            (f"{role} KV cache ({cache}, {context:,} tokens)", _kv(model, cache, context)),
            (f"{role} scratch", _scratch(model, passes.chunk) + _rope(model, context)),
            (f"{role} activations", _activations(model, passes.chunk)),
            (f"{role} logits", 2 * passes.sequences * positions * padded(model.vocabulary)),
        ]
    # One page for every kind of cache tensor (element size, heads, width), shared by both models.
    kinds = {
        (item, model.kv_heads, width)
        for _, model, cache, _ in models
        for item, width in _kv_tensors(model, cache)
    }
    rows += [
        ("defragmenter", sum(PAGE * item * heads * width for item, heads, width in kinds)),
        ("CUDA context, fragmentation", RESERVE),
    ]
    return VramPlan(tuple(rows))


def advise(
    asked: VramSetting,
    free_bytes: int,
    smaller_drafts: Sequence[Exl2Model] = (),
    passes: Passes | None = None,
) -> VramAdvice:
    """The nearest setting to `asked` that fits into `free_bytes`.

    With the draft kept, every context is tried with all cache types from the one asked for down,
    then half the context; then the same with each of `smaller_drafts` (from large to small), and
    at last with no draft.
    """
    need = plan_vram(asked, passes)
    if need.fits(free_bytes):
        return VramAdvice(
            asked,
            need,
            f"{_described(asked)} needs {_gib(need.total)} of GPU memory, and "
            f"{_gib(free_bytes)} are free.",
        )
    short = (
        f"{_described(asked)} needs {_gib(need.total)} of GPU memory, but only "
        f"{_gib(free_bytes)} are free."
    )
    smallest = need
    for setting in _nearer_to_farther(asked, smaller_drafts):
        plan = plan_vram(setting, passes)
        if plan.fits(free_bytes):
            return VramAdvice(
                setting,
                plan,
                f"{short} The nearest setting that fits is {_changes(asked, setting)} "
                f"({_gib(plan.total)}).",
            )
        smallest = min(smallest, plan, key=lambda one: one.total)
    return VramAdvice(
        None,
        smallest,
        f"{short} Nothing nearer fits: the least it can do with is {_gib(smallest.total)}. Free GPU "
        "memory, or name a smaller model or one with fewer bits per weight.",
    )


def table(plan: VramPlan, free_bytes: int | None = None) -> list[str]:
    """The plan as lines of text, with what is left of `free_bytes` or missing where they are given."""
    rows = [*plan.rows, ("total", plan.total)]
    if free_bytes is not None:
        left = free_bytes - plan.total
        rows += [("free", free_bytes), ("left" if left >= 0 else "missing", abs(left))]
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {_gib(size):>11}" for name, size in rows]


def _kv_tensors(model: Exl2Model, cache: CacheType) -> list[tuple[int, int]]:
    """Keys, values and their scales: (bytes of an element, elements of one head and token)."""
    size = model.head_dim
    if cache == "fp16":
        return [(2, size), (2, size)]
    # Six bits are eight for keys and four for values.
    keys = size // 2 if cache == "q4" else size
    values = size if cache == "q8" else size // 2
    return [(1, keys), (1, values), (2, size // 32), (2, size // 32)]


def _kv(model: Exl2Model, cache: CacheType, context: int) -> int:
    """All layers keep the whole context, those with a sliding window too."""
    per_head = sum(item * width for item, width in _kv_tensors(model, cache))
    kept = model.layers * context * model.kv_heads * per_head
    if cache == "fp16":
        return kept
    # Keys and values of one layer, unpacked for attention.
    return kept + 2 * 2 * context * model.kv_heads * model.head_dim


def _scratch(model: Exl2Model, chunk: int) -> int:
    """The one buffer that all modules share in turn: the largest need of any."""
    attention_width = model.heads * model.head_dim
    attention = _buffer(chunk * max(attention_width, model.hidden)) + max(
        _unpacked(model.hidden, attention_width),
        _unpacked(model.hidden, model.kv_heads * model.head_dim),
        _unpacked(attention_width, model.hidden),
    )
    unpacked = max(
        _unpacked(model.hidden, model.intermediate),
        _unpacked(model.intermediate, model.hidden),
    )
    if model.experts:
        mlp = (
            2 * _buffer(chunk * model.hidden)
            + 2 * _buffer(chunk * model.intermediate)
            + _buffer(chunk * model.experts)
        )
    else:
        mlp = _buffer(chunk * model.hidden) + 2 * _buffer(
            chunk * max(model.hidden, model.intermediate)
        )
    head = _unpacked(model.hidden, model.vocabulary)
    return max(attention, mlp + unpacked, head)


def _unpacked(inputs: int, outputs: int) -> int:
    return 2 * min(inputs * padded(outputs), UNPACKED_ELEMENTS)


def _buffer(elements: int) -> int:
    return 2 * elements + 128


def _rope(model: Exl2Model, context: int) -> int:
    """Sines and cosines."""
    return model.rope_tables * 2 * 2 * context * model.head_dim


def _activations(model: Exl2Model, chunk: int) -> int:
    """What one layer allocates during a prefill pass, beside the scratch buffer."""
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    state = chunk * model.hidden * model.state_bytes
    # Queries, their results, keys and values; flash-attn's float32 sum of each head.
    attention = chunk * (2 * 2 * queries + 2 * 2 * keys + 4 * model.heads)
    experts = 0
    if model.experts:
        # Above four tokens the experts run in torch: the normalised state, the sum, one expert's
        # input and output; its gate, up and their product; the router's logits and weights; and a
        # mask of int64. At worst all tokens choose the same expert.
        experts = chunk * (
            4 * 2 * model.hidden
            + 3 * 2 * model.intermediate
            + (2 + 4) * model.experts
            + model.experts_per_token * (4 + 8 + 8 * model.experts)
        )
    return state + max(attention, experts)


def _whole_pages(context: int) -> int:
    return -(-context // PAGE) * PAGE


def _nearer_to_farther(
    asked: VramSetting, smaller_drafts: Sequence[Exl2Model]
) -> Iterator[VramSetting]:
    drafts: list[Exl2Model | None] = [asked.draft]
    if asked.draft is not None:
        drafts += [*smaller_drafts, None]
    contexts = [asked.context]
    while contexts[-1] > SHORTEST_CONTEXT:
        contexts.append(max(SHORTEST_CONTEXT, contexts[-1] // 2 // PAGE * PAGE))
    caches = CACHE_TYPES[CACHE_TYPES.index(asked.cache) :]
    for draft, context, cache in product(drafts, contexts, caches):
        yield replace(asked, draft=draft, context=context, cache=cache)


def _described(setting: VramSetting) -> str:
    draft = f", the draft {setting.draft.name}" if setting.draft is not None else ""
    return (
        f"{setting.target.name} with a {setting.cache} KV cache of {setting.context:,} "
        f"tokens{draft}"
    )


def _changes(asked: VramSetting, setting: VramSetting) -> str:
    changes = []
    if setting.cache != asked.cache:
        changes.append(f"a {setting.cache} KV cache")
    if setting.context != asked.context:
        changes.append(f"a context of {setting.context:,} tokens")
    if setting.draft is None and asked.draft is not None:
        changes.append("no draft model")
    elif setting.draft is not None and setting.draft != asked.draft:
        changes.append(f"the draft {setting.draft.name}")
    return " and ".join(changes)


def _gib(size: int) -> str:
    return f"{size / _GIB:,.2f} GiB"
