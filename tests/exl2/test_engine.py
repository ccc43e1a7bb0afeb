"""The engine on exllamav2, on the reference kernels."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from completion_ls.config.settings import DraftSettings
from completion_ls.decode.draft_length import PassCost
from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.contract import Event, Finish, Job, Lane, Sampling, Unfinished
from support.exl2.tiny import (
    VOCABULARY,
    CacheKind,
    TinyModels,
    load_model,
    load_tokenizer,
    make_cache,
    source,
    write_tiny_models,
)
from support.exl2.weights import read_dequantized

pytestmark = pytest.mark.exl2

PAGES = 12
COST = PassCost.of([(1, 1.0), (4, 1.05), (8, 1.1), (17, 1.3)])
SAMPLED = Sampling(temperature=0.8, top_p=0.95, seed=7)

_ids = count(1)


def job(prompt: Sequence[int], tokens: int = 6, **more: Any) -> Job:
    return Job(next(_ids), tuple(prompt), tokens, **more)


class Answer:
    """The events of one job, added up."""

    def __init__(self, job: Job, events: list[Event]) -> None:
        own = [event for event in events if event.job_id == job.id]
        self.tokens = [token for event in own for token in event.tokens]
        self.logprobs = [logprob for event in own for logprob in event.logprobs]
        self.reused, self.computed = own[-1].reused, own[-1].computed
        self.finish = own[-1].finish
        assert len(self.tokens) == len(self.logprobs)
        assert [event.finish for event in own[:-1]] == [None] * (len(own) - 1)


def drain(engine: Any) -> Iterator[Event]:
    for _ in range(5000):
        events = engine.step()
        if not events:
            return
        yield from events
    raise AssertionError("it never ends")


def run(engine: Any, one: Job) -> Answer:
    engine.add(one)
    return Answer(one, list(drain(engine)))


@pytest.fixture(scope="module")
def pair(exllamav2: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[TinyModels, Any, Any]:
    """The folders of a target and a draft that agrees often, and both loaded."""
    folders = write_tiny_models(tmp_path_factory.mktemp("pair"), agreeing=True)
    return folders, load_model(folders.target), load_model(folders.draft)


@pytest.fixture(scope="module")
def load(pair: tuple[TinyModels, Any, Any]) -> Callable[..., Any]:
    """How to make an engine: (drafts="none" | "lookup" | "model", cache="fp16", pages=12)."""
    from completion_ls.engines.drafts import Drafts
    from completion_ls.engines.exl2.engine import Exl2Engine
    from completion_ls.engines.exl2.generator import PagedDraft, PagedGenerator

    folders, target, draft = pair
    tokenizer = load_tokenizer(target)
    vocabulary = Vocabulary(Tokenizer.from_file(str(folders.target / "tokenizer.json")))

    def make(drafts: str = "none", cache: CacheKind = "fp16", pages: int = PAGES) -> Any:
        tokens = 256 * pages
        small = {"draft_model": draft, "draft_cache": make_cache(draft, "fp16", tokens)}
        generator = PagedGenerator(
            target,
            make_cache(target, cache, tokens),
            tokenizer,
            max_batch_size=1,
            max_q_size=32,
            max_chunk_size=512,
            num_draft_tokens=16,
            **(small if drafts == "model" else {}),
        )
        guesser = PagedDraft(generator, 0.1) if drafts == "model" else None
        found = None
        if drafts != "none":
            most = DraftSettings().max_tokens
            found = Drafts(COST, lookup=drafts == "lookup", model=guesser, most=most)
        return Exl2Engine(generator, 4096, 512, vocabulary, found, guesser)

    return make


@pytest.fixture(scope="module")
def text(pair: tuple[TinyModels, Any, Any]) -> list[int]:
    """Tokens of code."""
    tokenizer = Tokenizer.from_file(str(pair[0].target / "tokenizer.json"))
    return tokenizer.encode(source("engines/torch_cpu.py")).ids


@pytest.fixture(scope="module")
def is_greedy(pair: tuple[TinyModels, Any, Any]) -> Callable[[Sequence[int], Sequence[int]], bool]:
    """Whether tokens are the most probable ones by transformers, with the same weights, up to ties: the
    library's numbers between layers have 16 bits."""
    model = read_dequantized(pair[0].target, torch.float64)

    def judge(prompt: Sequence[int], tokens: Sequence[int]) -> bool:
        with torch.inference_mode():
            rows = model(torch.tensor([[*prompt, *tokens[:-1]]])).logits[0, len(prompt) - 1 :]
        rows = rows[:, :VOCABULARY]
        behind = rows.amax(-1) - rows[range(len(tokens)), list(tokens)]
        return bool((behind < 0.03 * rows.std()).all())

    return judge


