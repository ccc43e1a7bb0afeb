"""Covering a word with the most probable tokens only, against covering it with all of them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pytest
from decode.test_covering import _no_limits, tokenizer, vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from completion_ls.decode.covering import Branch, Covered, Covering
from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.contract import Job, Sampling, Unfinished
from completion_ls.engines.remote.covering import KEPT, MORE, Places, Told, Unknown, WordChoice

__all__ = ["_no_limits", "tokenizer", "vocabulary"]

WORDS = [
    " ret",
    " values",
    "\n        ",
    " ",
    "(",
    " va",
    "for",
    "\n",
    " pri",
    "x",
    " ü",
    " a",
    "qq",
]
BEFORE = (5, 6, 7)


class Server:
    """A model behind a server that tells the `most` most probable tokens, or at first `top`."""

    def __init__(self, size: int, seed: int, sharpness: float, top: int, most: int) -> None:
        self.size, self.seed, self.sharpness = size, seed, sharpness
        self.top, self.most = top, most
        self.asked = 0

    def logprobs(self, branch: Branch) -> np.ndarray:
        key = zlib.crc32(repr((self.seed, branch)).encode())
        logits = np.random.default_rng(key).normal(0, self.sharpness, self.size)
        return logits - np.log(np.exp(logits).sum())

    def tell(self, branch: Branch, *, more: bool) -> Told:
        self.asked += 1
        logprobs = self.logprobs(branch)
        number = self.most if more else self.top
        best = np.argsort(-logprobs)[:number]
        return Told({int(token): float(logprobs[token]) for token in best}, number >= self.most)

    def covers(self, choice: WordChoice, places: Places) -> Covered:
        for _ in range(3000):
            try:
                return choice.choose()
            except Unknown as unknown:
                for branch in unknown.branches:
                    told = self.tell(branch, more=unknown.more)
                    places.put((*choice.before, *branch), told)
        raise AssertionError("it never ends")


def job(vocabulary: Vocabulary, word: str, sampling: Sampling) -> Job:
    reading = vocabulary.read(word)
    unfinished = Unfinished(word.encode(), len(reading))
    return Job(1, (*BEFORE, *reading), 8, sampling=sampling, unfinished=unfinished)


def of_a_local_engine(server: Server, vocabulary: Vocabulary, wanted: Job) -> Covered:
    def look_into(branches: Sequence[Branch]) -> list[np.ndarray]:
        return [server.logprobs(branch) for branch in branches]

    assert wanted.unfinished
    text = wanted.unfinished.text
    return Covering(
        text, server.logprobs, look_into, vocabulary, wanted.sampling, len(BEFORE)
    ).choose()


@settings(deadline=None, max_examples=150)
@given(
    word=st.sampled_from(WORDS),
    seed=st.integers(0, 10**6),
    sharpness=st.sampled_from([1.0, 4.0, 8.0]),
    top=st.integers(2, 30),
    most=st.sampled_from([5, 20, 100, 320]),
)
def test_the_choice_is_that_of_a_local_engine_where_it_says_so(
    vocabulary: Vocabulary,
    tokenizer: Tokenizer,
    word: str,
    seed: int,
    sharpness: float,
    top: int,
    most: int,
) -> None:
    size = tokenizer.get_vocab_size()
    server = Server(size, seed, sharpness, min(top, most), most)
    wanted = job(vocabulary, word, Sampling())
    places = Places()
    choice = WordChoice(wanted, places, vocabulary, size)
    found = server.covers(choice, places)
    text = b"".join(map(vocabulary.bytes_of, found.tokens))
    assert text.startswith(word.encode())
    assert found.typed_logprob <= 0
    if most >= size:
        assert choice.is_exact
    if choice.is_exact:
        expected = of_a_local_engine(server, vocabulary, wanted)
        assert found.tokens == expected.tokens
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-6)


def test_most_words_are_exact_with_few_probabilities_where_the_model_is_sure(
    vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    """Of a model that expects the word, one request is enough."""
    size = tokenizer.get_vocab_size()
    [token] = (id for id in vocabulary.beyond(b" val") if vocabulary.bytes_of(int(id)) == b" value")
    server = Server(size, 1, 1.0, 5, 320)
    logprobs = server.logprobs(())
    logprobs[token] = 20.0
    logprobs -= np.log(np.exp(logprobs).sum())
    server.logprobs = lambda branch: logprobs  # type: ignore[method-assign]
    places = Places()
    choice = WordChoice(job(vocabulary, " val", Sampling()), places, vocabulary, size)
    assert server.covers(choice, places).tokens == (token,)
    assert choice.is_exact and server.asked == 1


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("seed", range(5))
def test_with_all_probabilities_a_draw_is_that_of_a_local_engine(
    vocabulary: Vocabulary, tokenizer: Tokenizer, word: str, seed: int
) -> None:
    size = tokenizer.get_vocab_size()
    server = Server(size, seed, 2.0, size, size)
    wanted = job(vocabulary, word, Sampling(0.8, 1.0, 0, seed))
    places = Places()
    choice = WordChoice(wanted, places, vocabulary, size)
    found = server.covers(choice, places)
    assert choice.is_exact
    assert found.tokens == of_a_local_engine(server, vocabulary, wanted).tokens


def test_a_draw_among_some_of_the_probabilities_is_not_said_to_be_a_local_engines(
    vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    size = tokenizer.get_vocab_size()
    server, places = Server(size, 1, 2.0, 100, 100), Places()
    choice = WordChoice(job(vocabulary, " ", Sampling(0.8)), places, vocabulary, size)
    server.covers(choice, places)
    assert not choice.is_exact


def test_the_next_key_of_a_word_asks_nothing_where_the_model_expected_it(
    vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    size = tokenizer.get_vocab_size()
    server = Server(size, 3, 4.0, size, size)
    places = Places()
    for word in (" v", " va", " val"):
        server.covers(
            WordChoice(job(vocabulary, word, Sampling()), places, vocabulary, size), places
        )
        asked_before, server.asked = server.asked, 0
    server.covers(WordChoice(job(vocabulary, " val", Sampling()), places, vocabulary, size), places)
    assert asked_before >= 0 and server.asked == 0


def test_a_word_that_no_token_told_begins_is_read_as_the_tokenizer_does(
    vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    size = tokenizer.get_vocab_size()
    server = Server(size, 11, 8.0, 1, 1)
    wanted = job(vocabulary, "qq", Sampling())
    places = Places()
    choice = WordChoice(wanted, places, vocabulary, size)
    found = server.covers(choice, places)
    assert not choice.is_exact
    assert found.tokens[: len(vocabulary.read("qq"))] == vocabulary.read("qq")


def test_no_more_is_kept_of_a_place_than_was_asked_for() -> None:
    places = Places()
    places.put((1,), Told({token: -float(token) for token in range(1, 10_000)}))
    known = places.get((1,))
    assert known and set(known.logprobs) == set(range(1, MORE + 2))


def test_more_is_not_forgotten_for_less_and_the_oldest_goes() -> None:
    places = Places()
    places.put((1,), Told({1: -0.1, 2: -3.0}, is_all=True))
    places.put((1,), Told({1: -0.1}))
    known = places.get((1,))
    assert known and len(known.logprobs) == 2
    for number in range(KEPT):
        places.put((2, number), Told({1: -0.1}))
    assert places.get((1,)) is None
