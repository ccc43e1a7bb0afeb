"""What the forms of weights cost, on the default model."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from completion_ls.bench.acceptance import acceptance
from completion_ls.bench.quality import perplexity
from completion_ls.engines.contract import Sampling
from completion_ls.engines.llama import Llama
from completion_ls.engines.native import load_native
from completion_ls.engines.weights import WeightKind

SOURCES = ("lsp/rules.py", "daemon/worker.py", "prompt/reading.py")
pytestmark = [pytest.mark.model, pytest.mark.long]


@pytest.fixture(scope="module")
def code(default_model_folder: Path) -> list[list[int]]:
    """Code that no model was trained on."""
    tokenizer = Tokenizer.from_file(str(default_model_folder / "tokenizer.json"))
    root = Path(__file__).parents[2] / "completion_ls"
    texts = [(root / name).read_text() for name in SOURCES]
    return [tokenizer.encode(text, add_special_tokens=False).ids[:600] for text in texts]


def test_eight_bits_cost_less_than_one_percent(
    default_model_folder: Path, code: list[list[int]]
) -> None:
    found = {}
    kinds: tuple[WeightKind, ...] = ("float32", "bf16", "int8", "int4")
    for kind in kinds:  # of these only float32 keeps keys and values as they are
        model = Llama.read(default_model_folder, kind, load_native())
        found[kind] = perplexity(model, code)
    assert 2 < found["float32"] < 100
    # The file that the default model comes from has four bits to a weight.
    for kind in kinds:
        assert abs(found[kind] / found["float32"] - 1) < 0.01, found


def test_a_draft_that_draws_with_the_models_noise_is_right_most_often(
    default_model_folder: Path, code: list[list[int]]
) -> None:
    model = Llama.read(default_model_folder, "int8", load_native())
    layers = model.shape.layers
    near, same = acceptance(model, code, [layers - 2, layers], Sampling(0.6, 0.9, 0, 1), 300)
    assert same.coupled == 1.0 > same.independent
    assert near.independent < near.coupled <= near.overlap + 0.05
