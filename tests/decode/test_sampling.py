"""The sampler draws from the softmax, filters as documented, and repeats itself."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from completion_ls.decode.sampling import candidates, choose, gumbel
from completion_ls.engines.contract import Sampling

LOGITS = np.array([2.0, 0.5, -1.0, 1.5, 0.0, -3.0], dtype=np.float32)

# 99.99 % quantiles of chi-square by degrees of freedom.
CHI_SQUARE = {1: 15.14, 2: 18.42, 3: 21.11, 4: 23.51, 5: 25.74}

rows = arrays.arrays(
    np.float32,
    st.integers(1, 40),
    elements=st.floats(-20, 20, width=32, allow_nan=False, allow_infinity=False),
)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 1000]),
    seed=st.integers(-(2**70), 2**70),
)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def chi_square(counts: np.ndarray, chances: np.ndarray) -> float:
    expected = counts.sum() * chances
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("vary", ["position", "seed"])
def test_draws_follow_the_softmax(temperature: float, vary: str) -> None:
    counts = np.zeros(len(LOGITS))
    for n in range(6000):
        seed, position = (7, n) if vary == "position" else (n, 7)
        token, _ = choose(LOGITS, Sampling(temperature=temperature, seed=seed), position)
        counts[token] += 1
    assert chi_square(counts, softmax(LOGITS / temperature)) < CHI_SQUARE[5]


@pytest.mark.parametrize(
    "filters, kept",
    [
        ({"top_k": 3}, [0, 1, 3]),
        ({"top_p": 0.7}, [0, 3]),
        ({"top_k": 4, "top_p": 0.97}, [0, 1, 3, 4]),
    ],
)
def test_filtered_draws_follow_the_rest_of_the_softmax(
    filters: dict[str, float], kept: list[int]
) -> None:
    counts = np.zeros(len(LOGITS))
    for position in range(6000):
        token, _ = choose(LOGITS, Sampling(temperature=1.0, seed=3, **filters), position)
        counts[token] += 1
    assert set(np.flatnonzero(counts)) == set(kept)
    chances = softmax(LOGITS)[kept] / softmax(LOGITS)[kept].sum()
    assert chi_square(counts[kept], chances) < CHI_SQUARE[len(kept) - 1]


def test_neighbouring_positions_draw_independently() -> None:
    sampling = Sampling(temperature=1.0, seed=11)
    even = np.zeros(3, dtype=np.float32)
    draws = [choose(even, sampling, position)[0] for position in range(9001)]
    pairs = np.zeros((3, 3))
    for here, after in itertools.pairwise(draws):
        pairs[here, after] += 1
    assert chi_square(pairs.ravel(), np.full(9, 1 / 9)) < 34.0  # 8 degrees of freedom


def test_every_seed_and_position_has_noise_of_its_own() -> None:
    ids = np.arange(2, dtype=np.int64)
    keys = itertools.product([-2, -1, 0, 1, 2, 3, 2**40], range(50))
    noise = np.concatenate([gumbel(seed, position, ids) for seed, position in keys])
    assert len(np.unique(noise)) == len(noise)


def test_gumbel_noise_has_the_right_moments() -> None:
    noise = gumbel(5, 17, np.arange(200_000, dtype=np.int64))
    assert abs(noise.mean() - np.euler_gamma) < 0.015
    assert abs(noise.var() - math.pi**2 / 6) < 0.04


@given(rows, samplings, st.integers(0, 10**6))
def test_the_same_key_gives_the_same_token(
    logits: np.ndarray, sampling: Sampling, position: int
) -> None:
    before = logits.copy()
    first = choose(logits, sampling, position)
    choose(logits, sampling, position + 1)
    assert choose(logits, sampling, position) == first
    assert np.array_equal(logits, before)


@given(rows, samplings, st.integers(0, 10**6))
def test_logprob_is_that_of_the_unmodified_logits(
    logits: np.ndarray, sampling: Sampling, position: int
) -> None:
    token, logprob = choose(logits, sampling, position)
    assert math.isclose(logprob, math.log(softmax(logits)[token]), abs_tol=1e-4)


@given(rows, st.integers(-(2**70), 2**70), st.integers(0, 10**6))
def test_temperature_zero_and_top_k_one_take_the_largest(
    logits: np.ndarray, seed: int, position: int
) -> None:
    best = int(logits.argmax())
    assert choose(logits, Sampling(seed=seed, top_p=0.1), position)[0] == best
    assert choose(logits, Sampling(temperature=3.0, top_k=1, seed=seed), position)[0] == best


@given(rows, st.floats(0.01, 0.99), st.integers(0, 45), st.sampled_from([0.4, 1.0, 2.0]))
@example(np.array([-1e-34, 0], dtype=np.float32), 0.25, 0, 1.0)
def test_filters_keep_what_the_plain_rule_keeps(
    logits: np.ndarray, top_p: float, top_k: int, temperature: float
) -> None:
    scaled = logits.astype(np.float64) / temperature
    order = np.argsort(-scaled, kind="stable")[: top_k or None]
    chances = softmax(scaled[order])
    kept = []
    covered = 0.0
    for token, chance in zip(order, chances, strict=True):
        kept.append(int(token))
        covered += chance
        if covered >= top_p:
            break
    got, values = candidates(logits, Sampling(temperature, top_p, top_k))
    assert np.array_equal(values, scaled[got])
    # Where the sum meets top_p to the last bit, rounding may keep one token more or less.
    if abs(covered - top_p) > 1e-9:
        assert got.tolist() == sorted(kept)
    else:
        assert abs(len(got) - len(kept)) <= 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused(bad: float) -> None:
    logits = LOGITS.copy()
    logits[2] = bad
    with pytest.raises(ValueError, match="not finite"):
        choose(logits, Sampling(), 0)


def test_a_token_of_no_probability_is_never_drawn() -> None:
    logits = LOGITS.copy()
    logits[[0, 3]] = -math.inf
    drawn = {choose(logits, Sampling(temperature=1.0), n)[0] for n in range(300)}
    assert drawn and not drawn & {0, 3}
