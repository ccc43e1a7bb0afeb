"""Drafts change how many passes a text takes, and nothing of the text."""

import random
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_ls.bench.acceptance import truncated
from completion_ls.config.settings import EngineSettings
from completion_ls.decode.draft_length import PassCost
from completion_ls.decode.sampling import candidates
from completion_ls.engines.contract import Job, Sampling
from completion_ls.engines.draft_model import DraftModel
from completion_ls.engines.drafts import Drafts
from completion_ls.engines.kv import KvCache
from completion_ls.engines.llama import Llama
from completion_ls.engines.native import load_native
from completion_ls.engines.torch_cpu import TorchCpuEngine

pytestmark = pytest.mark.long

FREE = PassCost(((1, 1.0), (17, 1.0)))
"""Passes whose width costs nothing: as much is guessed as may be."""
TOKENS = 24
GREEDY = Sampling()
_ids = count(1)


class OftenRight(DraftModel):
    """Guesses as the model itself, but for every third token."""

    def propose(self, text: Sequence[int], count: int, sampling: Sampling) -> tuple[int, ...]:
        tokens = super().propose(text, count, sampling)
        places = range(len(text), len(text) + len(tokens))
        wrong = ((place + sampling.seed) % 3 == 0 for place in places)
        return tuple((token + add) % 97 for token, add in zip(tokens, wrong, strict=True))


class Engines:
    """One model with drafts of every kind."""

    def __init__(self, model: Llama) -> None:
        self.model = model
        self.plain = self.make(None)
        self.all = [
            self.make(Drafts(FREE, lookup=lookup, model=guessing, most=most))
            for most in (1, 3, 7, 16)
            for lookup, guessing in (
                (True, None),
                (False, DraftModel(truncated(model, 2))),
                (False, OftenRight(model)),
                (True, DraftModel(model)),  # the best there can be
            )
        ]

    def make(self, drafts: Drafts | None) -> TorchCpuEngine:
        chosen = EngineSettings(threads=1, prefill_chunk=16)
        return TorchCpuEngine(self.model, chosen, self.model.shape.context, None, drafts)


@pytest.fixture(scope="module", params=["float32", "int8"])
def engines(request: pytest.FixtureRequest, tiny: Callable) -> Engines:
    folder = tiny("qwen3").folder
    return Engines(Llama.read(folder, request.param, load_native()))


def job(prompt: tuple[int, ...], tokens: int, sampling: Sampling = GREEDY, **more: object) -> Job:
    return Job(next(_ids), prompt, tokens, sampling=sampling, **more)


def run(engine: TorchCpuEngine, one: Job) -> tuple[list[int], list[float]]:
    engine.add(one)
    tokens, logprobs = [], []
    while events := engine.step():
        for event in events:
            tokens += event.tokens
            logprobs += event.logprobs
    return tokens, logprobs


def prompt(seed: int, length: int) -> tuple[int, ...]:
    """Tokens with repetitions, so that there is something to look up."""
    chosen = random.Random(seed)
    phrases = [chosen.choices(range(97), k=5) for _ in range(4)]
    return tuple(token for _ in range(length) for token in chosen.choice(phrases))[:length]


@pytest.mark.long
@settings(max_examples=8, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 150),
    st.sampled_from([GREEDY, Sampling(0.8, 0.9, 0, 5), Sampling(1.0, 1.0, 20, 77)]),
)
def test_the_text_is_the_same_whatever_the_draft(
    engines: Engines, seed: int, length: int, sampling: Sampling
) -> None:
    text = prompt(seed, length)
    tokens, logprobs = run(engines.plain, job(text, TOKENS, sampling))
    for engine in engines.all:
        found, found_logprobs = run(engine, job(text, TOKENS, sampling, document=str(seed % 3)))
        assert found == tokens
        assert found_logprobs == pytest.approx(logprobs, abs=1e-3)


