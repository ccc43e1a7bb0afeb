"""The sizes of an EXL2 model that decide how much GPU memory exllamav2 takes for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from completion_ls.engines.vram_headers import TensorHeader, read_headers

MAX_CONFIG = 16 * 2**20
"""Most bytes of a config.json; real ones have a few thousand."""


@dataclass(frozen=True, slots=True)
class Exl2Model:
    """Counts are of elements, heads, layers or tokens; sizes in bytes."""

    name: str
    weights: int
    """Bytes of all tensors on the GPU. The embedding is not among them: exllamav2 keeps it in host
    memory, unless the output layer is the embedding itself and not quantised."""
    layers: int
    hidden: int
    intermediate: int
    """Of one expert, where there are experts."""
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    experts: int = 0
    """0 for a dense model."""
    experts_per_token: int = 0
    rope_tables: int = 1
    state_bytes: int = 2
    """Of one element of the hidden state between blocks."""


@dataclass(frozen=True, slots=True)
class _Architecture:
    """How exllamav2 0.3.2 loads the models of one name in `architectures`."""

    prefix: str = ""
    """Before the names of the tensors of the language model; others belong to a vision part, which
    is not loaded."""
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    head_norms: bool = False
    experts: bool = False
    tied: bool = False
    rope_tables: int = 1
    state_bytes: int = 2
    defaults: Mapping[str, int] = field(default_factory=dict)
    """For what config.json may leave out."""


_ARCHITECTURES = {
    "LlamaForCausalLM": _Architecture(),
    "Qwen2ForCausalLM": _Architecture(),
    "Qwen3ForCausalLM": _Architecture(head_norms=True),
    "Qwen3MoeForCausalLM": _Architecture(head_norms=True, experts=True),
    # Sliding-window layers have one more RoPE table; their KV is kept whole all the same.
    "Gemma3ForConditionalGeneration": _Architecture(
        prefix="language_model.",
        norms=(
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ),
        head_norms=True,
        tied=True,
        rope_tables=2,
        state_bytes=4,
        defaults={
            "vocab_size": 262208,
            "head_dim": 256,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
        },
    ),
}

_QUANTISED_PARTS = ("q_weight", "q_invperm", "q_scale", "q_scale_max", "q_groups")


def read_exl2(folder: Path) -> Exl2Model:
    """Read config.json and the headers of the weights of `folder`; no tensor is read.

    Raises ValueError (a sentence) when the folder holds no EXL2 model that exllamav2 can load, or
    one that is damaged or incomplete.
    """
    config = _read_config(folder)
    kind = _architecture(config)
    heads = config.whole("num_attention_heads", kind.defaults)
    hidden = config.whole("hidden_size")
    layers = config.whole("num_hidden_layers")
    vocabulary = config.whole("vocab_size", kind.defaults)
    experts = config.whole("num_experts") if kind.experts else 0
    kv_heads = config.whole("num_key_value_heads", {"num_key_value_heads": heads, **kind.defaults})
    head_dim = config.whole("head_dim", {"head_dim": hidden // heads, **kind.defaults})
    if heads % kv_heads:
        raise ValueError(
            f"{config.path}: {heads} heads do not divide into {kv_heads} key-value heads; the file "
            "is damaged. Fetch the model again."
        )
    tensors = _Tensors(folder, read_headers(folder))
    weights = sum(tensors.nbytes(key) for key in _module_keys(kind, layers, experts))
    head = kind.prefix + "lm_head"
    if tensors.has(head):
        weights += tensors.nbytes(head)
    elif kind.tied or config.values.get("tie_word_embeddings"):
        weights += 2 * padded(vocabulary) * hidden
    else:
        raise tensors.missing(head)
    return Exl2Model(
        name=folder.resolve().name,
        weights=weights,
        layers=layers,
        hidden=hidden,
        intermediate=config.whole("moe_intermediate_size" if kind.experts else "intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=vocabulary,
        experts=experts,
        experts_per_token=config.whole("num_experts_per_tok") if kind.experts else 0,
        rope_tables=kind.rope_tables,
        state_bytes=kind.state_bytes,
    )


def padded(outputs: int) -> int:
    """Outputs of a layer as exllamav2 keeps it: a multiple of 32."""
    return outputs + -outputs % 32


def _module_keys(kind: _Architecture, layers: int, experts: int) -> Iterator[str]:
    """The modules that exllamav2 puts on the GPU, without the output layer."""
    inner = [*kind.norms, *(f"self_attn.{name}_proj" for name in "qkvo")]
    if kind.head_norms:
        inner += ["self_attn.q_norm", "self_attn.k_norm"]
    parts = ("gate_proj", "up_proj", "down_proj")
    for layer in range(layers):
        block = f"{kind.prefix}model.layers.{layer}."
        yield from (block + name for name in inner)
        if not kind.experts:
            yield from (f"{block}mlp.{part}" for part in parts)
            continue
        yield f"{block}mlp.gate"
        for expert in range(experts):
            yield from (f"{block}mlp.experts.{expert}.{part}" for part in parts)
    yield kind.prefix + "model.norm"


@dataclass(frozen=True, slots=True)
class _Tensors:
    folder: Path
    by_name: Mapping[str, TensorHeader]

    def has(self, key: str) -> bool:
        return f"{key}.q_weight" in self.by_name or f"{key}.weight" in self.by_name

    def nbytes(self, key: str) -> int:
        """Bytes on the GPU of one linear layer or norm."""
        bias = self.by_name.get(key + ".bias")
        bias_bytes = 2 * bias.elements if bias else 0
        if f"{key}.q_weight" not in self.by_name:
            # Whatever the file has becomes float16.
            return 2 * self._named(key + ".weight").elements + bias_bytes
        parts = {part: self._named(f"{key}.{part}") for part in _QUANTISED_PARTS}
        # q_invperm (int32) becomes two permutations of int16; a group map of two int16 a row is
        # made when loading.
        group_map = 4 * parts["q_invperm"].elements
        return sum(part.nbytes for part in parts.values()) + group_map + bias_bytes

    def missing(self, key: str) -> ValueError:
        return ValueError(
            f"The weights in {self.folder} lack {key}; the model is incomplete or not of the "
            "architecture its config.json names. Fetch it again."
        )

    def _named(self, name: str) -> TensorHeader:
        found = self.by_name.get(name)
        if found is None:
            raise self.missing(name)
        return found


@dataclass(frozen=True, slots=True)
class _Config:
    path: Path
    values: Mapping[str, Any]

    def whole(self, key: str, defaults: Mapping[str, int] | None = None) -> int:
        """A positive number, from where exllamav2 looks: the top, then `text_config`."""
        inner = self.values.get("text_config")
        value = self.values.get(key)
        if value is None and isinstance(inner, Mapping):
            value = inner.get(key)
        if value is None:
            value = (defaults or {}).get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not 0 < value < 2**31:
            raise ValueError(
                f"{self.path}: {key!r} must be a positive whole number but is "
                f"{repr(value)[:50]}; the file is damaged or of another kind of model. Fetch the "
                "model again."
            )
        return value


def _read_config(folder: Path) -> _Config:
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{path} is missing; name the folder of an EXL2 model.")
    try:
        with path.open("rb") as file:
            text = file.read(MAX_CONFIG + 1)
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror}); make it readable or fetch the model again."
        ) from error
    if len(text) > MAX_CONFIG:
        raise ValueError(
            f"{path} has more than {MAX_CONFIG // 2**20} MiB, which no config.json has; fetch the "
            "model again."
        )
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON; fetch the model again.") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds no JSON object; fetch the model again.")
    return _Config(path, values)


def _architecture(config: _Config) -> _Architecture:
    """Refuses what is not EXL2 first: that is the likelier mistake."""
    quantisation = config.values.get("quantization_config")
    method = quantisation.get("quant_method") if isinstance(quantisation, Mapping) else None
    if method != "exl2":
        what = "are not quantised" if method is None else f"are quantised with {str(method)[:50]!r}"
        raise ValueError(
            f"{config.path}: the weights {what}, and the exllamav2 engine reads EXL2 only. Name "
            "an EXL2 quantisation of this model."
        )
    names = config.values.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    if not isinstance(name, str) or name not in _ARCHITECTURES:
        # exllamav2 would load it as Llama, with no more than a warning, and compute nonsense.
        raise ValueError(
            f"{config.path}: the architecture {str(name)[:100]!r} is not supported by the "
            f"exllamav2 engine; it computes {', '.join(_ARCHITECTURES)}. Name another model."
        )
    return _ARCHITECTURES[name]
