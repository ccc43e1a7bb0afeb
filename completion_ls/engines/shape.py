"""What a Hugging Face folder's config.json says about a Llama-like model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# model_type in config.json: the name in `architectures`.
SUPPORTED = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

LARGEST = 2.0**53
"""No number of a config.json is larger."""

LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")
"""How the names of architectures end that continue a text."""


class UnknownModel(ValueError):
    """The model is whole, but not one that `llama` computes."""


@dataclass(frozen=True, slots=True)
class Llama3Rope:
    """Frequency scaling of Llama 3.1 and later (rope type "llama3")."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes and variants of one model. All counts are of elements, heads, layers or tokens."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    context: int
    rope_theta: float
    rope_scaling: Llama3Rope | None
    tied: bool
    """The output layer is the embedding."""
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    head_norm: bool
    """Queries and keys are normalised per head (Qwen3)."""


def read_shape(folder: Path) -> LlamaShape:
    """Read config.json of `folder`. Raises ValueError (a sentence) when it cannot be served."""
    path = folder / "config.json"
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise ValueError(f"{path} is not a file; name the folder of a Hugging Face model.")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text; fetch the model again.") from error
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror}); name the folder of a Hugging Face model."
        ) from error
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); fetch the model again.") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no JSON object; fetch the model again.")
    kind = _supported_kind(path, config)
    _refuse_variants(path, config)
    number = _Numbers(path, config)
    heads = number.whole("num_attention_heads")
    hidden = number.whole("hidden_size")
    theta, scaling = _rope(path, config)
    shape = LlamaShape(
        vocabulary=number.whole("vocab_size"),
        hidden=hidden,
        intermediate=number.whole("intermediate_size"),
        layers=number.whole("num_hidden_layers"),
        heads=heads,
        kv_heads=number.whole("num_key_value_heads", heads),
        # Qwen3 has 128 whatever the hidden size.
        head_dim=number.whole("head_dim", 128 if kind == "qwen3" else hidden // heads),
        norm_eps=number.real("rms_norm_eps", 1e-6),
        context=number.whole("max_position_embeddings"),
        rope_theta=theta,
        rope_scaling=scaling,
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=kind == "qwen2" or bool(config.get("attention_bias")),
        out_bias=kind != "qwen2" and bool(config.get("attention_bias")),
        mlp_bias=kind == "llama" and bool(config.get("mlp_bias")),
        head_norm=kind == "qwen3",
    )
    if shape.heads % shape.kv_heads or shape.head_dim % 2:
        raise ValueError(
            f"{path}: {shape.heads} heads do not divide into {shape.kv_heads} key-value heads, or "
            f"the head size {shape.head_dim} is odd; the file is damaged."
        )
    return shape


def is_left_to_transformers(folder: Path) -> bool:
    """Whether the CPU engine does not compute the model itself."""
    try:
        read_shape(folder)
    except UnknownModel:
        return True
    except ValueError:  # refused, whoever computes it
        return False
    return False


def _supported_kind(path: Path, config: Mapping[str, Any]) -> str:
    """The model_type. `architectures` decides where both are given: a classifier made from a Llama
    has the same model_type."""
    kind = config.get("model_type")
    given = config.get("architectures") or [SUPPORTED.get(str(kind), str(kind))]
    names = [str(name)[:100] for name in (given if isinstance(given, list) else [given])]
    by_name = {name: kind for kind, name in SUPPORTED.items()}
    if len(names) != 1 or names[0] not in by_name:
        raise UnknownModel(
            f"{path}: the architecture {', '.join(names[:3])} is not supported by the CPU "
            f"engine; it computes {', '.join(by_name)}."
        )
    return by_name[names[0]]


def _refuse_variants(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse what would load and then compute something else than the model."""
    if config.get("quantization_config"):
        raise ValueError(
            f"{path}: the weights are quantised ({_method(config['quantization_config'])}); the "
            "CPU engine reads float32, float16 and bfloat16. Name the unquantised model."
        )
    if config.get("hidden_act", "silu") != "silu":
        raise UnknownModel(
            f"{path}: the activation {repr(config['hidden_act'])[:50]} is not supported; only 'silu' is."
        )
    kinds = config.get("layer_types") or ["full_attention"]
    is_full = isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)
    if config.get("use_sliding_window") or not is_full:
        raise UnknownModel(
            f"{path}: sliding-window attention is not supported by the CPU engine; name a model "
            "with full attention."
        )


def _method(quantisation: object) -> str:
    if isinstance(quantisation, Mapping) and quantisation.get("quant_method"):
        return str(quantisation["quant_method"])[:50]
    return "unknown method"


def _rope(path: Path, config: Mapping[str, Any]) -> tuple[float, Llama3Rope | None]:
    """Base and scaling, from `rope_parameters` (transformers 5) or the two older keys."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise ValueError(f"{path}: the rope parameters are not an object; the file is damaged.")
    number = _Numbers(path, given)
    theta = number.real("rope_theta", _Numbers(path, config).real("rope_theta", 10000.0))
    kind = given.get("rope_type", given.get("type", "default"))
    partial = given.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if kind not in ("default", "llama3") or partial not in (None, 1):
        raise UnknownModel(
            f"{path}: the rope type {repr(kind)[:50]} (rotated part: {str(partial)[:50]}) is not "
            "supported by the CPU engine; it computes 'default' and 'llama3' over whole heads."
        )
    if kind == "default":
        return theta, None
    return theta, Llama3Rope(
        factor=number.real("factor"),
        low_freq_factor=number.real("low_freq_factor"),
        high_freq_factor=number.real("high_freq_factor"),
        original_context=number.whole("original_max_position_embeddings"),
    )


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Positive numbers of a JSON object; errors name file and key."""

    path: Path
    values: Mapping[str, Any]

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.real(key, default)
        if value != int(value):
            raise self._error(key)
        return int(value)

    def real(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._error(key)
        if not 0 < value <= LARGEST:
            raise self._error(key)
        return float(value)

    def _error(self, key: str) -> ValueError:
        return ValueError(
            f"{self.path}: {key!r} must be a positive number but is {repr(self.values.get(key))[:50]}; the "
            "file is damaged or of another kind of model."
        )
