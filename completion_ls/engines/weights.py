"""The weights of a Llama-like model, read from safetensors files and laid out for the forward."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from completion_ls.engines.linear import (
    GROUP,
    Bf16Linear,
    Float32Linear,
    Int4Linear,
    Int8Linear,
    Linear,
    Table,
)
from completion_ls.engines.shape import LlamaShape

WeightKind = Literal["int8", "int4", "bf16", "float32"]

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One transformer block. `qkv` and `gate_up` are fused: one product reads them in one go."""

    attention_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """All weights; norms are float32. `head` is `embedding` itself where they are tied."""

    embedding: Table
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Linear

    @property
    def nbytes(self) -> int:
        """Bytes held; a tied output layer counts once."""
        kept = {id(tensor): tensor.nbytes for tensor in self._tensors()}
        return sum(kept.values())

    def _tensors(self) -> Iterator[Tensor]:
        yield self.norm
        linears = [self.embedding, self.head]
        for layer in self.layers:
            yield from (layer.attention_norm, layer.mlp_norm)
            yield from (norm for norm in (layer.q_norm, layer.k_norm) if norm is not None)
            linears += [layer.qkv, layer.out, layer.gate_up, layer.down]
        for linear in linears:
            yield from tensors_of(linear).values()


def read_weights(folder: Path, shape: LlamaShape, kind: WeightKind = "float32") -> LlamaWeights:
    """All weights of `folder`, as `kind` says.

    Raises ValueError (a sentence) when files are missing, incomplete, of another format, or do not
    hold exactly the tensors that `shape` calls for.
    """
    with _TensorFiles(folder) as files:
        hidden = shape.hidden
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        layers = []
        for index in range(shape.layers):
            block = f"model.layers.{index}."
            attention, mlp = block + "self_attn.", block + "mlp."
            head_norms: list[Tensor | None] = [None, None]
            if shape.head_norm:
                head_norms = [
                    files.vector(f"{attention}{name}_norm.weight", shape.head_dim)
                    for name in ("q", "k")
                ]
            qkv_parts = [
                (f"{attention}{name}_proj", rows)
                for name, rows in zip("qkv", (q, kv, kv), strict=True)
            ]
            gate_up_parts = [(f"{mlp}{name}_proj", shape.intermediate) for name in ("gate", "up")]
            down_parts = [(mlp + "down_proj", hidden)]
            layers.append(
                LayerWeights(
                    attention_norm=files.vector(block + "input_layernorm.weight", hidden),
                    qkv=_made(kind, *files.linear(qkv_parts, hidden, shape.qkv_bias)),
                    q_norm=head_norms[0],
                    k_norm=head_norms[1],
                    out=_made(
                        kind, *files.linear([(attention + "o_proj", hidden)], q, shape.out_bias)
                    ),
                    mlp_norm=files.vector(block + "post_attention_layernorm.weight", hidden),
                    gate_up=_made(kind, *files.linear(gate_up_parts, hidden, shape.mlp_bias)),
                    down=_made(kind, *files.linear(down_parts, shape.intermediate, shape.mlp_bias)),
                )
            )
        table = [("model.embed_tokens", shape.vocabulary)]
        embedding = _table(kind, files.linear(table, hidden, bias=False)[0])
        norm = files.vector("model.norm.weight", hidden)
        head: Linear = embedding
        if not shape.tied:
            output = [("lm_head", shape.vocabulary)]
            head = _table(kind, files.linear(output, hidden, bias=False)[0])
        files.refuse_rest(shape)
    return LlamaWeights(embedding, tuple(layers), norm, head)


def tensors_of(linear: Linear) -> dict[str, Tensor]:
    """A layer's tensors by the names of its fields."""
    found = {field.name: getattr(linear, field.name) for field in fields(linear)}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _made(kind: WeightKind, weight: Tensor, bias: Tensor | None) -> Linear:
    if kind == "int4" and weight.shape[1] % GROUP == 0:
        return Int4Linear.of(weight, bias)
    table = _table(kind, weight)
    return replace(table, bias=bias)


def _table(kind: WeightKind, weight: Tensor) -> Table:
    """Rows that are looked up are kept in eight bits where the other weights have four."""
    if kind == "float32":
        return Float32Linear(weight, None)
    if kind == "bf16":
        return Bf16Linear(weight.bfloat16(), None)
    return Int8Linear.of(weight, None)


