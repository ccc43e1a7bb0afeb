"""Pages of the exllamav2 engine in host memory, on the reference kernels."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from completion_ls.engines.contract import Event, Finish, Job, JobFailed, Lane, Sampling, Unfinished
from completion_ls.engines.exl2.host_tier import EXPENDABLE, HostTier, PageText
from support.exl2.engines import PAGE, make_engine
from support.exl2.tiny import (
    CacheKind,
    TinyModels,
    load_model,
)
from support.jobs import Answer, drain, job, run

pytestmark = pytest.mark.exl2

PAGES = 6
SAMPLED = Sampling(temperature=0.8, top_p=0.95, seed=7)


@pytest.fixture(scope="module")
def load(exllamav2: Any, pair: TinyModels) -> Callable[..., Any]:
    """How to make an engine with a draft model, whose cache is as the target's."""
    target, draft = load_model(pair.target), load_model(pair.draft)
    return lambda **more: make_engine(target, draft, lookup=True, **{"pages": PAGES, **more})


@pytest.fixture(scope="module")
def answer(load: Callable) -> Callable[[Job], list[int]]:
    """What an engine that was just loaded gives."""
    engine = load()
    known: dict[tuple[Any, ...], list[int]] = {}

    def ask(one: Job) -> list[int]:
        key = (one.prompt, one.max_new_tokens, one.sampling, one.unfinished)
        if key not in known:
            more = {"sampling": one.sampling, "unfinished": one.unfinished}
            known[key] = run(engine, job(one.prompt, one.max_new_tokens, fresh=True, **more)).tokens
        return known[key]

    return ask


def check_pages(generator: Any) -> None:
    """Each page is found by what it holds, and by nothing else."""
    from exllamav2.generator import dynamic

    assert len(generator.referenced_pages) + len(generator.unreferenced_pages) == PAGES
    for pages, used in ((generator.referenced_pages, True), (generator.unreferenced_pages, False)):
        for phash, page in pages.items():
            assert page.phash == phash
            assert (page.ref_count > 0) == used
            if page.kv_position == PAGE and not used:
                assert phash == dynamic._tensor_hash_checksum(page.sequence, page.prev_hash)
    tier = generator.tier
    assert tier.nbytes <= tier.limit_bytes
    assert tier.nbytes == sum(one.nbytes for kept in tier._kept.values() for one in kept.tensors)


def check_idle(generator: Any) -> None:
    check_pages(generator)
    assert not generator.referenced_pages and not generator.active_jobs


def test_more_documents_than_pages_are_all_found_again(
    load: Callable, answer: Callable, text: list[int]
) -> None:
    engine = load()
    documents = [text[start : start + 600] for start in range(0, 3500, 700)]
    for _ in range(2):
        for document in documents:
            run(engine, job(document, 4))
    tier = engine._generator.tier
    assert tier.saved >= 3 * (len(documents) - 2)
    assert tier.restored >= 3 * len(documents) - PAGES
    for document in documents:
        last = run(engine, job([*document, 9]))
        assert last.tokens == answer(job([*document, 9]))
        assert last.reused + last.computed == 601
        assert last.computed <= 2
    check_idle(engine._generator)


def test_without_host_memory_they_are_not(load: Callable, text: list[int]) -> None:
    engine = load(host_bytes=0)
    documents = [text[start : start + 600] for start in range(0, 3500, 700)]
    for document in [*documents, documents[0]]:
        last = run(engine, job(document))
        assert last.reused == 0
    assert engine._generator.tier.saved == engine._generator.tier.nbytes == 0


