"""Weights in pickle files are refused everywhere, in the same words."""

from __future__ import annotations

from collections.abc import Iterable

ENDS = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
WHY = (
    "a pickle runs whatever code it holds when it is loaded, so none is. Take a model that has "
    "safetensors (or GGUF), or convert it with transformers' save_pretrained where you trust it."
)


def first(names: Iterable[str]) -> str | None:
    """The first of these file names that is one of a pickle."""
    return next((name for name in sorted(names) if name.lower().endswith(ENDS)), None)
