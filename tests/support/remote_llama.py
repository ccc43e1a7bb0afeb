"""llama.cpp's server on the default model's GGUF, as a process of the tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from gguf import GGUFWriter, TokenType
from tokenizers import pre_tokenizers

from completion_ls.models import catalogue, fetch

CONTEXT = 4096
"""Of each slot."""


class Llama:
    """A server that is listening."""

    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The whole answer to a request."""
        found = httpx2.post(self.url + path, json=body, timeout=120).raise_for_status().json()
        return dict(found)

    def greedy(self, prompt: tuple[int, ...], count: int) -> list[int]:
        """The most probable output, computed without anything from before."""
        wanted = {"n_predict": count, "temperature": 0.0, "samplers": ["temperature"]}
        more = {"cache_prompt": False, "return_tokens": True, "ignore_eos": False}
        return list(self.post("/completion", {"prompt": list(prompt), **wanted, **more})["tokens"])

    def logprobs(self, prompt: tuple[int, ...], most: int) -> dict[int, float]:
        """Of the most probable next tokens."""
        wanted = {"prompt": list(prompt), "n_predict": 1, "n_probs": most, "temperature": 0.0}
        banned: list[list[object]] = []
        while True:  # it tells nothing where it chose half a character
            more = {"logit_bias": banned, "return_tokens": True}
            answer = self.post("/completion", wanted | more)
            if "completion_probabilities" in answer:
                break
            banned += [[token, False] for token in answer["tokens"]]
        [told] = answer["completion_probabilities"]
        return {one["id"]: one["logprob"] for one in told["top_logprobs"]}

    def busy(self) -> list[int]:
        """The slots in which something is computed now."""
        slots = httpx2.get(self.url + "/slots", timeout=60).raise_for_status().json()
        return [slot["id"] for slot in slots if slot["is_processing"]]


def write_fim_gguf(path: Path, marks: tuple[str, str, str]) -> None:
    """A tiny model of random numbers that has FIM tokens of these names, and a token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", *marks]
    tokens = special + alphabet
    hidden, inner = 64, 128
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_block_count(1)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(hidden // 2)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    kinds = [TokenType.CONTROL] * len(special) + [TokenType.NORMAL] * len(alphabet)
    writer.add_token_types(kinds)
    writer.add_token_merges([f"{alphabet[0]} {alphabet[1]}"])
    writer.add_eos_token_id(0)
    for number, part in enumerate(("pre", "suf", "mid"), start=1):
        writer.add_uint32(f"tokenizer.ggml.fim_{part}_token_id", number)
    shapes = {
        "token_embd.weight": (len(tokens), hidden),
        "output_norm.weight": (hidden,),
        "blk.0.attn_norm.weight": (hidden,),
        **{f"blk.0.attn_{part}.weight": (hidden, hidden) for part in ("q", "k", "v", "output")},
        "blk.0.ffn_norm.weight": (hidden,),
        "blk.0.ffn_gate.weight": (inner, hidden),
        "blk.0.ffn_up.weight": (inner, hidden),
        "blk.0.ffn_down.weight": (hidden, inner),
    }
    random = np.random.default_rng(7)
    for name, shape in shapes.items():
        writer.add_tensor(name, random.standard_normal(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@contextmanager
def llama(slots: int = 2, port: int = 0, gguf: Path | None = None) -> Iterator[Llama]:
    """A server as long as this lasts, by default of the default model."""
    if gguf is None:
        entry = catalogue.find(catalogue.DEFAULT)
        assert entry
        gguf = fetch.gguf_path(entry)
    sizes = ["--context", str(slots * CONTEXT), "--threads", "2", "--slots", str(slots)]
    command = [sys.executable, "-P", "-m", "completion_ls.bench.llama_cpp", str(gguf), *sizes]
    process = subprocess.Popen(
        [*command, "--port", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout
        line = process.stdout.readline()
        assert line, "llama.cpp's server did not start"
        yield Llama(line.split()[0])
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe
            pipe.close()
