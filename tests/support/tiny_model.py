"""A tiny random Llama with a byte-level BPE tokenizer: loads at once, and babbles for ever."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = ["def add(a, b):\n    return a + b\n", "for value in values:\n    print(value)\n"] * 4
HIDDEN, LAYERS, HEADS, KV_HEADS, MIDDLE = 32, 2, 4, 2, 64


def write_tiny_model(folder: Path, context: int = 4096) -> Path:
    """Write the model into a new folder."""
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab_size()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": MIDDLE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int) -> torch.Tensor:
        return 0.2 * torch.randn(*shape, generator=generator)

    head = HIDDEN // HEADS
    weights = {"model.embed_tokens.weight": random(vocabulary, HIDDEN)}
    weights["model.norm.weight"] = torch.ones(HIDDEN)
    for number in range(LAYERS):
        layer = f"model.layers.{number}."
        weights[layer + "input_layernorm.weight"] = torch.ones(HIDDEN)
        weights[layer + "post_attention_layernorm.weight"] = torch.ones(HIDDEN)
        weights[layer + "self_attn.q_proj.weight"] = random(HIDDEN, HIDDEN)
        weights[layer + "self_attn.k_proj.weight"] = random(KV_HEADS * head, HIDDEN)
        weights[layer + "self_attn.v_proj.weight"] = random(KV_HEADS * head, HIDDEN)
        weights[layer + "self_attn.o_proj.weight"] = random(HIDDEN, HIDDEN)
        weights[layer + "mlp.gate_proj.weight"] = random(MIDDLE, HIDDEN)
        weights[layer + "mlp.up_proj.weight"] = random(MIDDLE, HIDDEN)
        weights[layer + "mlp.down_proj.weight"] = random(HIDDEN, MIDDLE)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
