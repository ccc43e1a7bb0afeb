"""What every engine owes its callers, whatever computes behind it."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from completion_ls.engines.contract import (
    Engine,
    Event,
    Finish,
    Job,
    JobFailed,
    Lane,
    Other,
    Sampling,
)
from support.jobs import Answer, drain, job, run

VOCABULARY = 97
CONTEXT = 640
ARCHITECTURES = ["llama", "llama3-rope-biases", "qwen2", "qwen3"]


def document(seed: int, length: int) -> tuple[int, ...]:
    """Tokens of a made-up document."""
    return tuple(random.Random(seed).choices(range(VOCABULARY), k=length))


@dataclass(frozen=True)
class Numbers:
    """What differs from engine to engine."""

    vocabulary: int
    chunk: int
    """Prompt tokens of a step, ..."""
    background_chunk: int
    """... and of one on the background lane."""
    again: int
    """What a prompt costs that is known as a whole."""
    near: float = 1e-3
    """How far a log probability may be off by what else goes through the model with it."""


@pytest.fixture
def numbers() -> Numbers:
    return Numbers(VOCABULARY, chunk=64, background_chunk=16, again=0)


@pytest.fixture
def make_engine(load_engine: Callable[..., Engine], tiny: Callable) -> Callable[[], Engine]:
    return lambda: load_engine(tiny("llama").folder, prefill_chunk=64)


@pytest.fixture
def engine(make_engine: Callable[[], Engine]) -> Iterator[Engine]:
    made = make_engine()
    yield made
    made.close()


@pytest.fixture
def greedy(tiny: Callable) -> Callable[[tuple[int, ...], int], list[int]]:
    """The most probable output."""
    return tiny("llama").greedy


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("chunk", [16, 64])
def test_greedy_output_is_that_of_transformers(
    load_engine: Callable[..., Engine], tiny: Callable, architecture: str, chunk: int
) -> None:
    model = tiny(architecture)
    engine = load_engine(model.folder, prefill_chunk=chunk)
    for length in (1, 15, 16, 17, 64, 200, 300):
        prompt = document(length, length)
        answer = run(engine, job(prompt, 20))
        assert answer.tokens == model.greedy(prompt, 20), f"prompt of {length} tokens"
        assert answer.finish is Finish.LENGTH
        assert all(logprob <= 0 for logprob in answer.logprobs)


def test_logprobs_are_those_of_the_model(engine: Engine, tiny: Callable) -> None:
    prompt = document(1, 40)
    answer = run(engine, job(prompt, 8))
    with torch.inference_mode():
        rows = tiny("llama").reference(torch.tensor([[*prompt, *answer.tokens]])).logits[0]
    known = rows.log_softmax(-1)
    for offset, (token, logprob) in enumerate(zip(answer.tokens, answer.logprobs, strict=True)):
        assert abs(known[len(prompt) - 1 + offset, token] - logprob) < 1e-3


# given tokens, and other choices


@pytest.mark.parametrize("length", [1, 2, 50, 120])
def test_given_tokens_are_as_probable_as_when_they_are_chosen(
    engine: Engine, numbers: Numbers, length: int
) -> None:
    prompt, given_tokens = document(1, 70), document(2, length)
    run(engine, job(prompt, 5))  # what there is already makes no difference
    answer = run(engine, job(prompt, length + 3, given=given_tokens))
    read = run(engine, job(prompt, length, given=given_tokens))
    assert read.tokens == list(given_tokens) and read.finish is Finish.LENGTH
    assert answer.tokens[:length] == read.tokens
    assert (
        answer.tokens[length:] == run(engine, job((*prompt, *given_tokens), 3, fresh=True)).tokens
    )
    for place in {0, length // 2, length - 1}:
        text = (*prompt, *given_tokens[:place])
        one = run(engine, job(text, 1, others=numbers.vocabulary, fresh=True))
        chances = {token: logprob for other in one.others for token, logprob in _pairs(other)}
        chances[one.tokens[0]] = one.logprobs[0]
        assert len(chances) == numbers.vocabulary
        assert abs(sum(map(math.exp, chances.values())) - 1) < 1e-3
        for found in (answer, read):
            assert abs(found.logprobs[place] - chances[given_tokens[place]]) < numbers.near


def _pairs(other: Other) -> list[tuple[int, float]]:
    return list(zip(other.tokens, other.logprobs, strict=True))


def test_given_tokens_leave_the_next_answers_as_they_are(engine: Engine) -> None:
    prompt = document(1, 70)
    alone = run(engine, job(prompt, 12))
    for seed in range(2, 8):
        run(engine, job(prompt, 40, given=document(seed, 40)))
        run(engine, job(prompt, 9, given=document(seed, 5)))
    again = run(engine, job(prompt, 12))
    assert again.tokens == alone.tokens and again.reused >= len(prompt) - 1


def test_other_choices_are_the_next_best_ones(engine: Engine) -> None:
    answer = run(engine, job(document(1, 40), 4, others=3))
    assert [other.place for other in answer.others] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    for place, (token, logprob) in enumerate(zip(answer.tokens, answer.logprobs, strict=True)):
        others = [_pairs(other)[0] for other in answer.others if other.place == place]
        ranked = [logprob, *(chance for _, chance in others)]
        assert ranked == sorted(ranked, reverse=True)
        assert len({token, *(other for other, _ in others)}) == 4


# reuse


def test_a_cold_job_computes_everything(engine: Engine) -> None:
    assert run(engine, job(document(1, 100))).reused == 0


def test_each_typed_token_costs_one_token(engine: Engine) -> None:
    text = document(1, 120)
    run(engine, job(text[:100]))
    for length in range(101, 121):
        assert run(engine, job(text[:length])).computed == 1


def test_the_same_prompt_again(engine: Engine, numbers: Numbers) -> None:
    text = document(1, 100)
    first = run(engine, job(text))
    again = run(engine, job(text))
    assert (again.computed, again.tokens) == (numbers.again, first.tokens)


def test_an_accepted_suggestion_is_reused(engine: Engine) -> None:
    text = document(1, 100)
    offered = run(engine, job(text, 8)).tokens
    # The last offered token was never put through the model.
    assert run(engine, job((*text, *offered))).computed == 1


def test_backspace_costs_one_token(engine: Engine) -> None:
    text = document(1, 100)
    run(engine, job(text))
    for length in (99, 98, 97):
        assert run(engine, job(text[:length])).computed == 1
    assert run(engine, job(text[:96] + document(2, 3))).computed == 3


def test_a_jump_keeps_the_way_back(engine: Engine, numbers: Numbers) -> None:
    text = document(1, 300)
    elsewhere = text[:100] + document(2, 150)
    run(engine, job(text))
    assert run(engine, job(elsewhere)).reused == 100
    assert run(engine, job(text)).computed == numbers.again
    assert run(engine, job(elsewhere)).computed == numbers.again


def test_two_documents_keep_their_caches(engine: Engine) -> None:
    header = document(9, 80)
    one, two = header + document(1, 150), header + document(2, 150)
    run(engine, job(one[:200]))
    assert run(engine, job(two[:200])).reused == 80
    for length in range(201, 210):
        assert run(engine, job(one[:length])).computed == 1
        assert run(engine, job(two[:length])).computed == 1


def test_a_running_job_lends_its_prefix(engine: Engine, greedy: Callable) -> None:
    text = document(1, 200)
    first, second = job(text, 40), job(text[:150] + document(2, 10), 10)
    engine.add(first)
    events = [event for _ in range(20) for event in engine.step()]
    assert any(event.tokens for event in events)
    engine.add(second)
    events += drain(engine)
    assert Answer(second, events).reused == 150
    for one in (first, second):
        assert Answer(one, events).tokens == greedy(one.prompt, one.max_new_tokens)


# cancel


def test_cancel_during_prefill(engine: Engine, greedy: Callable, numbers: Numbers) -> None:
    chunk = numbers.chunk
    text = document(1, 3 * chunk - 6)
    cancelled = job(text)
    engine.add(cancelled)
    assert [event.computed for _ in range(2) for event in engine.step()] == [chunk, 2 * chunk]
    engine.cancel(cancelled.id)
    assert engine.step() == []
    assert engine.stats().jobs_active == 0
    again = run(engine, job(text))
    assert (again.reused, again.tokens) == (2 * chunk, greedy(text, 6))


def test_cancel_during_decode(engine: Engine, greedy: Callable) -> None:
    text = document(1, 100)
    cancelled, other = job(text, 50), job(document(2, 30), 5)
    engine.add(cancelled)
    engine.add(other)
    for _ in range(14):
        engine.step()
    engine.cancel(cancelled.id)
    rest = list(drain(engine))
    assert {event.job_id for event in rest} <= {other.id}
    again = run(engine, job((*text, 3)))
    assert (again.computed, again.tokens) == (1, greedy((*text, 3), 6))


def test_cancel_before_the_first_step_and_of_unknown_jobs(engine: Engine) -> None:
    cancelled = job(document(1, 10))
    engine.add(cancelled)
    engine.cancel(cancelled.id)
    engine.cancel(cancelled.id)
    engine.cancel(10**9)
    assert engine.step() == []


# lanes


def test_a_keystroke_goes_before_everything_else(engine: Engine) -> None:
    background = job(document(1, 100), 5, lane=Lane.BACKGROUND)
    manual = job(document(2, 60), 5, lane=Lane.MANUAL)
    key = job(document(3, 60), 5, lane=Lane.KEY)
    engine.add(background)
    order = [event.job_id for event in engine.step()]
    engine.add(manual)
    order += [event.job_id for event in engine.step()]
    engine.add(key)
    order += [event.job_id for event in drain(engine)]
    # A step belongs to the lowest lane there was when it began.
    shortened = [one for one, before in zip(order, [0, *order], strict=False) if one != before]
    assert shortened == [background.id, manual.id, key.id, manual.id, background.id]


def test_background_work_takes_small_steps_until_somebody_waits_for_it(
    engine: Engine, numbers: Numbers
) -> None:
    ahead = job(document(1, 3 * numbers.chunk), lane=Lane.BACKGROUND)
    engine.add(ahead)
    (event,) = engine.step()
    assert event.computed == numbers.background_chunk
    engine.promote(ahead.id, Lane.KEY)
    (event,) = engine.step()
    assert event.computed == numbers.background_chunk + numbers.chunk
    other = job(document(2, 20), lane=Lane.MANUAL)
    engine.add(other)
    order = [event.job_id for event in drain(engine)]
    assert order.index(other.id) > max(n for n, id in enumerate(order) if id == ahead.id)
    engine.promote(12345, Lane.KEY)  # it has ended meanwhile


def test_the_front_where_the_user_is_goes_first(engine: Engine, numbers: Numbers) -> None:
    engine.favour("here")
    elsewhere = job(document(1, 2 * numbers.chunk), 5, front="elsewhere")
    engine.add(elsewhere)
    (event,) = engine.step()
    assert (
        event.computed == numbers.background_chunk
    )  # a key that comes now waits for the step only
    key = job(document(2, 60), 5, front="here")
    ahead = job(document(3, 60), 5, front="here", lane=Lane.BACKGROUND)
    engine.add(key)
    engine.add(ahead)
    order = list(dict.fromkeys(event.job_id for event in drain(engine)))
    assert order == [key.id, ahead.id, elsewhere.id]


def test_a_fresh_job_reuses_nothing_and_leaves_nothing(engine: Engine) -> None:
    text = document(1, 100)
    known = run(engine, job(text))
    kept = engine.stats().kv_bytes
    fresh = run(engine, job(text, fresh=True))
    assert (fresh.reused, fresh.computed) == (0, 100)
    assert fresh.tokens == known.tokens
    assert engine.stats().kv_bytes == kept
    assert run(engine, job(text)).computed == 0


def test_the_newest_keystroke_is_prefilled_first(engine: Engine) -> None:
    decoding, older, newer = (job(document(seed, 40), 4) for seed in (1, 2, 3))
    engine.add(decoding)
    while not any(event.tokens for event in engine.step()):
        pass
    engine.add(older)
    engine.add(newer)
    events = list(drain(engine))
    first_token = {}
    for number, event in enumerate(events):
        if event.tokens:
            first_token.setdefault(event.job_id, number)
    assert first_token[newer.id] < first_token[older.id] < first_token[decoding.id]


def test_decoding_jobs_of_a_lane_take_turns(engine: Engine) -> None:
    three = [job(document(seed, 10), 8) for seed in range(3)]
    for one in three:
        engine.add(one)
    produced = dict.fromkeys((one.id for one in three), 0)
    started = False
    for event in drain(engine):
        produced[event.job_id] += len(event.tokens)
        started = started or min(produced.values()) > 0
        if started:
            assert max(produced.values()) - min(produced.values()) <= 1


# ends and refusals


def test_a_stop_token_ends_the_job_and_is_not_part_of_it(engine: Engine) -> None:
    text = document(1, 50)
    whole = run(engine, job(text, 20)).tokens
    stop = whole[7]
    answer = run(engine, job(text, 20, stop_token_ids=frozenset({stop})))
    assert answer.tokens == whole[: whole.index(stop)]
    assert answer.finish is Finish.STOP


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, 0.95, 0, 3)])
def test_a_stop_token_has_to_wait_for_the_minimum(engine: Engine, sampling: Sampling) -> None:
    text = document(1, 50)
    whole = run(engine, job(text, 20, sampling=sampling)).tokens
    stops = frozenset({whole[0], whole[3]})
    held = run(engine, job(text, 20, sampling=sampling, stop_token_ids=stops, min_new_tokens=6))
    assert len(held.tokens) >= 6
    assert not stops & set(held.tokens)
    assert run(engine, job(text, 20, sampling=sampling, stop_token_ids=stops)).tokens == []


def test_a_job_that_fills_the_context_is_served_and_a_longer_one_refused(
    load_engine: Callable[..., Engine], tiny: Callable
) -> None:
    engine = load_engine(tiny("llama").folder, max_context=200)
    assert engine.max_context == 200
    answer = run(engine, job(document(1, 190), 10))
    assert answer.tokens == tiny("llama").greedy(document(1, 190), 10)
    with pytest.raises(ValueError, match="context holds 200"):
        engine.add(job(document(1, 190), 11))
    assert engine.step() == []


def test_max_context_is_never_above_the_models(
    load_engine: Callable[..., Engine], tiny: Callable
) -> None:
    assert load_engine(tiny("llama").folder, max_context=10**6).max_context == CONTEXT
    assert load_engine(tiny("llama").folder).max_context == CONTEXT


def test_jobs_that_make_no_sense_are_refused(engine: Engine, numbers: Numbers) -> None:
    with pytest.raises(ValueError, match="at least one prompt token"):
        engine.add(job(()))
    with pytest.raises(ValueError, match="one token to produce"):
        engine.add(job((1, 2), 0))
    with pytest.raises(ValueError, match=f"token ids outside 0 to {numbers.vocabulary - 1}"):
        engine.add(job((1, numbers.vocabulary)))
    with pytest.raises(ValueError, match="token ids outside"):
        engine.add(job((-1, 2)))
    with pytest.raises(ValueError, match="token ids outside"):
        engine.add(job((1, 2), given=(numbers.vocabulary,)))
    with pytest.raises(ValueError, match="must not be more than those to produce"):
        engine.add(job((1, 2), 2, given=(1, 2, 3)))
    running = job((1, 2))
    engine.add(running)
    with pytest.raises(ValueError, match="still running"):
        engine.add(running)


def test_a_failing_job_leaves_the_others_alone(
    load_engine: Callable[..., Engine], tiny: Callable, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = tiny("qwen2")
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "config.json").write_bytes((model.folder / "config.json").read_bytes())
    weights = load_file(model.folder / "model.safetensors")
    weights["model.embed_tokens.weight"][13] = torch.nan
    save_file(weights, folder / "model.safetensors")
    engine = load_engine(folder)
    healthy = tuple(token for token in document(1, 60) if token != 13)
    good, bad = job(healthy, 1), job((*healthy, 13), 5)
    engine.add(good)
    engine.step()
    engine.add(bad)
    events = []
    with pytest.raises(JobFailed) as failure:
        for _ in range(20):
            events += engine.step()
    assert failure.value.job_id == bad.id
    assert isinstance(failure.value.cause, ValueError)
    events += drain(engine)
    assert Answer(good, events).tokens == model.greedy(healthy, 1)
    assert (engine.stats().jobs_active, engine.stats().sequences_in_use) == (0, 0)
    # Nothing of the failed job is kept.
    assert engine.stats().sequences_cached == 1
    assert run(engine, job((*healthy, 12), 1)).tokens == model.greedy((*healthy, 12), 1)


# sampling


def test_seeds_are_reproducible_and_independent_of_history(
    make_engine: Callable[[], Engine],
) -> None:
    text = document(1, 90)

    def sampled(engine: Engine, seed: int) -> list[int]:
        one = job(text, 16, sampling=Sampling(temperature=1.2, top_p=0.95, top_k=60, seed=seed))
        return run(engine, one).tokens

    fresh = [sampled(make_engine(), seed) for seed in range(4)]
    assert len({tuple(tokens) for tokens in fresh}) == 4
    used = make_engine()
    run(used, job(text[:70] + document(2, 30), 9))
    used.add(job(document(3, 40), 30, lane=Lane.BACKGROUND, sampling=Sampling(1.0)))
    assert [sampled(used, seed) for seed in (3, 1, 2, 0)] == [fresh[n] for n in (3, 1, 2, 0)]


def test_a_sample_goes_on_the_same_while_it_is_typed_along(engine: Engine) -> None:
    text = document(1, 60)
    sampling = Sampling(temperature=1.0, seed=4)
    tokens = run(engine, job(text, 12, sampling=sampling)).tokens
    for typed in range(1, 12):
        rest = job((*text, *tokens[:typed]), 12 - typed, sampling=sampling)
        assert run(engine, rest).tokens == tokens[typed:]


# memory


def test_a_small_cap_changes_no_answer(load_engine: Callable[..., Engine], tiny: Callable) -> None:
    model = tiny("wide")  # 8 KiB a token: 16 MiB hold 2,048 tokens
    engine = load_engine(model.folder, kv_memory_mb=16, prefill_chunk=512)
    header = document(0, 100)
    texts = [header + document(seed, 380) for seed in range(1, 9)]
    expected = [model.greedy(text, 5) for text in texts]
    reused = []
    for number in [*range(8), *range(8), 7, 6, 0]:
        answer = run(engine, job(texts[number], 5))
        assert answer.tokens == expected[number]
        reused.append(answer.reused)
        assert 0 < engine.stats().kv_bytes <= engine.stats().kv_bytes_limit == 16 * 2**20
    # The last documents are still there, the first were dropped but for the common header.
    assert reused[-3:] == [480, 480, 100]


def test_active_jobs_may_exceed_the_cap_and_idle_ones_not(
    load_engine: Callable[..., Engine], tiny: Callable
) -> None:
    model = tiny("wide")
    engine = load_engine(model.folder, kv_memory_mb=16, prefill_chunk=512)
    jobs = [job(document(seed, 480), 6) for seed in range(6)]
    for one in jobs:
        engine.add(one)
    events = [event for _ in jobs for event in engine.step()]
    assert engine.stats().kv_bytes > engine.stats().kv_bytes_limit
    events += drain(engine)
    for one in jobs:
        assert Answer(one, events).tokens == model.greedy(one.prompt, 6)
    assert engine.stats().kv_bytes <= engine.stats().kv_bytes_limit


# histories


edits = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "step", "step", "step", "cancel"]),
        st.integers(0, 2),  # document
        st.integers(1, 150),  # cursor
        st.integers(0, 3),  # tokens typed there
        st.integers(1, 12),  # steps, or which job to cancel
    ),
    max_size=25,
)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(edits, st.sampled_from(ARCHITECTURES))
def test_no_history_changes_an_answer(
    load_engine: Callable[..., Engine],
    tiny: Callable,
    history: list[tuple[str, int, int, int, int]],
    architecture: str,
) -> None:
    model = tiny(architecture)
    engine = load_engine(model.folder)
    header = document(99, 40)
    texts = [header + document(seed, 120) for seed in range(3)]
    jobs: dict[int, Job] = {}
    events: list[Event] = []
    cancelled: dict[int, int] = {}
    for action, which, cursor, typed, number in history:
        if action == "add":
            prompt = texts[which][:cursor] + document(cursor, typed)
            one = job(prompt, number, lane=Lane(number % 3))
            jobs[one.id] = one
            engine.add(one)
        elif action == "cancel" and jobs:
            chosen = list(jobs)[number % len(jobs)]
            engine.cancel(chosen)
            cancelled.setdefault(chosen, len(events))
        else:
            events += [event for _ in range(number) for event in engine.step()]
    events += drain(engine)
    for job_id, since in cancelled.items():
        assert job_id not in {event.job_id for event in events[since:]}
    finished = {event.job_id for event in events if event.finish}
    assert finished >= set(jobs) - set(cancelled)
    for job_id in finished:
        one = jobs[job_id]
        assert Answer(one, events).tokens == model.greedy(one.prompt, one.max_new_tokens)
    stats = engine.stats()
    assert (stats.jobs_active, stats.sequences_in_use) == (0, 0)
    assert stats.tokens_generated == sum(len(event.tokens) for event in events)
    last: dict[int, Event] = {event.job_id: event for event in events}
    assert stats.prompt_tokens_computed == sum(event.computed for event in last.values())
    assert stats.prompt_tokens_reused == sum(event.reused for event in last.values())


def test_close_drops_jobs_and_memory(engine: Engine) -> None:
    run(engine, job(document(1, 50)))
    engine.add(job(document(2, 50)))
    engine.step()
    assert engine.stats().weight_bytes > 0 and engine.stats().sequences_cached == 2
    assert engine.stats().sequences_in_use > 0
    engine.close()
    assert engine.step() == []
    stats = engine.stats()
    assert (stats.jobs_active, stats.sequences_cached, stats.kv_bytes) == (0, 0, 0)
