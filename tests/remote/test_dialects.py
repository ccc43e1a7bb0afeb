"""The engine and servers that speak OpenAI's dialect: vLLM by tokens, TabbyAPI by texts, and all that can go
wrong on the way. The servers are strict stand-ins (tests/support/remote)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from remote.conftest import Connect
from tokenizers import Tokenizer

from completion_ls.config.settings import RemoteSettings
from completion_ls.decode.covering import Covering
from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.contract import Event, Finish, Job, JobFailed, Lane, Sampling, Unfinished
from completion_ls.engines.remote import breaker, http
from completion_ls.engines.remote.engine import RemoteEngine
from completion_ls.engines.remote.errors import ServerError
from completion_ls.engines.remote.probe import look
from completion_ls.prompt.build import PromptBuilder
from support.jobs import answer, drain, job
from support.remote import faults
from support.remote.http import serving
from support.remote.model import HashedModel
from support.remote.tabby import Tabby
from support.remote.vllm import Vllm
from support.tokenizer_kinds import KINDS

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("short_pauses")]

CODE = "def add(a, b):\n    return a + b\n\n\nfor value in values:\n    pri"
WORDS = [" val", "pri", " ret", "(", "\n    ", " él", "x"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return KINDS["qwen2"]()


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> HashedModel:
    return HashedModel(tokenizer, seed=3, end=0, end_bias=-6)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def tokens_of(events: Sequence[Event]) -> list[int]:
    return [token for event in events for token in event.tokens]


def ids_of(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False).ids)


def word_job(vocabulary: Vocabulary, before: tuple[int, ...], word: str, **more: Any) -> Job:
    reading = vocabulary.read(word)
    return job((*before, *reading), 8, unfinished=Unfinished(word.encode(), len(reading)), **more)


# what a server can


@pytest.mark.parametrize("age", ["0.9.2", "0.11.0"])
def test_vllm_is_spoken_to_by_tokens(model: HashedModel, tokenizer: Tokenizer, age: str) -> None:
    with serving(Vllm(model, age=age, tells_cached=True, max_model_len=1024)) as server:
        found = look(RemoteSettings(url=server.url), tokenizer)
    assert found.software == f"vLLM {age}" and found.dialect == "openai"
    assert found.by_tokens
    assert (found.logprobs, found.max_context, found.slots) == (20, 1024, None)
    assert found.counts_reuse and found.reuses is True
    assert found.fills_in == ""


def test_vllm_that_does_not_count_is_not_said_to_reuse(
    model: HashedModel, tokenizer: Tokenizer
) -> None:
    with serving(Vllm(model, tells_cached=False)) as server:
        found = look(RemoteSettings(url=server.url), tokenizer)
    assert (found.counts_reuse, found.reuses) == (False, None)


@pytest.mark.parametrize("age", ["2025", "2026"])
def test_tabbyapi_is_spoken_to_by_texts(model: HashedModel, tokenizer: Tokenizer, age: Any) -> None:
    with serving(Tabby(model, age=age, max_seq_len=1024)) as server:
        found = look(RemoteSettings(url=server.url), tokenizer)
    assert found.software == "TabbyAPI"
    assert found.same_tokens is True and not found.token_prompts and not found.by_tokens
    assert not found.by_tokens and found.logprobs > 0
    assert found.max_context == 1024
    assert found.reuses is (True if age == "2026" else None)
    assert found.fills_in == ""  # it takes a suffix, and does not read it


def test_another_vocabulary_is_noticed(model: HashedModel) -> None:
    with serving(Vllm(model)) as server:
        found = look(RemoteSettings(url=server.url), KINDS["llama3"]())
    assert found.same_tokens is False and not found.by_tokens


def test_a_model_that_is_not_there_is_named_with_those_that_are(
    model: HashedModel, tokenizer: Tokenizer
) -> None:
    with serving(Vllm(model, name="here")) as server:
        settings = RemoteSettings(url=server.url, model="elsewhere")
        with pytest.raises(ServerError, match="no model 'elsewhere'; it has here"):
            look(settings, tokenizer)


def test_a_wrong_key_is_a_sentence_without_the_key(
    model: HashedModel, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for server_of in (Vllm(model, key="right"), Tabby(model, key="right")):
        with serving(server_of) as server:
            monkeypatch.setenv("COMPLETION_LS_API_KEY", "secret-and-wrong")
            with pytest.raises(ServerError, match="COMPLETION_LS_API_KEY") as failure:
                look(RemoteSettings(url=server.url), tokenizer)
            assert "secret" not in str(failure.value) and failure.value.lasts
            monkeypatch.setenv("COMPLETION_LS_API_KEY", "right")
            assert look(RemoteSettings(url=server.url), tokenizer).model
            assert server.requests[-1].bearer == "right"


# answers by tokens


def test_greedy_output_is_the_models(
    model: HashedModel, tokenizer: Tokenizer, engine_of: Connect
) -> None:
    with serving(Vllm(model, tells_cached=True)) as server:
        engine = engine_of(server)
        prompt = ids_of(tokenizer, CODE)
        events = answer(engine, job(prompt, 20))
        assert tokens_of(events) == model.greedy(prompt, 20)
        assert events[-1].finish is Finish.LENGTH
        assert events[-1].reused + events[-1].computed == len(prompt)
        logprobs = [logprob for event in events for logprob in event.logprobs]
        for place, (token, logprob) in enumerate(zip(tokens_of(events), logprobs, strict=True)):
            expected = model.logprobs((*prompt, *tokens_of(events)[:place]))[token]
            assert logprob == pytest.approx(expected, abs=1e-4)
        again = answer(engine, job((*prompt, *tokens_of(events)), 3))
        assert again[-1].reused > len(prompt) - 32  # whole blocks


@pytest.mark.parametrize("burst", [1, 3])
@pytest.mark.parametrize("word", WORDS)
def test_a_word_is_covered_as_by_a_local_engine(
    model: HashedModel,
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    engine_of: Connect,
    word: str,
    burst: int,
) -> None:
    before = ids_of(tokenizer, CODE[:40])
    # All that there are may be asked for, so that every choice is sure.
    with serving(Vllm(model, max_logprobs=1000, burst=burst)) as server:
        engine = engine_of(server)
        wanted = word_job(vocabulary, before, word)
        events = answer(engine, wanted)

    def look_into(branches: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        return [model.logprobs((*before, *branch)) for branch in branches]

    def known(branch: tuple[int, ...]) -> np.ndarray:
        return model.logprobs((*before, *branch))

    expected = Covering(
        word.encode(), known, look_into, vocabulary, Sampling(), len(before)
    ).choose()
    first = next(event for event in events if event.tokens)
    assert first.tokens == expected.tokens
    assert first.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
    rest = model.greedy((*before, *expected.tokens), 7)
    assert tokens_of(events) == [*expected.tokens, *rest]
    assert engine.figures()["server_words_guessed"] == 0


def test_a_word_of_several_tokens_costs_nothing_of_what_follows(
    model: HashedModel, tokenizer: Tokenizer, vocabulary: Vocabulary, engine_of: Connect
) -> None:
    """The request that is made for the word ends when it has so many tokens, and the word is one for us."""
    tried = 0
    with serving(Vllm(model, max_logprobs=1000)) as server:
        engine = engine_of(server)
        for length in range(1, 40):
            before = ids_of(tokenizer, CODE[:length])
            first, second = model.greedy(before, 2)
            spelled = vocabulary.bytes_of(first) + vocabulary.bytes_of(second)[:1]
            if not vocabulary.is_canonical((first, second)) or not spelled.isascii():
                continue
            if len(vocabulary.bytes_of(second)) < 2:
                continue
            for count in (2, 3):
                wanted = replace(
                    word_job(vocabulary, before, spelled.decode()), max_new_tokens=count
                )
                events = answer(engine, wanted)
                if events[0].tokens == (first, second):
                    tried += 1
                    rest = model.greedy((*before, first, second), count - 1)
                    assert tokens_of(events) == [first, second, *rest]
                    assert events[-1].finish is Finish.LENGTH
    assert tried


def test_what_is_told_of_a_place_does_not_depend_on_what_is_drawn(
    model: HashedModel, tokenizer: Tokenizer, vocabulary: Vocabulary, engine_of: Connect
) -> None:
    """A token that was drawn is told of beside the most probable ones."""
    before = ids_of(tokenizer, CODE[:40])
    with serving(Vllm(model, max_logprobs=5)) as server:
        engine = engine_of(server)
        tried = len(server.requests)
        answer(engine, word_job(vocabulary, before, " val", sampling=Sampling(3.0, seed=7)))
        asked = [one.body for one in server.requests[tried:]]
    looks = [body for body in asked if body["max_tokens"] == 1]
    assert looks and {body["temperature"] for body in looks} == {0}
    assert [body["temperature"] for body in asked if body["max_tokens"] > 1] == [3.0]


@pytest.mark.parametrize("word", WORDS)
def test_with_few_probabilities_the_output_still_spells_the_word(
    model: HashedModel, tokenizer: Tokenizer, vocabulary: Vocabulary, engine_of: Connect, word: str
) -> None:
    before = ids_of(tokenizer, CODE[:40])
    with serving(Vllm(model, max_logprobs=5)) as server:
        engine = engine_of(server)
        events = answer(engine, word_job(vocabulary, before, word))
    spelled = b"".join(map(vocabulary.bytes_of, tokens_of(events)))
    assert spelled.startswith(word.encode()) and len(spelled) > len(word.encode())


def test_stop_tokens_the_minimum_and_seeds(
    model: HashedModel, tokenizer: Tokenizer, engine_of: Connect
) -> None:
    prompt = ids_of(tokenizer, CODE)
    with serving(Vllm(model, tells_cached=True)) as server:
        engine = engine_of(server)
        whole = tokens_of(answer(engine, job(prompt, 12)))
        stops = frozenset({whole[4]})
        stopped = answer(engine, job(prompt, 12, stop_token_ids=stops))
        assert tokens_of(stopped) == whole[: whole.index(whole[4])]
        assert stopped[-1].finish is Finish.STOP
        held = answer(engine, job(prompt, 12, stop_token_ids=stops, min_new_tokens=8))
        assert len(tokens_of(held)) >= 8 and not stops & set(tokens_of(held))
        drawn = [
            tokens_of(answer(engine, job(prompt, 12, sampling=Sampling(1.0, 0.9, 0, seed))))
            for seed in (1, 1, 2, -1, -1)
        ]
    assert drawn[0] == drawn[1] != drawn[2] and drawn[3] == drawn[4]


def test_the_requests_of_a_document_are_a_session_that_tells_nothing_of_it(
    model: HashedModel, tokenizer: Tokenizer, vocabulary: Vocabulary, engine_of: Connect
) -> None:
    with serving(Vllm(model, tells_cached=True, max_logprobs=1000)) as server:
        engine = engine_of(server)
        prompts = PromptBuilder(tokenizer, "plain", frozenset())
        for document in ("file:///a.py", "file:///b.py"):
            for length in range(40, len(CODE) + 1):
                text = document + "\n" + CODE[:length]
                prompt = prompts.build(text, "", context="", budget=900, suffix_share=0)
                wanted = job(prompt.ids, 3, unfinished=prompt.unfinished, document=document)
                answer(engine, wanted)
        asked = [one for one in server.asked("/v1/completions") if one.headers.get("x-session-id")]
    sessions = {one.headers["x-session-id"] for one in asked}
    assert len(sessions) == 2 and not any("a.py" in session for session in sessions)


def test_cancel_closes_the_stream_at_once(
    model: HashedModel, tokenizer: Tokenizer, engine_of: Connect
) -> None:
    with serving(Vllm(model)) as server:
        engine = engine_of(server)
        server.fault = faults.SlowEvents(0.05)
        wanted = job(ids_of(tokenizer, CODE), 500)
        engine.add(wanted)
        while not engine.step():
            pass
        engine.cancel(wanted.id)
        request = server.requests[-1]
        assert request.over.wait(5) and request.closed_early
        assert engine.stats().jobs_active == 0


def test_cancel_before_the_first_byte_closes_the_connection(
    model: HashedModel, tokenizer: Tokenizer, engine_of: Connect
) -> None:
    with serving(Vllm(model)) as server:
        engine = engine_of(server)
        server.fault = faults.Silent()
        before = len(server.requests)
        wanted = job(ids_of(tokenizer, CODE), 500)
        engine.add(wanted)
        while len(server.requests) == before:
            engine.step()
        engine.cancel(wanted.id)
        request = server.requests[-1]
        assert request.over.wait(5) and request.closed_early


def test_a_server_that_hangs_while_one_types_is_left_alone(
    model: HashedModel, tokenizer: Tokenizer, engine_of: Connect, told: list[str]
) -> None:
    with serving(Vllm(model)) as server:
        engine = engine_of(server, timeout_s=0.1)
        server.fault = faults.Silent()
        deadline = time.monotonic() + 60
        number = 0
        while not told:
            number += 1
            wanted = job(ids_of(tokenizer, CODE + "x" * number), 5)
            engine.add(wanted)
            time.sleep(0.02)
            engine.cancel(wanted.id)
            assert time.monotonic() < deadline
        assert "has said nothing" in told[0]


def test_no_more_is_asked_at_once_than_a_server_is_thought_to_do(
    model: HashedModel, tokenizer: Tokenizer, engine_of: Connect
) -> None:
    with serving(Vllm(model)) as server:
        engine = engine_of(server)
        server.fault = faults.SlowEvents(0.02)
        ahead = [job(ids_of(tokenizer, f"{n} {CODE}"), 20, lane=Lane.BACKGROUND) for n in range(12)]
        for one in ahead:
            engine.add(one)
        events: list[Event] = []
        while not events:
            events += engine.step()
        assert engine.stats().sequences_in_use == 8
        key = job(ids_of(tokenizer, CODE), 2)
        engine.add(key)
        events += drain(engine, 100_000)
    ended = [event.job_id for event in events if event.finish]
    assert ended.index(key.id) == 0
    for one in ahead:  # also what gave way is whole
        own = [event for event in events if event.job_id == one.id]
        assert tokens_of(own) == model.greedy(one.prompt, 20)


@pytest.fixture
def one_at_a_time(
    model: HashedModel, engine_of: Connect, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RemoteEngine]:
    """The engine of a slow server that is asked for one job at once."""
    monkeypatch.setattr("completion_ls.engines.remote.engine.AT_ONCE", 1)
    with serving(Vllm(model)) as server:
        engine = engine_of(server)
        server.fault = faults.SlowEvents(0.02)
        yield engine


def test_a_key_of_another_window_does_not_wait_for_work_ahead_of_the_user(
    tokenizer: Tokenizer, one_at_a_time: RemoteEngine
) -> None:
    engine, prompt = one_at_a_time, ids_of(tokenizer, CODE)
    engine.favour("user")
    ahead = [job(prompt, 20, lane=Lane.BACKGROUND, front="user") for _ in range(2)]
    for one in ahead:
        engine.add(one)
    key = job(prompt, 2, front="other")
    engine.add(key)
    events = list(drain(engine, 100_000))
    ended = [event.job_id for event in events if event.finish]
    assert ended[0] == key.id and set(ended[1:]) == {one.id for one in ahead}


def test_what_gives_way_twice_is_whole_and_keeps_its_counts(
    model: HashedModel, tokenizer: Tokenizer, one_at_a_time: RemoteEngine
) -> None:
    engine, prompt = one_at_a_time, ids_of(tokenizer, CODE)
    ahead = job(prompt, 20, lane=Lane.BACKGROUND)
    engine.add(ahead)
    events: list[Event] = []
    while len(tokens_of(events)) < 2:
        events += engine.step()
    # The second of these comes before the job has said anything again.
    for key in [job(prompt, 2) for _ in range(2)]:
        engine.add(key)
        while not any(event.job_id == key.id and event.finish for event in events):
            events += engine.step()
        events += engine.step()  # the job is asked for again
    events += drain(engine, 100_000)
    own = [event for event in events if event.job_id == ahead.id]
    assert tokens_of(own) == model.greedy(prompt, 20)
    told = [(event.reused, event.computed) for event in own]
    assert told == [told[0]] * len(own)
    total = engine.stats()
    counted = total.prompt_tokens_reused + total.prompt_tokens_computed
    assert counted == sum(told[0]) + 2 * len(prompt)


# answers by texts


@pytest.mark.parametrize("age", ["2025", "2026"])
@pytest.mark.parametrize("word", WORDS)
def test_by_texts_a_word_is_healed(
    model: HashedModel,
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    engine_of: Connect,
    age: Any,
    word: str,
) -> None:
    before = ids_of(tokenizer, CODE[:40])
    with serving(Tabby(model, age=age)) as server:
        engine = engine_of(server)
        events = answer(engine, word_job(vocabulary, before, word))
        asked = server.asked("/v1/completions")[-1]
    spelled = b"".join(map(vocabulary.bytes_of, tokens_of(events)))
    assert spelled.startswith(word.encode())
    assert all(logprob <= 0 for event in events for logprob in event.logprobs)
    # What is gone on from is what the model itself says behind the word, or behind the text before it.
    assert asked.body["prompt"] in (CODE[:40], CODE[:40] + word)
    reading = model.encode(asked.body["prompt"])
    expected = model.bytes_of(model.greedy(reading, 8)).decode(errors="replace")
    typed = word if asked.body["prompt"] == CODE[:40] + word else ""
    said = spelled.decode(errors="replace")[: len(typed) + 4].rstrip("\ufffd")
    assert (typed + expected).startswith(said)


def test_control_tokens_go_as_texts_and_end_an_answer(
    tokenizer: Tokenizer, engine_of: Connect, model: HashedModel
) -> None:
    with serving(Tabby(model)) as server:
        engine = engine_of(server)
        end = tokenizer.token_to_id("<|endoftext|>")
        answer(engine, job((end, *ids_of(tokenizer, CODE)), 4, stop_token_ids=frozenset({end})))
        assert server.requests[-1].body["prompt"] == "<|endoftext|>" + CODE


# faults

MENDED = [
    faults.Status(429),
    faults.Status(429, "0"),
    faults.Status(500),
    faults.Status(503),
    faults.Cut(0, reset=True),
    faults.SlowStart(0.3),
    faults.SlowEvents(0.02),
    faults.NoDone(),
]
"""Of these nothing is seen."""
LOST = [
    faults.Status(429, "600"),
    faults.Cut(0, within_line=True),
    faults.Cut(2, reset=True),
    faults.Cut(2, reset=False),
    faults.Cut(2, reset=False, within_line=True),
    faults.Page(200),
    faults.Redirect("http://127.0.0.1:9/"),
    faults.Event(faults.NOT_JSON),
    faults.Event(faults.A_LIST),
    faults.Event(faults.NULL_CHOICES),
    faults.Event(faults.NO_TEXT),
    faults.Event(faults.OTHER_TYPES),
    faults.ErrorInStream(),
    faults.Silent(),
    faults.Hangs(2),
    faults.NotAStream(),
    faults.Packed(),
]
"""Of these the one answer is lost, in a sentence."""


def _name(fault: object) -> str:
    return repr(fault)[:60]


@pytest.fixture(params=["vllm", "tabby"])
def dialect(request: pytest.FixtureRequest, model: HashedModel) -> Vllm | Tabby:
    return Vllm(model) if request.param == "vllm" else Tabby(model)


@pytest.mark.parametrize("fault", MENDED, ids=_name)
def test_a_fault_before_the_first_byte_is_mended(
    dialect: Vllm | Tabby,
    tokenizer: Tokenizer,
    engine_of: Connect,
    told: list[str],
    fault: Any,
) -> None:
    with serving(dialect) as server:
        engine = engine_of(server)
        prompt = ids_of(tokenizer, CODE)
        whole = tokens_of(answer(engine, job(prompt, 5)))
        server.fail(fault, times=2, path="/v1/completions")
        assert tokens_of(answer(engine, job(prompt, 5))) == whole
    assert told == []


@pytest.mark.parametrize("fault", LOST, ids=_name)
def test_a_fault_costs_one_answer_and_is_one_sentence(
    dialect: Vllm | Tabby,
    tokenizer: Tokenizer,
    engine_of: Connect,
    told: list[str],
    fault: Any,
) -> None:
    with serving(dialect) as server:
        engine = engine_of(server, timeout_s=0.5)
        prompt = ids_of(tokenizer, CODE)
        whole = tokens_of(answer(engine, job(prompt, 5)))
        server.fail(fault, times=1, path="/v1/completions")
        with pytest.raises(JobFailed) as failure:
            answer(engine, job(prompt, 5))
        sentence = str(failure.value.cause)
        assert isinstance(failure.value.cause, ServerError)
        assert sentence.startswith("The server 127.0.0.1:") and sentence.endswith((".", "?"))
        assert "return" not in sentence and "values" not in sentence  # nothing of the prompt
        assert engine.stats().jobs_active == 0
        # A redirect is told at once, and looked at again.
        wait_until(lambda: not engine.figures()["server_trouble"])
        assert tokens_of(answer(engine, job(prompt, 5))) == whole


def test_an_endless_line_ends(
    model: HashedModel, tokenizer: Tokenizer, engine_of: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MOST_LINE", 100_000)
    with serving(Vllm(model)) as server:
        engine = engine_of(server)
        server.fail(faults.EndlessLine())
        with pytest.raises(JobFailed, match="without an end"):
            answer(engine, job(ids_of(tokenizer, CODE), 5))


def test_what_has_begun_is_not_asked_for_again(
    model: HashedModel, tokenizer: Tokenizer, engine_of: Connect
) -> None:
    with serving(Vllm(model)) as server:
        engine = engine_of(server)
        before = len(server.requests)
        server.fail(faults.Cut(3, reset=True), times=5)
        with pytest.raises(JobFailed):
            answer(engine, job(ids_of(tokenizer, CODE), 50))
        assert len(server.requests) == before + 1


def test_a_server_that_fails_again_and_again_is_left_alone_and_told_of_once(
    model: HashedModel, tokenizer: Tokenizer, engine_of: Connect, told: list[str]
) -> None:
    with serving(Vllm(model)) as server:
        engine = engine_of(server)
        prompt = ids_of(tokenizer, CODE)
        server.fault = faults.Status(500)
        for _ in range(20):
            with pytest.raises(JobFailed):
                answer(engine, job(prompt, 5))
        assert len(told) == 1 and "failed (500)" in told[0]
        assert engine.figures()["server_trouble"] == told[0]
        asked = [one for one in server.asked("/v1/completions") if one.body["prompt"] == [*prompt]]
        assert len(asked) == breaker.FAILURES * http.TRIES  # and trials, which have another prompt
        server.fault = None
        wait_until(lambda: len(told) >= 2)
        assert told[1] == ""
        assert tokens_of(answer(engine, job(prompt, 5))) == model.greedy(prompt, 5)


def test_failures_with_answers_between_them_are_no_reason_to_leave_a_server_alone(
    model: HashedModel, tokenizer: Tokenizer, engine_of: Connect, told: list[str]
) -> None:
    with serving(Vllm(model)) as server:
        engine = engine_of(server)
        prompt = ids_of(tokenizer, CODE)
        for _ in range(2 * breaker.FAILURES):
            server.fail(faults.Cut(2, reset=True))
            with pytest.raises(JobFailed):
                answer(engine, job(prompt, 50))
            # Of an answer nobody reads more than was wanted.
            assert tokens_of(answer(engine, job(prompt, 5))) == model.greedy(prompt, 5)
    assert told == []


def test_a_server_that_nobody_answers_for_is_told_of_at_once_and_comes_back(
    model: HashedModel, tokenizer: Tokenizer, engine_of: Connect, told: list[str]
) -> None:
    with serving(Vllm(model)) as server:
        engine = engine_of(server)
        prompt = ids_of(tokenizer, CODE)
        with server.refusing():
            with pytest.raises(JobFailed, match="cannot be reached"):
                answer(engine, job(prompt, 5))
            assert len(told) == 1
        wait_until(lambda: len(told) >= 2)
        assert tokens_of(answer(engine, job(prompt, 5))) == model.greedy(prompt, 5)


def test_a_server_that_comes_back_as_another_is_looked_at_anew(
    model: HashedModel, tokenizer: Tokenizer, engine_of: Connect, told: list[str]
) -> None:
    with serving(Vllm(model, max_model_len=1024)) as server:
        engine = engine_of(server)
        prompt = ids_of(tokenizer, CODE)
        with server.refusing():
            with pytest.raises(JobFailed):
                answer(engine, job(prompt, 5))
            server.dialect.max_model_len = 512
        wait_until(lambda: len(told) >= 2)
        with pytest.raises(ServerError, match="come back with another model"):
            answer(engine, job(prompt, 5))


def test_a_server_that_comes_back_busier_is_the_same(
    model: HashedModel, tokenizer: Tokenizer, engine_of: Connect, told: list[str]
) -> None:
    with serving(Vllm(model, tells_cached=True)) as server:
        engine = engine_of(server)
        assert engine.abilities.reuses
        prompt = ids_of(tokenizer, CODE)
        with server.refusing():
            with pytest.raises(JobFailed):
                answer(engine, job(prompt, 5))
            server.dialect.keeps = False
        wait_until(lambda: len(told) >= 2)
        assert tokens_of(answer(engine, job(prompt, 5))) == model.greedy(prompt, 5)


def test_the_engine_waits_for_a_server_that_is_not_there_yet(
    model: HashedModel,
    tokenizer: Tokenizer,
    engine_of: Connect,
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from completion_ls.engines.remote import engine as module

    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.05)
    with serving(Vllm(model)) as server:
        server.fail(faults.Status(503), times=7)
        engine = engine_of(server)
        assert len(told) == 2 and "503" in told[0] and told[1] == ""
        prompt = ids_of(tokenizer, CODE)
        assert tokens_of(answer(engine, job(prompt, 5))) == model.greedy(prompt, 5)


def test_nothing_of_a_prompt_is_logged(
    model: HashedModel,
    tokenizer: Tokenizer,
    engine_of: Connect,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    with serving(Vllm(model, key="sesame")) as server:
        engine = engine_of(server, key="sesame")
        prompt = ids_of(tokenizer, "marked_by_nobody_else = 1\n")
        answer(engine, job(prompt, 5))
        for fault in (faults.Status(400), faults.Status(500), faults.Event(faults.NOT_JSON)):
            server.fail(fault, times=3)
            with pytest.raises(JobFailed):
                answer(engine, job(prompt, 5))
    assert "marked_by" not in caplog.text and "sesame" not in caplog.text
    assert str(list(prompt))[1:-1] not in caplog.text