class _TensorFiles:
    """The safetensors files of a folder as one table of named tensors."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = ExitStack()
        self._file_of: dict[str, Any] = {}
        self._unread: set[str] = set()

    def __enter__(self) -> _TensorFiles:
        with ExitStack() as stack:
            for name in self._file_names():
                handle = stack.enter_context(self._opened(name))
                self._file_of.update(dict.fromkeys(handle.keys(), handle))
            self._open = stack.pop_all()
        self._unread = set(self._file_of)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file_of.clear()
        self._open.close()

    def vector(self, name: str, length: int) -> Tensor:
        """A tensor [length]."""
        self._check(name, (length,))
        out = torch.empty(length)
        self._copy(name, out)
        return out

    def linear(
        self, parts: Sequence[tuple[str, int]], columns: int, bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the named layers (name, rows) stacked into one."""
        for name, count in parts:
            self._check(name + ".weight", (count, columns))
            if bias:
                self._check(name + ".bias", (count,))
        rows = sum(count for _, count in parts)
        weight = torch.empty(rows, columns)
        offsets = torch.empty(rows) if bias else None
        start = 0
        for name, count in parts:
            self._copy(name + ".weight", weight[start : start + count])
            if offsets is not None:
                self._copy(name + ".bias", offsets[start : start + count])
            start += count
        return weight, offsets

    def refuse_rest(self, shape: LlamaShape) -> None:
        """Raise ValueError when something was not read: the model computes more than we do."""
        rest = {name for name in self._unread if not name.endswith("rotary_emb.inv_freq")}
        if shape.tied:
            rest.discard("lm_head.weight")
        if rest:
            raise ValueError(
                f"The weights in {self._folder} hold {len(rest)} tensors that do not belong to the "
                f"model its config.json describes (for instance {min(rest)}). Fetch the model "
                "again, or name one of a supported architecture."
            )

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        """Before there is memory for it: what config.json announces may be of any size."""
        handle = self._file_of.get(name)
        if handle is None:
            raise ValueError(
                f"The weights in {self._folder} lack the tensor {name}; the model is incomplete or "
                "not of the architecture its config.json names. Fetch it again."
            )
        found = handle.get_slice(name).get_shape()
        if tuple(found) != shape:
            raise ValueError(
                f"The tensor {name} in {self._folder} is {list(found)} where config.json "
                f"asks for {list(shape)}; the files do not belong together. Fetch the model "
                "again."
            )

    def _copy(self, name: str, out: Tensor) -> None:
        tensor = self._file_of[name].get_tensor(name)
        if tensor.dtype not in _FLOATS:
            raise ValueError(
                f"The tensor {name} in {self._folder} is of the type {tensor.dtype}; the CPU "
                "engine reads float32, float16 and bfloat16. Name the unquantised model."
            )
        # A copy even where no conversion is needed: the tensor is a view of the mapped file, and a
        # file that is replaced under a running daemon would end it with SIGBUS.
        out.copy_(tensor)
        self._unread.discard(name)

    def _opened(self, name: str) -> Any:
        path = self._folder / name
        if not path.is_file():
            raise ValueError(
                f"The weight file {path} is missing; the model was not fetched completely. Fetch "
                "it again."
            )
        try:
            return safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"{path} is not a complete safetensors file ({error}); fetch the model again."
            ) from error

    def _file_names(self) -> list[str]:
        index = self._folder / "model.safetensors.index.json"
        if index.is_file() and not (self._folder / "model.safetensors").is_file():
            try:
                names = sorted(
                    set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
                )
            except (
                OSError,
                ValueError,
                LookupError,
                TypeError,
                AttributeError,
                RecursionError,
            ) as error:
                raise ValueError(f"{index} is damaged; fetch the model again.") from error
            for name in names:
                if not isinstance(name, str) or Path(name).name != name:
                    raise ValueError(
                        f"{index} names a file outside its folder ({name!r}); refused."
                    )
            return names
        single = "model.safetensors"
        if (self._folder / single).is_file():
            return [single]
        pickles = sorted(
            p.name for end in ("bin", "pt", "pth", "ckpt") for p in self._folder.glob(f"*.{end}")
        )
        if pickles:
            raise ValueError(
                f"{self._folder} has its weights only in {pickles[0]}, a pickle, and unpickling "
                "runs whatever code the file holds. Only safetensors are read: name a model that "
                "has them, or convert it with transformers' save_pretrained."
            )
        raise ValueError(
            f"{self._folder} holds no model.safetensors and no model.safetensors.index.json; name "
            "the folder of a Hugging Face model with its weights."
        )
