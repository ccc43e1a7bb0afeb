"""Weights in the form that an engine wants, made from a model's folder once.

They are read into memory and not left mapped: whoever cuts a mapped file off kills all who use it.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, uint8

from completion_ls.config.paths import cache_dir
from completion_ls.engines.linear import Bf16Linear, Int4Linear, Int8Linear, Linear, Table
from completion_ls.engines.shape import LlamaShape, read_shape
from completion_ls.engines.weights import (
    LayerWeights,
    LlamaWeights,
    WeightKind,
    read_weights,
    tensors_of,
)

_log = logging.getLogger(__name__)

LARGE = 2**26
"""Bytes."""
FORMAT = 1
"""Raised when the same weights would be stored otherwise: old files are then made again."""
STALE_S = 3600
"""What was begun so many seconds ago is left from a process that was ended."""
_UNUSABLE = (OSError, SafetensorError, KeyError, TypeError, ValueError)


def load_weights(folder: Path, shape: LlamaShape, kind: WeightKind) -> LlamaWeights:
    """The weights of a Hugging Face folder as `kind` says.

    float32 is read as it is. Other kinds are made once and kept in the cache folder; the file is
    checked against its own digest. Raises ValueError as `read_weights`.
    """
    if kind == "float32":
        return read_weights(folder, shape)
    file = _cache_file(folder, kind)
    try:
        return _stored(file, shape)
    except _UNUSABLE as error:
        if file.exists():
            _log.warning("%s is damaged and made again (%s)", file, type(error).__name__)
    try:
        if _is_large(folder):
            # In a process of its own: this one would keep much of the memory that it takes.
            command = [sys.executable, "-P", "-m", __name__, str(folder), kind, str(file)]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
            )
            if done.returncode != 0:
                raise OSError(
                    done.stderr.strip().rpartition("\n")[2] or "the conversion was killed"
                )
        else:
            store(folder, kind, file)
        return _stored(file, shape)
    except _UNUSABLE as error:
        weights = read_weights(folder, shape, kind)  # where the folder is at fault this says so
        _log.warning("the converted weights could not be kept (%s); next time takes longer", error)
        return weights


def _cache_file(folder: Path, kind: WeightKind) -> Path:
    """Named after the folder, and after its files as they are now."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".json"))
    files = [path for path in files if path.is_file()]  # not a link to what is gone
    state = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    place = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    content = hashlib.sha256(repr((FORMAT, state)).encode()).hexdigest()[:16]
    return cache_dir() / "weights" / f"{place}-{kind}-{content}.safetensors"


def _is_large(folder: Path) -> bool:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) > LARGE


def store(folder: Path, kind: WeightKind, file: Path) -> None:
    """Convert the weights of a Hugging Face folder into `file`. Raises ValueError and OSError."""
    tensors = _by_name(read_weights(folder, read_shape(folder), kind))
    file.parent.mkdir(parents=True, exist_ok=True)
    # A folder, as `save_file` writes through a file of its own beside the one it is given.
    with tempfile.TemporaryDirectory(dir=file.parent, suffix=".part") as place:
        made = Path(place, file.name)
        made.touch()
        mode = made.stat().st_mode  # `save_file` would close it to all others
        save_file(tensors, made, metadata={"sha256": _digest(tensors)})
        made.chmod(mode)
        made.replace(file)
    with suppress(OSError):
        _tidy(file)


def _tidy(file: Path) -> None:
    """Remove what the model's folder held before, and what was never finished."""
    place, kind, _ = file.name.split("-")
    for old in file.parent.glob(f"{place}-{kind}-*.safetensors"):
        if old != file:
            old.unlink(missing_ok=True)
    for part in file.parent.glob("*.part"):
        if part.stat().st_mtime < time.time() - STALE_S:
            shutil.rmtree(part, ignore_errors=True)


def _stored(file: Path, shape: LlamaShape) -> LlamaWeights:
    with safe_open(file, framework="pt") as handle:
        tensors = {name: handle.get_tensor(name).clone() for name in handle.keys()}  # noqa: SIM118
        if handle.metadata()["sha256"] != _digest(tensors):
            raise ValueError("The digest differs.")
    return _from_names(tensors, shape)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.flatten().view(uint8).numpy().data)
    return digest.hexdigest()


def _by_name(weights: LlamaWeights) -> dict[str, Tensor]:
    tensors = {"norm": weights.norm}

    def add(name: str, part: Linear | Tensor | None) -> None:
        if isinstance(part, Tensor):
            tensors[name] = part
        elif part is not None:
            tensors.update({f"{name}.{field}": one for field, one in tensors_of(part).items()})

    add("embedding", weights.embedding)
    if weights.head is not weights.embedding:
        add("head", weights.head)
    for index, layer in enumerate(weights.layers):
        for field in _LAYER_FIELDS:
            add(f"{index}.{field}", getattr(layer, field))
    return tensors


def _from_names(tensors: Mapping[str, Tensor], shape: LlamaShape) -> LlamaWeights:
    def linear(name: str) -> Linear:
        weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
        if f"{name}.pairs" in tensors:
            return Int4Linear(weight, tensors[f"{name}.pairs"], bias)
        if f"{name}.scale" in tensors:
            return Int8Linear(weight, tensors[f"{name}.scale"], bias)
        return Bf16Linear(weight, bias)

    def layer(index: int) -> LayerWeights:
        parts: dict[str, Any] = {}
        for field in _LAYER_FIELDS:
            name = f"{index}.{field}"
            is_linear = f"{name}.weight" in tensors
            parts[field] = linear(name) if is_linear else tensors.get(name)
        return LayerWeights(**parts)

    embedding: Table = linear("embedding")  # type: ignore[assignment]  # stored from one
    return LlamaWeights(
        embedding,
        tuple(layer(index) for index in range(shape.layers)),
        tensors["norm"],
        embedding if shape.tied else linear("head"),
    )


_LAYER_FIELDS = tuple(LayerWeights.__dataclass_fields__)


if __name__ == "__main__":
    store(Path(sys.argv[1]), cast(WeightKind, sys.argv[2]), Path(sys.argv[3]))
