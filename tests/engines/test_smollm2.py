"""The default model's answers are those of transformers, token for token."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from completion_ls.config.settings import EngineSettings
from completion_ls.engines.contract import Job, Lane, Sampling
from completion_ls.engines.torch_cpu import TorchCpuEngine

TOKENS = 24

SNIPPETS = [
    "def fibonacci(n: int) -> int:\n    if n < 2:\n        return n\n    return ",
    "import json\nfrom pathlib import Path\n\n\ndef load(path: Path) -> dict:\n    with path.op",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "for (let i = 0; i < items.length; i++) {\n  const item = items[i];\n  if (item.visible) {\n",
    "fn main() {\n    let mut total = 0;\n    for n in 1..=10 {\n        total += n;\n    }\n    ",
    "#include <stdio.h>\n\nint main(int argc, char **argv) {\n    for (int i = 1; i < argc; i++)",
    "SELECT users.name, COUNT(orders.id)\nFROM users\nLEFT JOIN orders ON ",
    'package main\n\nimport (\n\t"fmt"\n\t"os"\n)\n\nfunc main() {\n\tif len(os.Args) < 2 {\n\t\t',
    "public class Point {\n    private final int x;\n    private final int y;\n\n    public Point(",
    '#!/bin/sh\nset -eu\n\nfor file in *.txt; do\n    if [ -f "$file" ]; then\n        ',
    "def quicksort(values):\n    if len(values) <= 1:\n        return values\n    pivot = ",
    "interface User {\n  id: number;\n  name: string;\n}\n\nexport async function getUser(id",
    "<!DOCTYPE html>\n<html>\n<head>\n  <title>Test</title>\n</head>\n<body>\n  <h1>",
    "body {\n  margin: 0;\n  font-family: sans-serif;\n}\n\n.header {\n  display: flex;\n  ",
    "import unittest\n\nclass TestAdd(unittest.TestCase):\n    def test_positive(self):\n        ",
    'def is_prime(n):\n    """Return True if n is prime."""\n    if n < 2:\n        return False\n',
    "# Read a CSV file and print each column's mean\nimport csv\n\nwith open('data.csv') as f:\n",
    "const express = require('express');\nconst app = express();\n\napp.get('/', (req, res) => {\n",
    "struct Node {\n    int value;\n    struct Node *next;\n};\n\nvoid push(struct Node **head, ",
    "def merge(left, right):\n    result = []\n    i = j = 0\n    while i < len(left) and ",
]


@pytest.fixture(scope="module")
def prompts(default_model_folder: Path) -> list[tuple[int, ...]]:
    """Each snippet after some of the others, so that lengths run from 25 to about 600 tokens."""
    tokenizer = Tokenizer.from_file(str(default_model_folder / "tokenizer.json"))
    texts = []
    for number, snippet in enumerate(SNIPPETS):
        before = SNIPPETS[number - number % 5 * 4 : number] if number % 5 else []
        texts.append("\n\n".join([*before, snippet]))
    return [tuple(tokenizer.encode(text).ids) for text in texts]


@pytest.fixture(scope="module")
def expected(
    engine: TorchCpuEngine,  # first, so that its thread count holds for transformers as well
    default_model_folder: Path,
    prompts: list[tuple[int, ...]],
    generate_greedy: Callable[..., list[int]],
) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(default_model_folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    return [generate_greedy(model, prompt, TOKENS) for prompt in prompts]


@pytest.fixture(scope="module")
def engine(default_model_folder: Path) -> TorchCpuEngine:
    # One thread: the answers are the same, and on a busy machine many threads wait for each other.
    return TorchCpuEngine.load(default_model_folder, EngineSettings(threads=1, weights="float32"))


def answer(engine: TorchCpuEngine, number: int, prompt: tuple[int, ...]) -> list[int]:
    engine.add(Job(number, prompt, TOKENS))
    tokens: list[int] = []
    while True:
        for event in engine.step():
            assert event.job_id == number
            tokens += event.tokens
            if event.finish:
                return tokens


@pytest.mark.model
def test_cold_answers_are_those_of_transformers(
    engine: TorchCpuEngine, prompts: list[tuple[int, ...]], expected: list[list[int]]
) -> None:
    for number, prompt in enumerate(prompts):
        engine.close()  # forgets all KV; the weights stay
        assert answer(engine, number, prompt) == expected[number], f"prompt {number}"


@pytest.mark.model
def test_answers_after_other_jobs_are_the_same(
    engine: TorchCpuEngine, prompts: list[tuple[int, ...]], expected: list[list[int]]
) -> None:
    for number, prompt in enumerate(prompts):
        # Typing on the way to this prompt, another document in the background, one job cancelled.
        other = prompts[number - 7]
        engine.add(Job(100, prompt[: len(prompt) * 2 // 3], 3, sampling=Sampling(0.8)))
        engine.add(Job(101, (*prompt[:-5], 40, 41), 2))
        engine.add(Job(102, other, 2, lane=Lane.BACKGROUND))
        for _ in range(4):
            engine.step()
        for job_id in (100, 101):
            engine.cancel(job_id)
        tokens = answer(engine, number, prompt)
        engine.cancel(102)
        assert tokens == expected[number], f"prompt {number}"
    assert engine.stats().prompt_tokens_reused > 0
