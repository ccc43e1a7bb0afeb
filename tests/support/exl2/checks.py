"""What the compiled modules refuse, and what they would crash of, as RuntimeError."""

from __future__ import annotations

import torch
from torch import Tensor


def require(condition: bool, message: str) -> None:
    """Raise RuntimeError where a condition does not hold."""
    if not condition:
        raise RuntimeError(message)


def require_dtype(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Raise RuntimeError where a tensor that is given has another dtype."""
    require(
        tensor.is_meta or tensor.dtype == dtype, f"{name} must be {dtype}, and is {tensor.dtype}"
    )


def require_reference(condition: bool, what: str) -> None:
    """Raise NotImplementedError for what only the compiled module can do."""
    if not condition:
        raise NotImplementedError(f"the reference kernels do not cover {what}")


def given(tensor: Tensor) -> Tensor | None:
    """The tensor, or None: exllamav2 hands over a tensor on the meta device in its place."""
    return None if tensor.is_meta else tensor
