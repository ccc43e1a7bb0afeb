"""Whether the models and their KV fit into the memory that they are computed in."""

from __future__ import annotations

from pathlib import Path

import psutil

from completion_ls.config.profiles import planned
from completion_ls.config.settings import EngineSettings, Settings
from completion_ls.doctor.lines import Notes
from completion_ls.engines.exl2 import checks, loading
from completion_ls.engines.shape import is_left_to_transformers
from completion_ls.engines.vram import plan_vram, table
from completion_ls.engines.vram_headers import read_headers
from completion_ls.models import local

GIB = 2**30
BYTES = {"float32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}
"""Of one weight, without its scales."""


def room(notes: Notes, settings: Settings) -> None:
    """Prompts are cut to what is left of the context beside the output."""
    prompt, output = settings.prompt.max_tokens, settings.completion.max_tokens
    context = settings.engine.context
    if output >= context:
        notes.failed(
            "context",
            f"completion.max_tokens ({output}) leaves no room for a prompt in engine.context "
            f"({context}); lower the one or raise the other.",
        )
    elif prompt + output > context:
        notes.remark(
            "context",
            f"prompt.max_tokens ({prompt}) and completion.max_tokens ({output}) are more than "
            f"engine.context ({context}); prompts are cut to fewer than {context - output} tokens.",
        )
    else:
        notes.ok("context", f"{context} tokens hold prompt ({prompt}) and output ({output})")


def missing(notes: Notes, settings: Settings) -> None:
    """What is known without the models. A total without the draft model would look like the whole."""
    for one in planned(settings):
        notes.remark("plan", f"The models are not all here; {one}.")


def on_card(
    notes: Notes,
    settings: EngineSettings,
    folder: Path,
    draft: Path | None,
    card: checks.Card | None,
    *,
    loaded: bool,
    daemons: int,
) -> None:
    """The plan against what the card has free. `loaded`: a daemon of these settings holds it already;
    so many `daemons` answer in all."""
    try:
        plan = loading.planned(folder, settings, draft)
    except ValueError as error:
        notes.failed("plan", str(error))
        return
    need = plan_vram(plan, loading.passes(settings))
    if card is None:
        # Nobody knows what is free; the need is worth knowing before a card is bought.
        notes.remark("plan", "What would be needed, without a card to hold it:", table(need))
        return
    if loaded:
        notes.ok("plan", "The daemon that runs holds it already:", table(need))
        return
    advice = loading.advised(plan, card.free_bytes, settings, folder, local.pulled())
    lines = table(need, card.free_bytes)
    if advice.setting == plan:
        notes.ok("plan", f"It fits into what {card.name} has free:", lines)
        return
    stop = " `completion-ls daemon stop` frees what running engines hold." if daemons else ""
    notes.failed("plan", advice.sentence + stop, lines)


def on_cpu(notes: Notes, settings: EngineSettings, folders: list[Path], *, loaded: bool) -> None:
    """What the weights take at least, against what the machine has available."""
    try:
        need = sum(_weights(folder, settings) for folder in folders)
    except ValueError as error:
        notes.failed("plan", str(error))
        return
    free = psutil.virtual_memory().available
    text = (
        f"the weights take {need / GIB:.2f} GiB or a little more, KV at most "
        f"{settings.kv_memory_mb / 1024:.2f} GiB; {free / GIB:.2f} GiB of memory are available"
    )
    if need > free and not loaded:
        notes.remark(
            "plan", f"{text}, which is too little: close programs, or name a smaller model."
        )
    else:
        notes.ok("plan", text)


def _weights(folder: Path, settings: EngineSettings) -> float:
    """About how many bytes they take as the CPU engine keeps them. Raises ValueError (a sentence)."""
    kind = "float32" if is_left_to_transformers(folder) else settings.weights
    return BYTES[kind] * sum(one.elements for one in read_headers(folder).values())