@pytest.mark.parametrize("cache", ["fp16", "q8", "q6", "q4"])
def test_what_comes_back_is_what_went(load: Callable, text: list[int], cache: CacheKind) -> None:
    engine = load(cache=cache)
    generator = engine._generator

    document, others = text[:600], [text[start : start + 600] for start in (700, 1400)]
    run(engine, job(document, 4))
    before = {
        page.prev_hash: (page.kv_position, [one.clone() for one in generator._page_tensors(page)])
        for page in generator.all_pages
        if page.kv_position
    }
    assert sorted(tokens for tokens, _ in before.values()) == [600 - 2 * PAGE + 3, PAGE, PAGE]
    for other in others:
        run(engine, job(other))
    kept = [page for page in generator.all_pages if page.kv_position]
    assert not any(page.prev_hash and page.prev_hash in before for page in kept)
    work = generator.begin(document, 4)
    assert work.reused == 599
    for page in work.own_pages[:3]:
        known, tensors = before[page.prev_hash]
        assert 0 < page.kv_position <= known
        for now, then in zip(generator._page_tensors(page), tensors, strict=True):
            assert then[: page.kv_position].any()
            assert torch.equal(now[: page.kv_position], then[: page.kv_position])
    layers = 2 + 2  # the target's and the draft's
    assert len(tensors) == layers * (2 if cache == "fp16" else 4)
    generator.end(work)
    check_idle(generator)


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_no_history_changes_an_answer(
    load: Callable, answer: Callable, text: list[int], data: st.DataObject
) -> None:
    choice = random.Random(data.draw(st.integers(0, 2**16)))
    page = sum(one.nbytes for one in load()._generator._cache_tensors()) // PAGES
    engine = load(host_bytes=choice.randrange(8) * page + choice.randrange(page))
    generator = engine._generator
    documents = [text[start : start + choice.randrange(20, 700)] for start in (0, 900, 1800, 2700)]
    asked: dict[int, Job] = {}
    events: list[Event] = []
    cancelled: set[int] = set()
    for _ in range(choice.randrange(20, 60)):
        what = choice.random()
        if what < 0.35:
            prompt = choice.choice(documents)
            end = len(prompt) - choice.choice([0, 0, 1, 2, choice.randrange(len(prompt))])
            prompt = prompt[:end] + choice.choices((9, 10), k=choice.randrange(3))
            one = job(
                prompt,
                choice.randrange(1, 8),
                sampling=choice.choice([Sampling(), SAMPLED]),
                lane=Lane(choice.randrange(3)),
                fresh=choice.random() < 0.1,
            )
            asked[one.id] = one
            engine.add(one)
        elif what < 0.4 and asked:
            chosen = choice.choice(list(asked))
            engine.cancel(chosen)
            cancelled.add(chosen)
        else:
            events += engine.step()
        check_pages(generator)
    events += drain(engine)
    for one in asked.values():
        last = [event for event in events if event.job_id == one.id][-1:]
        if one.id in cancelled:
            continue
        if last[0].finish is Finish.NO_ROOM:
            assert one.lane is not Lane.KEY
            continue
        assert last[0].reused + last[0].computed == len(one.prompt)
        assert Answer(one, events).tokens == answer(one)
    check_idle(generator)


def test_a_page_given_back_unused_is_never_taken_for_the_first_of_a_text(
    load: Callable, answer: Callable, text: list[int]
) -> None:
    engine = load(pages=12)
    generator = engine._generator
    document = text[:600]
    for prompt in (document, text[700:2000]):
        run(engine, job(prompt))
    unused = generator.begin(text[2800:2810], 1100)  # takes two pages of the document, ...
    again = generator.begin(document, 4)  # ... which gets others for them
    assert again.reused == 2 * PAGE
    generator.end(unused)
    generator.end(again)
    middle = job(document[256:400])
    last = run(engine, middle)
    assert last.reused == 0
    assert last.tokens == answer(middle)


