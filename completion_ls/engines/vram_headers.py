"""What the safetensors files of a folder say of their tensors, from the headers alone."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeGuard

# The format's own limit. A mixture of 128 experts in one file has about 13 MB.
MAX_HEADER = 100_000_000
MAX_DIMENSIONS = 8

_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2,
    "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor that a file holds."""

    shape: tuple[int, ...]
    nbytes: int
    """Bytes in the file."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def read_headers(folder: Path) -> dict[str, TensorHeader]:
    """The tensors of all *.safetensors in `folder` by name; no tensor is read.

    Raises ValueError (a sentence) when there is no such file, or when one is damaged or incomplete.
    """
    paths = sorted(p for p in folder.glob("*.safetensors") if not p.name.startswith("."))
    if not paths:
        raise ValueError(
            f"{folder} holds no .safetensors file; name the folder of an EXL2 model with its "
            "weights."
        )
    found: dict[str, TensorHeader] = {}
    for path in paths:
        found.update(_read_file(path))
    return found


def _read_file(path: Path) -> dict[str, TensorHeader]:
    if not path.is_file():  # opening a pipe would wait for ever
        raise ValueError(f"{path} is not a file; fetch the model again.")
    try:
        with path.open("rb") as file:
            text, data_bytes = _header_text(path, file)
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror}); make it readable or fetch the model again."
        ) from error
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "its header is not JSON") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not an object")
    return {
        name: _tensor(path, name, entry, data_bytes)
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _header_text(path: Path, file: BinaryIO) -> tuple[bytes, int]:
    """The header, and how many bytes of tensors follow it."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise ValueError(f"{path} is not a complete safetensors file; fetch the model again.")
    if length > MAX_HEADER:
        raise _damaged(path, f"its header would have {length:,} bytes")
    return file.read(length), size - 8 - length


def _tensor(path: Path, name: str, entry: object, data_bytes: int) -> TensorHeader:
    values = entry if isinstance(entry, Mapping) else {}
    shape, offsets = values.get("shape"), values.get("data_offsets")
    item = _ITEM_BYTES.get(str(values.get("dtype")))
    if (
        item is None
        or not _are_whole(shape)
        or not _are_whole(offsets)
        or len(shape) > MAX_DIMENSIONS
        or len(offsets) != 2
        or offsets[1] - offsets[0] != item * math.prod(shape)
    ):
        raise _damaged(path, f"what its header says of {name[:100]!r} makes no sense")
    if offsets[1] > data_bytes:
        raise ValueError(
            f"{path} is not complete: it ends before the tensor {name[:100]!r} does. Fetch the "
            "model again."
        )
    return TensorHeader(tuple(shape), offsets[1] - offsets[0])


def _are_whole(values: object) -> TypeGuard[list[int]]:
    # Below 2**63, as the format stores them; longer numbers would only cost time.
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**63 for v in values)


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is damaged: {why}. Fetch the model again.")