@pytest.mark.parametrize("length", [1, 2, 40, 255, 256, 257, 258, 600])
def test_greedy_output_is_that_of_transformers(
    load: Callable, text: list[int], is_greedy: Callable, length: int
) -> None:
    answer = run(load(), job(text[:length], 12))
    assert len(answer.tokens) == 12
    assert is_greedy(text[:length], answer.tokens)
    assert (answer.reused, answer.computed) == (0, length)
    assert answer.finish is Finish.LENGTH


@pytest.mark.parametrize("cache", ["fp16", "q8", "q6", "q4"])
def test_a_keystroke_computes_its_own_token_only(
    load: Callable, text: list[int], cache: CacheKind
) -> None:
    engine = load(cache=cache)
    run(engine, job(text[:600]))
    for length in (601, 602, 601, 600):
        assert run(engine, job(text[:length])).computed <= 2
    changed = [*text[:300], 9, *text[301:600]]
    assert run(engine, job(changed)).reused == 300


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED])
@pytest.mark.parametrize("drafts", ["lookup", "model"])
def test_drafts_change_no_text_and_save_passes(
    load: Callable, text: list[int], drafts: str, sampling: Sampling
) -> None:
    plain, drafted = load(), load(drafts)
    for length in (250, 400):
        asked = {"sampling": sampling, "document": "a"}
        wanted = run(plain, job(text[:length], 60, **asked)).tokens
        for _ in range(2):
            assert run(drafted, job(text[:length], 60, **asked)).tokens == wanted
    assert drafted.passes < 2 * plain.passes
    figures = drafted.stats()
    assert 0 < figures.draft_tokens_accepted <= figures.draft_tokens_checked


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_history_changes_an_answer(load: Callable, text: list[int], data: st.DataObject) -> None:
    engine, seed = load("model"), data.draw(st.integers(0, 2**16))
    choice = random.Random(seed)
    documents = [text[start : start + choice.randrange(20, 700)] for start in (0, 900, 1800)]
    asked: dict[int, Job] = {}
    events: list[Event] = []
    cancelled: set[int] = set()
    for _ in range(choice.randrange(5, 40)):
        what = choice.random()
        if what < 0.35:
            number = choice.randrange(3)
            prompt = documents[number]
            prompt = prompt[: choice.randrange(1, len(prompt) + 1)] + choice.choices(
                range(4, VOCABULARY), k=choice.randrange(3)
            )
            sampling = choice.choice([Sampling(), SAMPLED])
            lane = Lane(choice.randrange(3))
            one = job(prompt, choice.randrange(1, 20), sampling=sampling, lane=lane)
            asked[one.id] = one
            engine.add(one)
        elif what < 0.45 and asked:
            chosen = choice.choice(list(asked))
            engine.cancel(chosen)
            cancelled.add(chosen)
        else:
            events += engine.step()
    events += drain(engine)
    for one in asked.values():
        if one.id in cancelled:
            continue
        answer = Answer(one, events)
        if answer.finish is Finish.NO_ROOM:
            assert one.lane is not Lane.KEY
            continue
        assert (
            answer.tokens
            == run(load(), job(one.prompt, one.max_new_tokens, sampling=one.sampling)).tokens
        )
    generator = engine._generator
    assert not generator.referenced_pages and not generator.active_jobs
    assert len(generator.unreferenced_pages) == PAGES


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED])
def test_an_unfinished_word_is_covered(load: Callable, pair: Any, sampling: Sampling) -> None:
    tokenizer = Tokenizer.from_file(str(pair[0].target / "tokenizer.json"))
    before = tokenizer.encode(
        "class Engine(Protocol):\n    def step(self) -> list[Event]:\n   "
    ).ids
    engine = load("model")
    for word in (" ret", " r", " comp", " xyz"):
        own = tokenizer.encode(word).ids
        unfinished = Unfinished(word.encode(), len(own))
        asked = {"sampling": sampling, "unfinished": unfinished}
        answer = run(engine, job([*before, *own], 8, **asked))
        assert tokenizer.decode(answer.tokens).startswith(word)
        assert answer.tokens == run(load(), job([*before, *own], 8, **asked)).tokens


def test_a_stop_token_ends_the_job_and_is_not_part_of_it(load: Callable, text: list[int]) -> None:
    engine = load("model")
    whole = run(engine, job(text[:50], 20)).tokens
    stop = whole[7]
    answer = run(engine, job(text[:50], 20, stop_token_ids=frozenset({stop})))
    assert answer.tokens == whole[: whole.index(stop)]
    assert answer.finish is Finish.STOP


def test_a_fresh_job_reuses_nothing_and_leaves_nothing(load: Callable, text: list[int]) -> None:
    engine = load("model")
    known = run(engine, job(text[:600]))
    kept = engine.stats().kv_bytes
    fresh = run(engine, job(text[:600], fresh=True))
    assert (fresh.reused, fresh.computed, fresh.tokens) == (0, 600, known.tokens)
    assert engine.stats().kv_bytes == kept
    assert run(engine, job(text[:600])).computed <= 2
