"""Architectures that the engine has no code for are computed by transformers."""

import os
import random
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch
import transformers
from transformers import Gemma2Config, GPT2Config, MistralConfig, Starcoder2Config

from completion_ls.config.settings import DraftSettings, EngineSettings
from completion_ls.engines.contract import Job
from completion_ls.engines.torch_cpu import TorchCpuEngine
from completion_ls.engines.transformers_model import TransformersModel

_SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_GROUPED = _SIZES | {"intermediate_size": 64, "num_key_value_heads": 2}
_CONFIGS = {
    "gpt2": lambda: GPT2Config(**_SIZES),
    "starcoder2": lambda: Starcoder2Config(**_GROUPED, sliding_window=None),
    "mistral-window": lambda: MistralConfig(**_GROUPED, sliding_window=128),
    "gemma2-window": lambda: Gemma2Config(**_GROUPED, head_dim=8, sliding_window=128),
}
_ids = count(1)
pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=sorted(_CONFIGS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(_CONFIGS[request.param]())
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return folder


def run(engine: TorchCpuEngine, prompt: list[int], tokens: int) -> list[int]:
    engine.add(Job(next(_ids), tuple(prompt), tokens))
    found = []
    while events := engine.step():
        found += [token for event in events for token in event.tokens]
    return found


def test_answers_are_those_of_generate(
    folder: Path,
    generate_greedy: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(tmp_path))
    chosen_settings = EngineSettings(threads=1, prefill_chunk=16)
    engine = TorchCpuEngine.load(folder, chosen_settings, draft=DraftSettings())
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    chosen = random.Random(3)
    prompt = chosen.choices(range(97), k=40)
    for _ in range(6):  # texts that go on, go back and turn off
        assert run(engine, prompt, 12) == generate_greedy(reference, tuple(prompt), 12)
        prompt = [*prompt[: chosen.randint(20, 40)], *chosen.choices(range(97), k=5)]
    assert engine.stats().prompt_tokens_reused > 0
    assert engine.stats().draft_tokens_checked > 0


def test_a_file_that_is_cut_off_leaves_what_was_read(folder: Path, tmp_path: Path) -> None:
    own = shutil.copytree(folder, tmp_path / "model")
    model = TransformersModel.read(own)
    before = [weight.clone() for weight in model._model.parameters()]
    os.truncate(own / "model.safetensors", 0)  # a mapped one would end this process now
    assert all(map(torch.equal, model._model.parameters(), before))


def test_a_window_of_attention_is_the_limit(folder: Path) -> None:
    model = TransformersModel.read(folder)
    assert model.shape.context == (128 if "window" in folder.name else 256)


def test_what_does_not_continue_text_is_refused(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=97
    )
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="not a language model that continues text"):
        TorchCpuEngine.load(tmp_path, EngineSettings(threads=1))


def test_an_unknown_architecture_is_refused_with_the_reason(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = tmp_path / "config.json"
    text = config.read_text()
    kind = transformers.AutoConfig.from_pretrained(folder).model_type
    config.write_text(text.replace(f'"{kind}"', '"no-such-model"'))
    with pytest.raises(ValueError, match="cannot compute it either"):
        TransformersModel.read(tmp_path)
