"""What `tune` tries: for each setting that changes the speed and not the model, the other values that it
may have. `engine.weights` is not among them, as fewer bits cost quality."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from completion_ls.config.settings import DraftSettings, EngineSettings, Settings
from completion_ls.engines.cores import thread_counts
from completion_ls.engines.exl2 import loading as exl2

SECTIONS = ("engine", "draft")
DRAFT_LENGTHS = (8, 4, 2, 16)
CHUNKS = {"torch_cpu": (64, 128, 256, 512), "exllamav2": (256, 512, 1024, 2048)}
CHUNK_KEY = "engine.prefill_chunk"


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A setting, or a few that belong together, and their other values given the best settings so far."""

    name: str
    others: Callable[[Settings], list[Settings]]


def coordinates(drafts: Sequence[str], threads: int) -> tuple[Coordinate, ...]:
    """All, those that may bring most first. `drafts` are models that may guess; `threads` is how many
    the engine of the present settings has."""
    return (
        Coordinate("draft source", lambda best: sources(best, drafts)),
        Coordinate("engine.threads", lambda best: thread_numbers(best, threads)),
        Coordinate("draft.max_tokens", draft_lengths),
        Coordinate(CHUNK_KEY, chunks),
        Coordinate("engine.kv_cache", kv_caches),
    )


def speculates(settings: Settings) -> bool:
    """Whether anything is guessed."""
    draft = settings.draft
    return draft.max_tokens > 0 and bool(draft.lookup or draft.model)


def without_drafts(settings: Settings) -> Settings:
    """The same with nothing guessed."""
    return _with(settings, "draft", max_tokens=0) if speculates(settings) else settings


def sources(best: Settings, drafts: Sequence[str]) -> list[Settings]:
    """No drafts first, as all drafts must be faster than none; then looking up, and each draft model
    beside that."""
    most = best.draft.max_tokens or DraftSettings().max_tokens
    found = [_with(best, "draft", max_tokens=0)] if speculates(best) else []
    found += [
        _with(best, "draft", lookup=True, model=model, max_tokens=most)
        for model in dict.fromkeys(["", *drafts])
    ]
    return _others(best, found)


def draft_lengths(best: Settings) -> list[Settings]:
    """How many tokens are guessed at most."""
    if not speculates(best):
        return []
    return _others(best, [_with(best, "draft", max_tokens=most) for most in DRAFT_LENGTHS])


def thread_numbers(best: Settings, threads: int) -> list[Settings]:
    """Numbers of threads other than the one in use."""
    if best.engine.kind != "torch_cpu":
        return []
    counts = [count for count in thread_counts() if count != threads]
    return _others(best, [_with(best, "engine", threads=count) for count in counts])


def chunks(best: Settings) -> list[Settings]:
    """Prompt tokens of a step."""
    now = chunk_in_use(best.engine)
    sizes = [size for size in CHUNKS[best.engine.kind] if size != now]
    return _others(best, [_with(best, "engine", prefill_chunk=size) for size in sizes])


def kv_caches(best: Settings) -> list[Settings]:
    """How KV is kept on a card."""
    if best.engine.kind != "exllamav2":
        return []
    kinds = get_args(EngineSettings.model_fields["kv_cache"].annotation)
    return _others(best, [_with(best, "engine", kv_cache=kind) for kind in kinds])


def chunk_in_use(engine: EngineSettings) -> int:
    """Prompt tokens of a step, as the engine takes the setting."""
    return exl2.chunk(engine) if engine.kind == "exllamav2" else engine.prefill_chunk


def changes(before: Settings, after: Settings) -> dict[str, Any]:
    """What of the engine and its drafts is different: the values of `after` by `section.key`."""
    return {
        f"{section}.{key}": value
        for section in SECTIONS
        for key, value in getattr(after, section)
        if value != getattr(getattr(before, section), key)
    }


def described(before: Settings, after: Settings) -> str:
    """The changes in words."""
    found = changes(before, after)
    if not speculates(after) and speculates(before):
        return "no drafts"
    return ", ".join(f"{key} = {_shown(value)}" for key, value in found.items())


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'


def _with(settings: Settings, section: str, **values: object) -> Settings:
    changed = getattr(settings, section).model_copy(update=values)
    return settings.model_copy(update={section: changed})


def _others(best: Settings, found: list[Settings]) -> list[Settings]:
    return [one for one in found if changes(best, one)]
