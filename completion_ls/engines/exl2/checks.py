"""What must hold before exllamav2 may load a model. Each check has a sentence of its own.

The library checks few of these: an unknown architecture or a missing number in config.json gives
a model that talks nonsense, and a vocabulary that does not fit gives drafts that are never right.
Nothing here needs torch or exllamav2, but `find_card`, which imports torch when all pieces are there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from completion_ls.engines.exl2.gpu import count_gpus

EXLLAMAV2 = "0.3.2"
"""The only version that this engine was made for: it works on the library's own page table."""
FLASH_ATTN = (2, 5, 7)
"""The first version that reads paged keys and values."""
AMPERE = 8
"""The first compute capability that flash-attn computes on."""
WITHOUT_A_CARD = "`completion-ls init --profile cpu` chooses a small model that needs no card."
KNOW_THEIR_ROPE = ("Gemma3ForConditionalGeneration",)
"""Architectures for which exllamav2 has the right `rope_theta` by itself."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One thing that must be installed."""

    name: str
    found: str | None
    """Which version; None where it is missing or of no use."""
    how_to_get: str


@dataclass(frozen=True, slots=True)
class Card:
    """The GPU that models are loaded on."""

    name: str
    free_bytes: int


def check_assertions() -> None:
    """Raise RuntimeError under `python -O`, which takes out the library's checks of sizes: a pass
    that is too wide then hangs or writes where it must not."""
    if not __debug__:
        raise RuntimeError(
            "exllamav2 checks its sizes with assertions, which `python -O` and PYTHONOPTIMIZE take "
            "out. Start completion-ls without them."
        )


def pieces() -> list[Piece]:
    """All that the engine needs, found without importing any of it."""
    return [_gpu(), _torch(), _exllamav2(), _extension(), _flash_attn(), _tokenizers()]


def check_pieces(found: Sequence[Piece]) -> None:
    """Raise RuntimeError naming all that is missing; short, as editors show it in a pop-up."""
    missing = [piece.name for piece in found if piece.found is None]
    if missing:
        raise RuntimeError(
            f"The exllamav2 engine cannot run here. Missing: {', '.join(missing)}; `completion-ls "
            f"doctor` says how to get each. Or {WITHOUT_A_CARD}"
        )


def find_card() -> Card:
    """The first GPU, once all pieces are there. Imports torch. Raises RuntimeError (a sentence)."""
    check_pieces(pieces())
    # Read when torch first allocates; `vram.RESERVE` counts on it.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    import torch

    check_cuda(torch.cuda.is_available(), torch.cuda.get_device_capability)
    free, _ = torch.cuda.mem_get_info(0)
    return Card(torch.cuda.get_device_name(0), free)


def check_cuda(is_available: bool, capability: Callable[[], tuple[int, int]]) -> None:
    """Raise RuntimeError where torch sees no GPU, or one that flash-attn does not know; `capability`
    gives (major, minor) of the first one."""
    if not is_available:
        raise RuntimeError(
            "torch finds no usable GPU: its CUDA version and the driver may not fit together, or "
            "CUDA_VISIBLE_DEVICES hides the card. Update the NVIDIA driver; or "
            f"{WITHOUT_A_CARD}"
        )
    major, minor = capability()
    if major < AMPERE:
        raise RuntimeError(
            f"The GPU has the compute capability {major}.{minor}, and flash-attn needs {AMPERE}.0 "
            f"(Ampere: RTX 30, A100) or higher. {WITHOUT_A_CARD}"
        )


def check_paged(has_paged_attention: bool, is_disabled: bool) -> None:
    """Raise RuntimeError where exllamav2, once imported, will not use flash-attn: without it there
    are no pages, and its other attention lets tokens of a prompt see those behind them."""
    if not has_paged_attention:
        raise RuntimeError(
            "exllamav2 cannot use flash-attn, without which its attention over a prompt is wrong: "
            f"it is missing, older than {_dotted(FLASH_ATTN)}, built for another torch, or "
            "EXLLAMA_NO_FLASH_ATTN is set. Install one that fits, and unset the variable."
        )
    if is_disabled:
        raise RuntimeError(
            "exllamav2 has switched flash-attn off for this model, whose attention the installed "
            "version cannot compute. Install a newer flash-attn, or name another model."
        )


def check_rope(folder: Path) -> None:
    """Raise ValueError where config.json says how positions are turned in a place where exllamav2
    does not look, as newer versions of transformers write it: it would take a default."""
    config = _config(folder)
    newer = _inner(config, "rope_parameters") or _inner(
        _inner(config, "text_config"), "rope_parameters"
    )
    names = config.get("architectures")
    knows = isinstance(names, list) and names[:1] and names[0] in KNOW_THEIR_ROPE
    if _whole_or_float(config, "rope_theta") is None and not knows:
        value = newer.get("rope_theta")
        which = f'"rope_theta": {value}' if isinstance(value, (int, float)) else "its rope_theta"
        raise ValueError(
            f"{folder / 'config.json'} has no rope_theta at its top, and exllamav2 would compute "
            f"with 10000. Add {which} there, outside of rope_parameters, as the original model has it."
        )
    kind = newer.get("rope_type", "default")
    if kind != "default" and not config.get("rope_scaling") and not knows:
        raise ValueError(
            f"{folder / 'config.json'} has its {str(kind)[:50]!r} rope only in rope_parameters, where "
            "exllamav2 does not look. Add it as rope_scaling at the top, as the original model has "
            "it."
        )


