"""Tiny random models of every supported architecture, written by transformers itself."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from completion_ls.config.settings import EngineSettings
from completion_ls.engines.contract import Engine
from completion_ls.engines.torch_cpu import TorchCpuEngine

VOCABULARY = 97
CONTEXT = 640

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.25,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

_CONFIGS = {
    "llama": lambda: LlamaConfig(**_SIZES, tie_word_embeddings=True),
    "llama3-rope-biases": lambda: LlamaConfig(
        **_SIZES,
        tie_word_embeddings=False,
        attention_bias=True,
        mlp_bias=True,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "qwen2": lambda: Qwen2Config(**_SIZES, tie_word_embeddings=False),
    "qwen3": lambda: Qwen3Config(**_SIZES, tie_word_embeddings=True, head_dim=16),
    # Heads that the compiled code can do; in sizes of 32, so that weights of four bits are possible.
    "heads-of-16": lambda: LlamaConfig(
        **_SIZES | {"hidden_size": 96, "intermediate_size": 160},
        tie_word_embeddings=False,
        attention_bias=True,
        mlp_bias=True,
    ),
    # As many query heads to a key head as there may be.
    "one-key-head": lambda: LlamaConfig(
        **_SIZES | {"num_attention_heads": 16, "num_key_value_heads": 1},
        head_dim=16,
        tie_word_embeddings=True,
    ),
    # With a vocabulary that a tokenizer can have.
    "words": lambda: Qwen3Config(
        **_SIZES | {"vocab_size": 320}, head_dim=16, tie_word_embeddings=True
    ),
    # Large keys and values (8 KiB a token) for tests of the memory cap.
    "wide": lambda: LlamaConfig(
        **_SIZES | {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4},
        head_dim=64,
    ),
}


@dataclass(frozen=True)
class TinyModel:
    """A folder and the same model as transformers computes it."""

    folder: Path
    reference: transformers.PreTrainedModel

    def greedy(self, prompt: tuple[int, ...], count: int) -> list[int]:
        """What transformers' generate answers, `count` tokens."""
        return generate(self.reference, prompt, count)


def generate(model: transformers.PreTrainedModel, prompt: tuple[int, ...], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    settings = transformers.GenerationConfig(max_new_tokens=count, do_sample=False)
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    return out[0, len(prompt) :].tolist()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    """The tiny model of a name, made once."""
    made: dict[str, TinyModel] = {}

    def make(name: str) -> TinyModel:
        if name not in made:
            torch.manual_seed(5)
            model = transformers.AutoModelForCausalLM.from_config(
                _CONFIGS[name](), dtype=torch.float32
            )
            # Fresh biases are zero and fresh norms one: a forward that forgets them would pass.
            for key, value in model.named_parameters():
                if key.endswith("bias") or "norm" in key:
                    value.data += 0.3 * torch.randn_like(value)
            folder = tmp_path_factory.mktemp(name)
            model.save_pretrained(folder)
            made[name] = TinyModel(folder, model.eval())
        return made[name]

    return make


@pytest.fixture(scope="session", params=["torch_cpu"])
def load_engine(request: pytest.FixtureRequest) -> Callable[..., Engine]:
    """How to load the engine under test: (folder, max_context=None, **EngineSettings)."""
    loaders = {"torch_cpu": TorchCpuEngine.load}

    def load(folder: Path, max_context: int | None = None, **settings: int) -> Engine:
        chosen = EngineSettings(
            **{"threads": 1, "prefill_chunk": 16, "weights": "float32"} | settings
        )
        return loaders[request.param](folder, chosen, max_context)

    return load


@pytest.fixture(scope="session")
def generate_greedy() -> Callable[..., list[int]]:
    """transformers' own greedy answer: (model, prompt, count)."""
    return generate
