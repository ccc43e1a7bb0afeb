"""Covering the unfinished word, against a brute-force enumeration over a small vocabulary."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from completion_ls.decode import covering
from completion_ls.decode.covering import Branch, Covered, Covering
from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.contract import Sampling
from support.tiny_model import write_tiny_model

WORDS = [" ret", " values", "\n        ", " ", "(", " va", "for", "\n", " pri", "x", " ü", " a"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer)


@pytest.fixture(scope="module", autouse=True)
def _no_limits() -> Iterator[None]:
    """With random logits every branch has weight, and the tokenizer objects to most candidates; a
    language model leaves a few of each, so in use both are limited."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(covering, "MOST_BRANCHES", 1000)
        patch.setattr(covering, "MOST_CHECKS", 10**6)
        yield


class Model:
    """Logits that depend on the tokens before, and on nothing else."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed, self.passes = size, seed, 0

    def __call__(self, branch: Branch) -> np.ndarray:
        key = zlib.crc32(repr((self.seed, branch)).encode())
        return np.random.default_rng(key).normal(0, 2.5, self.size)

    def look_into(self, branches: Sequence[Branch]) -> list[np.ndarray]:
        self.passes += 1
        return [self(branch) for branch in branches]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def by_text(
    branches: dict[Branch, float], vocabulary: Vocabulary
) -> dict[tuple[bytes, int], float]:
    """Probabilities of texts (special tokens, which have no text, apart)."""
    found: dict[tuple[bytes, int], float] = {}
    for branch, mass in branches.items():
        special = 0 if vocabulary.bytes_of(branch[-1]) else branch[-1]
        text = b"".join(map(vocabulary.bytes_of, branch))
        found[text, special] = found.get((text, special), 0.0) + mass
    return found


def brute_force(
    model: Model, vocabulary: Vocabulary, word: bytes, temperature: float = 1.0
) -> dict[Branch, float]:
    """Every canonical sequence whose text first reaches beyond the word, with its probability."""
    found: dict[Branch, float] = {}

    def walk(branch: Branch, rest: bytes, logp: float) -> None:
        logprobs = log_softmax(model(branch) / temperature)
        for token in range(model.size):
            text = vocabulary.bytes_of(token)
            now = (*branch, token)
            if not rest or (text.startswith(rest) and len(text) > len(rest)):
                if vocabulary.is_canonical(now):
                    found[now] = logp + logprobs[token]
            elif text and rest.startswith(text):
                walk(now, rest[len(text) :], logp + logprobs[token])

    walk((), word, 0.0)
    total = np.logaddexp.reduce(list(found.values()))
    return {branch: float(np.exp(logp - total)) for branch, logp in found.items()}


def covering_of(
    model: Model, vocabulary: Vocabulary, tokenizer: Tokenizer, word: str, sampling: Sampling
) -> Covering:
    """As after a pass that read the word's own tokens."""
    trunk = tuple(tokenizer.encode(word, add_special_tokens=False).ids)
    read = [trunk[:depth] for depth in range(len(trunk) + 1)]
    return Covering(
        text=word.encode(),
        known=lambda branch: model(branch) if branch in read else None,
        look_into=model.look_into,
        vocabulary=vocabulary,
        sampling=sampling,
        position=10,
    )


def choose(
    model: Model, vocabulary: Vocabulary, tokenizer: Tokenizer, word: str, sampling: Sampling
) -> Covered:
    return covering_of(model, vocabulary, tokenizer, word, sampling).choose()