def check_context(folder: Path, context: int, *, is_draft: bool) -> None:
    """Raise ValueError where a model knows fewer positions than the cache holds. The draft model
    works on the pages of the target, so it must know as many."""
    most = _whole_or_float(_config(folder), "max_position_embeddings")
    if most is None or most >= context:
        return
    fits = int(most) // 256 * 256
    if is_draft:
        raise ValueError(
            f"The draft model in {folder} knows {int(most):,} positions, fewer than engine.context "
            f"({context:,}). Set engine.context to {fits} or less, name another draft in "
            "draft.model, or leave that empty."
        )
    raise ValueError(
        f"The model in {folder} knows {int(most):,} positions, fewer than engine.context "
        f"({context:,}). Set engine.context to {fits} or less."
    )


def check_architecture(asked: str, loaded_as: str) -> None:
    """Raise ValueError where exllamav2, given the architecture of config.json, has taken another:
    it loads what it does not know as Llama, with no more than a printed warning."""
    if asked != loaded_as:
        raise ValueError(
            f"exllamav2 {EXLLAMAV2} does not know the architecture {asked[:100]!r} and would "
            f"compute it as {loaded_as}, which gives nonsense. Name another model."
        )


def _gpu() -> Piece:
    how = (
        "Install the driver of your NVIDIA card; `nvidia-smi` must list it, and CUDA_VISIBLE_DEVICES "
        "must not hide it."
    )
    count = count_gpus()
    found = f"{count} GPU" + "s" * (count > 1) if count > 0 else None
    return Piece("NVIDIA driver and GPU", found, how)


def _torch() -> Piece:
    name = "torch with CUDA"
    how = "Install a torch made for CUDA, as its makers say for your driver."
    spec = _spec("torch")
    if spec is None or spec.origin is None:
        return Piece(name, None, how)
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return Piece(name, None, how)
    cuda = re.search(r"""^cuda\b[^=\n]*=\s*['"]([^'"]+)['"]""", text, re.MULTILINE)
    if cuda is None:
        return Piece(name, None, f"The torch that is here ({_version('torch')}) has none. {how}")
    return Piece(name, f"{_version('torch')}, CUDA {cuda[1]}", how)


def _exllamav2() -> Piece:
    how = f"pip install exllamav2=={EXLLAMAV2}."
    found = _version("exllamav2") if _spec("exllamav2") else None
    if found is not None and found.partition("+")[0] != EXLLAMAV2:
        how = f"Version {found} is here, and {EXLLAMAV2} is needed: {how}"
        found = None
    return Piece("exllamav2", found, how)


def _extension() -> Piece:
    how = (
        "Install a wheel of exllamav2's releases that was made for your torch, CUDA and Python. "
        "Without it, exllamav2 would compile it at its first import, with nvcc and for minutes, which "
        "nobody waits for at a keystroke; so the engine does not start."
    )
    spec = _spec("exllamav2_ext")
    # A folder of that name (its sources, say) is found, too, but is no module.
    is_module = spec is not None and spec.origin is not None
    return Piece("exllamav2's compiled extension", "found" if is_module else None, how)


def _flash_attn() -> Piece:
    least = _dotted(FLASH_ATTN)
    how = f"Install a wheel of flash-attn {least} or newer that was made for your torch and CUDA."
    found = _version("flash_attn") if _spec("flash_attn") else None
    numbers = tuple(int(part) for part in re.findall(r"\d+", found or "")[:3])
    if found is not None and numbers < FLASH_ATTN:
        how = f"Version {found} is here, which cannot read pages. {how}"
        found = None
    return Piece("flash-attn", found, how)


def _tokenizers() -> Piece:
    found = _version("tokenizers") if _spec("tokenizers") else None
    return Piece("tokenizers", found, "pip install tokenizers.")


def _spec(module: str) -> Any:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):  # imported, but with nothing said of where from
        return None


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _dotted(numbers: Sequence[int]) -> str:
    return ".".join(map(str, numbers))


def _config(folder: Path) -> Mapping[str, Any]:
    """config.json, which `vram_model.read_exl2` has found to be an object."""
    values: Mapping[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return values


def _inner(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def _whole_or_float(config: Mapping[str, Any], key: str) -> float | None:
    """A number, from where exllamav2 looks: the top, then `text_config`."""
    for place in (config, _inner(config, "text_config")):
        value = place.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
    return None
