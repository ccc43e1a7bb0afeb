"""The forward agrees with transformers at every position, however a prompt is cut."""

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_ls.engines.kv import KvCache
from completion_ls.engines.llama import Llama

ARCHITECTURES = ["llama", "llama3-rope-biases", "qwen2", "qwen3"]
PROMPT = tuple(random.Random(3).choices(range(97), k=150))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_all_positions_of_one_pass(tiny: Callable, architecture: str) -> None:
    model = tiny(architecture)
    llama = Llama.read(model.folder)
    kv = KvCache(llama.kv, 2**24).acquire(PROMPT, len(PROMPT))
    with torch.inference_mode():
        expected = model.reference(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(llama.forward(PROMPT, kv, len(PROMPT)), expected, atol=2e-4, rtol=0)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(ARCHITECTURES), st.lists(st.integers(1, 149), max_size=8, unique=True))
def test_cutting_a_prompt_changes_nothing(
    tiny: Callable, architecture: str, cuts: list[int]
) -> None:
    llama = Llama.read(tiny(architecture).folder)
    whole = KvCache(llama.kv, 2**24).acquire(PROMPT, len(PROMPT))
    expected = llama.forward(PROMPT, whole, len(PROMPT))
    kv = KvCache(llama.kv, 2**24).acquire(PROMPT, len(PROMPT))
    ends = [*sorted(cuts), len(PROMPT)]
    for start, end in zip([0, *ends], ends, strict=False):
        # Every other chunk gives all its logits, the rest none.
        wanted = end - start if end % 2 else 0
        got = llama.forward(PROMPT[start:end], kv, wanted)
        kv.tokens.extend(PROMPT[start:end])
        torch.testing.assert_close(got, expected[end - wanted : end], atol=1e-4, rtol=0)
    for cut, once in zip(kv.layers, whole.layers, strict=True):
        known = (slice(None), slice(None), slice(len(PROMPT)))
        torch.testing.assert_close(cut[known], once[known], atol=1e-4, rtol=0)


def test_a_pass_repeated_over_its_own_trace_gives_the_same(tiny: Callable) -> None:
    """Verification rejects tokens: what they wrote lies behind the length and must not show."""
    llama = Llama.read(tiny("qwen3").folder)
    kv = KvCache(llama.kv, 2**24).acquire(PROMPT, len(PROMPT))
    llama.forward(PROMPT[:100], kv, 0)
    kv.tokens.extend(PROMPT[:100])
    first = llama.forward(PROMPT[100:105], kv, 5)
    llama.forward(PROMPT[:30], kv, 30)
    assert torch.equal(llama.forward(PROMPT[100:105], kv, 5), first)
