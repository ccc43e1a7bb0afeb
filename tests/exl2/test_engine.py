"""The engine on exllamav2, on the reference kernels."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from completion_ls.decode import draft_worth
from completion_ls.engines.contract import Event, Finish, Job, JobFailed, Lane, Sampling, Unfinished
from support.clock import Clock
from support.exl2.engines import make_engine
from support.exl2.tiny import (
    VOCABULARY,
    CacheKind,
    TinyModels,
    load_model,
    source,
    write_tiny_models,
)
from support.exl2.weights import read_dequantized
from support.jobs import Answer, drain, job, run

pytestmark = pytest.mark.exl2

PAGES = 12
SAMPLED = Sampling(temperature=0.8, top_p=0.95, seed=7)


@pytest.fixture(scope="module")
def pair(exllamav2: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[TinyModels, Any, Any]:
    """The folders of a target and a draft that agrees often, and both loaded."""
    folders = write_tiny_models(tmp_path_factory.mktemp("pair"), agreeing=True)
    return folders, load_model(folders.target), load_model(folders.draft)


@pytest.fixture(scope="module")
def load(pair: tuple[TinyModels, Any, Any]) -> Callable[..., Any]:
    """How to make an engine: (drafts="none" | "lookup" | "model", cache="fp16")."""
    _, target, draft = pair

    def make(drafts: str = "none", cache: CacheKind = "fp16") -> Any:
        guessing = draft if drafts == "model" else None
        return make_engine(target, guessing, lookup=drafts == "lookup", cache=cache, pages=PAGES)

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


def test_logprobs_are_those_of_the_model(
    load: Callable, pair: tuple[TinyModels, Any, Any], text: list[int]
) -> None:
    model = read_dequantized(pair[0].target, torch.float64)
    for sampling in (Sampling(), SAMPLED):
        answer = run(load("model"), job(text[:300], 20, sampling=sampling))
        with torch.inference_mode():
            rows = model(torch.tensor([[*text[:300], *answer.tokens[:-1]]])).logits[0, 299:]
        known = rows[:, :VOCABULARY].log_softmax(-1)[range(20), answer.tokens]
        # Numbers between layers have 16 bits.
        assert (known - torch.tensor(answer.logprobs)).abs().max() < 0.03


def test_surprise_is_the_models(
    load: Callable, pair: tuple[TinyModels, Any, Any], text: list[int]
) -> None:
    model = read_dequantized(pair[0].target, torch.float64)
    engine = load("model")
    for length, tokens in ((1, 1), (40, 20), (600, 33)):
        with torch.inference_mode():
            rows = model(torch.tensor([text[: length + tokens - 1]])).logits[0, length - 1 :]
        known = rows[:, :VOCABULARY].log_softmax(-1)
        wanted = -float(known[range(tokens), text[length : length + tokens]].sum())
        found = engine.surprise(text[:length], text[length : length + tokens])
        assert found == pytest.approx(wanted, abs=0.02 * tokens)
    assert engine.stats().sequences_cached == 0
    with pytest.raises(ValueError, match="token ids outside"):
        engine.surprise([VOCABULARY, 5], [6])


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


def test_the_draft_model_reads_nothing_twice(
    load: Callable, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most its own last guess and the token that the target put behind it: the widths that are
    warm."""
    engine = load("model")
    widths: set[int] = set()
    guess = engine._generator.look_with_draft

    def recorded(work: Any, tokens: Sequence[int], start: int) -> Any:
        widths.add(len(tokens))
        return guess(work, tokens, start)

    monkeypatch.setattr(engine._generator, "look_with_draft", recorded)
    for length in (50, 250, 500):
        run(engine, job(text[:length], 60))
    assert engine.stats().draft_tokens_accepted > 50
    assert widths == {1, 2}


@pytest.mark.parametrize("length", [245, 250, 254])
def test_what_was_offered_is_found_by_nobody(load: Callable, text: list[int], length: int) -> None:
    """A draft, and what fills a pass up, may reach into a page that has nothing of the text yet."""
    engine = load("model")
    generator = engine._generator
    held = job(text[:length], 30, lane=Lane.BACKGROUND)
    engine.add(held)
    events: list[Event] = []
    while not any(event.finish for event in events):
        events += engine.step()
        for work in generator.active_jobs:
            assert sum(page.kv_position for page in work.own_pages) == work.position
        # What a pass is filled up with might be the beginning of another text.
        other = job([0] * 40, 1)
        engine.add(other)
        assert Answer(other, engine.step()).reused == 0
        for page in list(generator.unreferenced_pages.values()):
            page.clear()
    assert Answer(held, events).tokens == run(load(), job(text[:length], 30)).tokens


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


