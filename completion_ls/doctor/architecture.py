"""Whether the engine computes a model of this architecture, and on what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from completion_ls.config.settings import EngineSettings
from completion_ls.doctor.lines import Notes
from completion_ls.engines.exl2 import checks
from completion_ls.engines.shape import LANGUAGE_MODELS, LlamaShape, UnknownModel, read_shape
from completion_ls.engines.vram_model import read_exl2


def look(
    notes: Notes, role: str, folder: Path, settings: EngineSettings, *, compiled: bool
) -> bool:
    """Whether it does. `compiled`: the CPU engine has its compiled functions."""
    label = f"{role}: architecture"
    before = len(notes.lines)
    if settings.kind == "exllamav2":
        _on_card(notes, label, folder, settings, is_draft=role == "draft")
    else:
        _on_cpu(notes, label, folder, settings, compiled=compiled)
    return all(line.verdict != "failed" for line in notes.lines[before:])


def _on_card(
    notes: Notes, label: str, folder: Path, settings: EngineSettings, *, is_draft: bool
) -> None:
    try:
        model = read_exl2(folder)
        checks.check_context(folder, settings.context, is_draft=is_draft)
    except ValueError as error:
        notes.failed(label, str(error))
        return
    notes.ok(label, f"{_names(folder)}, {model.layers} layers: exllamav2 computes it")


def _on_cpu(
    notes: Notes, label: str, folder: Path, settings: EngineSettings, *, compiled: bool
) -> None:
    try:
        shape = read_shape(folder)
    except UnknownModel as error:
        _by_transformers(notes, label, folder, error)
        return
    except ValueError as error:
        notes.failed(label, str(error))
        return
    what = f"{_names(folder)}, {shape.layers} layers, {shape.context:,} positions"
    if why := _slow(shape, settings, compiled=compiled):
        notes.remark(label, f"{what}: torch computes it, several times slower, as {why}.")
    else:
        notes.ok(label, f"{what}: the compiled kernels compute it")


def _slow(shape: LlamaShape, settings: EngineSettings, *, compiled: bool) -> str:
    """Why the compiled functions do not compute it; empty where they do."""
    if not compiled:
        return "there are no compiled kernels"
    from completion_ls.engines.compiled import can_compute

    if can_compute(shape, settings.weights):
        return ""
    if settings.weights == "float32":
        return "engine.weights is float32; int8, int4 and bf16 have kernels"
    return "the kernels do not know its sizes"


def _by_transformers(notes: Notes, label: str, folder: Path, error: UnknownModel) -> None:
    """What `llama` does not know is left to transformers, which has a list of what it knows."""
    names, kind = _names(folder), str(_config(folder).get("model_type"))
    try:
        from transformers import __version__
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    except ImportError:
        notes.failed(
            label, f"{error} transformers, which knows others, cannot be imported; install it."
        )
        return
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and names.endswith(LANGUAGE_MODELS):
        notes.remark(
            label, f"{names}: transformers computes it in float32, which is slower; {error}"
        )
    else:
        notes.failed(
            label,
            f"{error} transformers {__version__} does not know it either; name another model.",
        )


def _names(folder: Path) -> str:
    found = _config(folder).get("architectures")
    return ", ".join(map(str, found)) if isinstance(found, list) else "no architecture named"


def _config(folder: Path) -> Mapping[str, Any]:
    """config.json, which was found to be an object."""
    values: Mapping[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return values