@settings(max_examples=10, deadline=None)
@given(
    st.integers(0, 10**6), st.lists(st.integers(0, TOKENS - 2), min_size=1, max_size=4), st.data()
)
def test_the_text_is_the_same_whatever_was_typed_on_the_way(
    engines: Engines, seed: int, stops: list[int], data: st.DataObject
) -> None:
    sampling = Sampling(0.8, 0.95, 0, seed)
    text = prompt(seed, 40)
    tokens, _ = run(engines.plain, job(text, TOKENS, sampling))
    engine = data.draw(st.sampled_from(engines.all))
    for stop in stops:
        # Another text is begun and left half-way, as a key that was taken back.
        other = job((*text, *tokens[:stop], data.draw(st.integers(0, 96))), TOKENS, sampling)
        engine.add(other)
        for _ in range(data.draw(st.integers(0, 9))):
            engine.step()
        engine.cancel(other.id)
        assert (
            run(engine, job((*text, *tokens[:stop]), TOKENS - stop, sampling))[0] == tokens[stop:]
        )


def test_right_guesses_save_passes(engines: Engines) -> None:
    best = engines.make(Drafts(FREE, lookup=False, model=DraftModel(engines.model), most=7))
    run(best, job(prompt(1, 30), 25, Sampling(0.8, 0.9, 0, 3)))
    stats = best.stats()
    # 24 tokens behind the first: three passes of a token and a draft of seven, all of it accepted.
    assert (stats.draft_tokens_checked, stats.draft_tokens_accepted) == (21, 21)
    assert stats.passes == 3 + 2  # the prompt's chunks


def test_an_earlier_suggestion_is_a_draft_after_a_key_that_it_did_not_foresee(
    engines: Engines,
) -> None:
    looking = engines.make(Drafts(FREE, lookup=True, model=None, most=7))
    text = prompt(2, 30)
    tokens, _ = run(looking, job(text, 20))
    before = looking.stats().passes
    assert run(looking, job((*text, *tokens[:4]), 16, fresh=False))[0] == tokens[4:]
    assert looking.stats().passes - before <= 4
    # The same from another document, whose cache is dropped so that it has to be computed.
    before = looking.stats().passes
    assert (
        run(looking, job((*text[1:], *tokens[:4]), 16))[0]
        == run(engines.plain, job((*text[1:], *tokens[:4]), 16))[0]
    )


@pytest.mark.long
def test_what_is_drawn_follows_the_models_own_distribution(engines: Engines) -> None:
    """The second token's, over many seeds, with a draft that is often right and often wrong."""
    temperature, top_k, draws = 0.7, 8, 1000
    start = prompt(3, 20)
    model = engines.model
    kv = KvCache(model.kv, 2**30).acquire(start, len(start) + 1)
    assert kv is not None
    first = model.forward(start, kv, 1)[0]
    kv.extend(start)
    expected = np.zeros(97)
    for token, chance in filtered(first, temperature, top_k):
        for after, other in filtered(model.forward([token], kv, 1)[0], temperature, top_k):
            expected[after] += chance * other
    engine = engines.make(Drafts(FREE, lookup=False, model=OftenRight(model), most=3))
    seen = np.zeros(97)
    for seed in range(draws):
        sampling = Sampling(temperature, 1.0, top_k, seed)
        seen[run(engine, job(start, 3, sampling, fresh=True))[0][1]] += 1
    stats = engine.stats()
    assert 0.1 < stats.draft_tokens_accepted / stats.draft_tokens_checked < 0.9
    likely = expected * draws >= 5
    assert seen[expected == 0].sum() == 0
    groups = [(seen[n], expected[n] * draws) for n in np.flatnonzero(likely)]
    groups.append((seen[~likely].sum(), max(expected[~likely].sum() * draws, 1e-9)))
    chi_square = sum((o - e) ** 2 / e for o, e in groups if e > 1)
    freedom = len(groups) - 1
    # Far beyond any quantile that is of use: mean plus five standard deviations.
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def filtered(logits: torch.Tensor, temperature: float, top_k: int) -> list[tuple[int, float]]:
    ids, scaled = candidates(logits.numpy(), Sampling(temperature, 1.0, top_k, 0))
    chances = np.exp(scaled - scaled.max())
    return list(zip(ids.tolist(), (chances / chances.sum()).tolist(), strict=True))