def test_a_failing_job_leaves_the_others_alone(
    load: Callable, pair: tuple[TinyModels, Any, Any], text: list[int]
) -> None:
    healthy = [token for token in text[:700] if token != 13]
    wanted = run(load(), job(healthy, 8)).tokens
    engine = load()
    embedding = pair[1].modules[0].embedding
    whole = embedding.weight
    broken = whole.detach().clone()
    broken[13] = torch.nan
    good, bad = job(healthy, 8), job([*healthy[:100], 13], 8)
    engine.add(good)
    engine.step()
    engine.add(bad)
    events = []
    try:
        embedding.weight = torch.nn.Parameter(broken, requires_grad=False)
        with pytest.raises(JobFailed) as failure:
            for _ in range(20):
                events += engine.step()
    finally:
        embedding.weight = whole
    assert failure.value.job_id == bad.id
    assert isinstance(failure.value.cause, ValueError)
    events += drain(engine)
    assert Answer(good, events).tokens == wanted
    # Nothing that the failed job has computed is found again.
    assert run(engine, job(bad.prompt, 8)).tokens == run(load(), job(bad.prompt, 8)).tokens


def test_a_cancelled_job_that_gave_way_is_not_told_of(
    load: Callable, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the job that it gave way to failed, so that there was nothing to tell it with."""
    engine = load()
    ahead = job(text[: 256 * (PAGES - 3)], 8, lane=Lane.BACKGROUND)
    key = job(text[1 : 256 * 4], 8, lane=Lane.KEY)
    engine.add(ahead)
    engine.step()
    engine.add(key)
    begin = engine._generator.begin

    def failing(*arguments: Any, **more: Any) -> Any:
        if not begin(*arguments, **more):
            return None
        raise RuntimeError("no")

    with monkeypatch.context() as broken:
        broken.setattr(engine._generator, "begin", failing)
        with pytest.raises(JobFailed):
            engine.step()
    assert [event.job_id for event in engine._unsaid] == [ahead.id]
    engine.cancel(ahead.id)
    assert not list(drain(engine))


def test_a_draft_model_that_costs_more_than_it_gains_is_turned_off(
    load: Callable, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, count in {"FIRST_REST": 2, "DRAFTED": 2, "PLAIN": 1, "ROUNDS": 3, "LOST": 3}.items():
        monkeypatch.setattr(draft_worth, name, count)
    clock = Clock()
    monkeypatch.setattr("completion_ls.engines.exl2.engine.time", clock)
    engine = load("model")
    monkeypatch.setattr(engine, "_look", clock.timed(engine._look, 1.0))
    guesser = engine._guesser
    monkeypatch.setattr(guesser, "propose", clock.timed(guesser.propose, 50.0))
    expected = run(load(), job(text[:300], 60)).tokens
    assert run(engine, job(text[:300], 60)).tokens == expected
    (source,) = engine.stats().drafting
    assert not source.is_on
    before = clock.now
    assert run(engine, job(text[:300], 10)).tokens == expected[:10]
    assert clock.now == before + 10  # a pass for each token, and no guess


def test_pages_are_told_by_document(load: Callable, text: list[int]) -> None:
    engine = load("model")
    run(engine, job(text[:600], 4, document="one"))
    run(engine, job(text[700:900], 4, document="two"))
    one = job(text[1000:1100], 4, document="three")
    engine.add(one)
    assert engine.stats().lanes[Lane.KEY].waiting == 1
    engine.step()
    stats = engine.stats()
    assert (stats.lanes[Lane.KEY].waiting, stats.lanes[Lane.KEY].running) == (0, 1)
    page = stats.kv_bytes_limit // PAGES
    assert stats.kv_by_document == {"one": 3 * page, "two": page, "three": page}
    assert sum(stats.kv_by_document.values()) == stats.kv_bytes
    assert stats.card_bytes is None  # reference kernels, on the CPU
    run(engine, job(text[:300], 4, document="copy"))
    assert engine.stats().kv_by_document["copy"] == 2 * page