def test_the_bytes_of_all_tokens_spell_any_text(
    tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    text = "def f(x):\n\treturn 'é🥸' + x\r\n"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert b"".join(map(vocabulary.bytes_of, ids)) == text.encode()


@given(st.binary(max_size=4).filter(lambda text: b"\xff" not in text))
def test_beyond_and_inside_are_what_they_say(vocabulary: Vocabulary, text: bytes) -> None:
    every = {id: vocabulary.bytes_of(id) for id in range(320) if vocabulary.bytes_of(id)}
    beyond = {id for id, token in every.items() if token.startswith(text) and token != text}
    inside = {id for id, token in every.items() if text.startswith(token)}
    assert set(vocabulary.beyond(text).tolist()) == beyond
    assert set(vocabulary.inside(text).tolist()) == inside


@pytest.mark.long
@given(st.sampled_from(WORDS), st.integers(0, 10_000))
@example(" values", 95)  # the tokenizer does not agree with the best on the trunk
@example("\n        ", 705)  # the best is behind all of the word, off the trunk
@settings(max_examples=40, deadline=None)
def test_greedy_takes_the_most_probable_covering(
    vocabulary: Vocabulary, tokenizer: Tokenizer, word: str, seed: int
) -> None:
    model = Model(tokenizer.get_vocab_size(), seed)
    expected = brute_force(model, vocabulary, word.encode())
    covered = choose(model, vocabulary, tokenizer, word, Sampling())
    assert covered.tokens == max(expected, key=lambda branch: expected[branch])
    logp = sum(covered.logprobs)
    assert logp == pytest.approx(
        sum(log_softmax(model(covered.tokens[:n]))[t] for n, t in enumerate(covered.tokens))
    )


@given(st.sampled_from(WORDS), st.integers(0, 10_000), st.sampled_from([1.0, 0.6]))
@settings(max_examples=40, deadline=None)
def test_the_distribution_is_the_conditional_one(
    vocabulary: Vocabulary, tokenizer: Tokenizer, word: str, seed: int, temperature: float
) -> None:
    """Of the next text, equal to 1e-4 in total variation."""
    model = Model(tokenizer.get_vocab_size(), seed)
    expected = by_text(brute_force(model, vocabulary, word.encode(), temperature), vocabulary)
    covering = covering_of(model, vocabulary, tokenizer, word, Sampling(temperature=temperature))
    found: dict[Branch, float] = {}
    for node in covering.nodes():
        for token, weight in zip(node.ids.tolist(), node.weights.tolist(), strict=True):
            if vocabulary.is_canonical((*node.branch, token)):
                found[(*node.branch, token)] = float(np.exp(weight))
    total = sum(found.values())
    implied = by_text({branch: mass / total for branch, mass in found.items()}, vocabulary)
    texts = expected.keys() | implied.keys()
    apart = sum(abs(expected.get(text, 0.0) - implied.get(text, 0.0)) for text in texts) / 2
    assert apart < 1e-4


@pytest.mark.long
@pytest.mark.parametrize("word", [" va", "\n    ", " ", "retur"])
def test_draws_follow_the_conditional_distribution(
    vocabulary: Vocabulary, tokenizer: Tokenizer, word: str
) -> None:
    model = Model(tokenizer.get_vocab_size(), 7)
    expected = brute_force(model, vocabulary, word.encode())
    draws = 700
    seen = Counter(
        choose(model, vocabulary, tokenizer, word, Sampling(temperature=1.0, seed=seed)).tokens
        for seed in range(draws)
    )
    assert set(seen) <= set(expected)
    often = [branch for branch in expected if expected[branch] * draws >= 5]
    statistic = sum(
        (seen[branch] - draws * expected[branch]) ** 2 / (draws * expected[branch])
        for branch in often
    )
    # The mean of chi-square is its degrees of freedom, its deviation the root of twice that.
    assert statistic < len(often) + 5 * np.sqrt(2 * len(often))


def test_the_answer_begins_with_the_word(vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    model = Model(tokenizer.get_vocab_size(), 1)
    for word in WORDS:
        for temperature in (0.0, 0.8):
            covered = choose(
                model, vocabulary, tokenizer, word, Sampling(temperature=temperature, seed=3)
            )
            text = b"".join(map(vocabulary.bytes_of, covered.tokens))
            assert text.startswith(word.encode())


@given(st.sampled_from([*WORDS, "🥸🥸", "ünüü", "zqxj"]), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_there_is_an_answer_whatever_was_typed_and_whatever_is_known(
    vocabulary: Vocabulary, tokenizer: Tokenizer, word: str, seed: int
) -> None:
    """With the limits, too, it is the same whether the logits of the word are known or not."""
    model = Model(tokenizer.get_vocab_size(), seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(covering, "MOST_BRANCHES", 3)
        patch.setattr(covering, "MOST_CHECKS", 256)
        for temperature in (0.0, 0.8):
            one = covering_of(model, vocabulary, tokenizer, word, Sampling(temperature=temperature))
            fresh = replace(one, known=lambda branch: None if branch else model(branch))
            assert one.choose().tokens == fresh.choose().tokens
            text = b"".join(map(vocabulary.bytes_of, one.choose().tokens))
            assert text.startswith(word.encode())


@given(st.sampled_from(WORDS), st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_what_was_typed_has_the_probability_of_all_its_spellings(
    vocabulary: Vocabulary, tokenizer: Tokenizer, word: str, seed: int
) -> None:
    model = Model(tokenizer.get_vocab_size(), seed)

    def mass(branch: Branch, rest: bytes) -> float:
        """Of all texts behind the branch that begin with the rest."""
        chances = np.exp(log_softmax(model(branch)))
        total = 0.0
        for token in [*vocabulary.beyond(rest), *vocabulary.inside(rest)]:
            left = rest[len(vocabulary.bytes_of(int(token))) :]
            total += chances[token] * (mass((*branch, int(token)), left) if left else 1.0)
        return float(total)

    whole = mass((), word.encode())
    for sampling in (Sampling(), Sampling(temperature=0.7, seed=1)):
        covered = choose(model, vocabulary, tokenizer, word, sampling)
        assert sum(covered.logprobs) <= covered.typed_logprob + 1e-9
        assert covered.typed_logprob <= np.log(whole) + 1e-6
