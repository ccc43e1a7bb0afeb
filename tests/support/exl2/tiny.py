"""Tiny EXL2 models, made in a moment, and how exllamav2 loads them.

Call `support.exl2.install.install` before anything is loaded.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, Qwen2Config

import completion_ls
from support.exl2.weights import export

SPECIAL = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
READ = ("engines/contract.py", "wire/messages.py")
"""What the tokenizer has read of this package."""
VOCABULARY = 500
ROWS = 512
"""As real models do, these have rows for more tokens than there are."""
CONTEXT = 4096
BITS, DRAFT_BITS, AGREEING_BITS = 6, 4, 5

CacheKind = Literal["fp16", "q8", "q6", "q4"]
CACHES: dict[CacheKind, str] = {
    "fp16": "ExLlamaV2Cache",
    "q8": "ExLlamaV2Cache_Q8",
    "q6": "ExLlamaV2Cache_Q6",
    "q4": "ExLlamaV2Cache_Q4",
}


@dataclass(frozen=True)
class TinyModels:
    """The folders of a target and of a draft with the same vocabulary."""

    target: Path
    draft: Path


def write_tiny_models(folder: Path, agreeing: bool = False) -> TinyModels:
    """Write a target and a draft into a folder, which is made.

    Both are random Qwen2 models, and babble for ever. The draft is a smaller one, which agrees with
    the target by chance alone; or, with `agreeing`, the target in fewer bits, which does so often.
    """
    made = TinyModels(folder / "target", folder / "draft")
    target = random_model(_config(hidden=128, layers=2), seed=3)
    export(target, made.target, BITS)
    if agreeing:
        export(target, made.draft, AGREEING_BITS, seed=1)
    else:
        export(random_model(_config(hidden=64, layers=1), seed=4), made.draft, DRAFT_BITS, seed=1)
    tokenizer = _tokenizer()
    for one in (made.target, made.draft):
        tokenizer.save(str(one / "tokenizer.json"))
        (one / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIAL[0]}))
    return made


def _config(hidden: int, layers: int) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=ROWS,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.15,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
    )


def random_model(config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    """A model of random weights, in float32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=torch.float32
        )
        # Fresh biases are zero and fresh norms one: a forward that forgets them would pass.
        for name, value in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                value.data += 0.1 * torch.randn_like(value)
    return model


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([source(name) for name in READ], trainer)
    return tokenizer


def source(name: str) -> str:
    """A file of this package."""
    return (Path(completion_ls.__file__).parent / name).read_text(encoding="utf-8")


def load_model(
    folder: Path, max_seq_len: int = CONTEXT, max_input_len: int = 512, max_batch_size: int = 1
) -> Any:
    """Load a model as exllamav2's ExLlamaV2.

    max_input_len * max_batch_size are the tokens that one pass can take.
    """
    exllamav2 = importlib.import_module("exllamav2")
    config = exllamav2.ExLlamaV2Config(str(folder))
    config.max_seq_len = max_seq_len
    config.max_input_len = max_input_len
    config.max_batch_size = max_batch_size
    config.arch.lm.headnorm = "rmsnorm"  # Qwen3's, which it takes for layer norms
    config.arch_compat_overrides()
    model = exllamav2.ExLlamaV2(config)
    model.load()
    return model


def load_tokenizer(model: Any) -> Any:
    """The tokenizer of a loaded model's folder, as exllamav2's ExLlamaV2Tokenizer."""
    return importlib.import_module("exllamav2").ExLlamaV2Tokenizer(model.config)


def make_cache(model: Any, kind: CacheKind = "fp16", tokens: int = 2048) -> Any:
    """A cache of so many tokens (pages have 256), as exllamav2's ExLlamaV2CacheBase."""
    cache = getattr(importlib.import_module("exllamav2"), CACHES[kind])
    return cache(model, max_seq_len=tokens)