class Short:
    """Memory is short at some of the calls of both models' `forward_chunk`."""

    def __init__(self, generator: Any, at: set[int], patch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        for model in (generator.model, generator.draft_model):
            patch.setattr(model, "forward_chunk", self._wrap(model.forward_chunk, at))

    def _wrap(self, forward: Callable[..., Any], at: set[int]) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            self.calls += 1
            if self.calls - 1 in at:
                raise torch.cuda.OutOfMemoryError("out of memory")
            return forward(**arguments)

        return call


def ask_two(engine: Any, text: list[int], word: Unfinished) -> tuple[list[Job], list[Event]]:
    """A job that waits for another one, with all their events."""
    jobs = [
        job(text[:300], 4, lane=Lane.BACKGROUND),
        job(text[700:1030], 6, unfinished=word, sampling=SAMPLED),
    ]
    engine.add(jobs[0])
    events = engine.step()
    engine.add(jobs[1])
    return jobs, [*events, *drain(engine)]


def test_a_job_that_runs_out_of_memory_is_begun_again_once(
    load: Callable, answer: Callable, pair: TinyModels, text: list[int]
) -> None:
    tokenizer = Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    word = Unfinished(tokenizer.decode(text[1029:1030]).encode(), 1)
    call, begun = 0, 0
    while True:
        engine = load(host_bytes=2**20)
        generator = engine._generator
        run(engine, job(text[700:900]))
        with pytest.MonkeyPatch.context() as patch:
            short = Short(generator, {call}, patch)
            jobs, events = ask_two(engine, text, word)
        for one in jobs:
            assert Answer(one, events).tokens == answer(one)
            last = [event for event in events if event.job_id == one.id][-1]
            assert last.finish is Finish.LENGTH
            if not one.unfinished:
                assert last.reused + last.computed == len(one.prompt)
        check_idle(generator)
        begun += generator.tier.limit_bytes == 2**19
        assert generator.tier.limit_bytes in (2**19, 2**20)
        if short.calls <= call:
            break
        call += 1
    assert call > 8
    # How many of the calls are the draft model's depends on what passes cost here.
    assert begun > call / 4


def test_out_of_memory_twice_fails_that_job_alone(
    load: Callable, answer: Callable, pair: TinyModels, text: list[int]
) -> None:
    engine = load()
    generator = engine._generator
    other = job(text[:300], 4, lane=Lane.BACKGROUND)
    engine.add(other)
    events = engine.step()
    failing = job(text[700:1300])
    engine.add(failing)
    with pytest.MonkeyPatch.context() as patch:
        Short(generator, set(range(100)), patch)
        with pytest.raises(JobFailed) as failure:
            engine.step()
    assert failure.value.job_id == failing.id
    events += drain(engine)
    assert Answer(other, events).tokens == answer(other)
    assert run(engine, job(failing.prompt)).tokens == answer(failing)
    check_idle(generator)


def test_who_gave_way_is_told_though_the_other_fails(load: Callable, text: list[int]) -> None:
    engine = load(pages=4)
    generator = engine._generator
    ahead = job(text[:400], 100, lane=Lane.BACKGROUND)
    engine.add(ahead)
    events = engine.step()
    key = job(text[700:1180], 100)
    engine.add(key)
    with pytest.MonkeyPatch.context() as patch:
        Short(generator, set(range(100)), patch)
        with pytest.raises(JobFailed) as failure:
            engine.step()
    assert failure.value.job_id == key.id
    events += drain(engine)
    assert [event.finish for event in events if event.job_id == ahead.id][-1] is Finish.NO_ROOM
    assert not generator.referenced_pages and engine.step() == []


@pytest.mark.parametrize("step", ["_restore", "_restore_last"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_job_that_fails_while_it_begins_keeps_no_pages(
    load: Callable, answer: Callable, text: list[int], step: str, times: int
) -> None:
    engine = load()
    generator = engine._generator
    restore = getattr(generator, step)
    left = times

    def short(work: Any) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise torch.cuda.OutOfMemoryError("out of memory")
        restore(work)

    one = job(text[:400], 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generator, step, short)
        engine.add(one)
        if times == 1:
            assert Answer(one, list(drain(engine))).tokens == answer(one)
        else:
            with pytest.raises(JobFailed):
                engine.step()
    check_idle(generator)
    assert run(engine, job(text[:400], 4)).tokens == answer(one)


def test_a_copy_that_fails_leaves_no_half_of_a_page(
    load: Callable, answer: Callable, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(pages=6)
    for start in (0, 700, 1400):
        run(engine, job(text[start : start + 600], 4))

    def half(tier: HostTier, text: PageText, page: Sequence[torch.Tensor]) -> bool:
        page[0].zero_()
        raise torch.cuda.OutOfMemoryError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(HostTier, "restore", half)
        with pytest.raises(JobFailed):
            run(engine, job(text[:600], 4))
    for start in (700, 1400, 0):  # the card has the first two
        one = job(text[start : start + 600], 4)
        assert run(engine, one).tokens == answer(one)
    assert engine._generator.tier.restored > 0


def page_text(before: bytes | None, *tokens: int) -> PageText:
    return PageText(before, torch.tensor(tokens).numpy().tobytes())


def page(value: int = 0) -> list[torch.Tensor]:
    return [torch.full((10,), value, dtype=torch.uint8)] * 2


def test_the_visit_that_is_longest_ago_is_dropped_whole_but_for_what_later_ones_share() -> None:
    tier = HostTier(4 * 20 + 19)
    first, second, other = page_text(None, 1), page_text(b"1", 2), page_text(b"1", 3)
    tier.save(first, page(1), 1, partial=False)
    tier.save(second, page(2), 1, partial=False)
    tier.touch(first, 2)
    tier.save(other, page(3), 2, partial=False)
    tier.save(page_text(None, 4), page(4), 3, partial=False)
    assert (tier.pages, tier.nbytes, tier.saved) == (4, 80, 4)
    tier.save(page_text(None, 5), page(5), 4, partial=False)
    assert first in tier and other in tier and second not in tier
    back = page()
    assert tier.restore(other, back) and back[0].tolist() == [3] * 10
    assert not tier.restore(second, back)
    tier.save(second, page(2), 1, partial=False)
    assert second not in tier and tier.pages == 4
    tier.shrink()
    assert (tier.limit_bytes, tier.pages, tier.nbytes) == (49, 2, 40)
    assert first not in tier and other not in tier


def test_an_earlier_visit_takes_no_place_from_a_later_one() -> None:
    tier = HostTier(40)
    for number in (5, 6):
        tier.save(page_text(None, number), page(), number, partial=False)
    tier.save(page_text(None, 4), page(), 4, partial=False)
    tier.save(page_text(b"6", 4), [torch.zeros(41)], 9, partial=False)
    assert page_text(None, 5) in tier and page_text(None, 6) in tier and tier.pages == 2


def test_of_a_last_page_the_latest_version_is_kept() -> None:
    tier = HostTier(1000)
    tokens = list(range(100))
    tier.save(page_text(b"a", *tokens, 1, 1), page(), 1, partial=True)
    tier.save(page_text(b"a", *tokens, 2, 2, 2), page(), 2, partial=True)
    assert tier.pages == 1
    tier.save(page_text(b"a", *tokens, 3), page(), 1, partial=True)
    assert tier.pages == 1
    tier.save(page_text(b"b", *tokens), page(), 3, partial=True)
    tier.save(page_text(b"a", *[9] * (EXPENDABLE + 1)), page(), 3, partial=True)
    assert tier.pages == 3
    found, common = tier.best(page_text(b"a", *tokens, 2, 2, 5))
    assert found == page_text(b"a", *tokens, 2, 2, 2) and common == 102
