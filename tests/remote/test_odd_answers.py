"""Servers that answer what no server should: it costs one answer at most, and nothing that lasts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from remote.conftest import Connect
from tokenizers import Tokenizer

from completion_ls.config.settings import RemoteSettings
from completion_ls.daemon.detokenize import Detokenizer
from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.contract import Job, JobFailed, Unfinished
from completion_ls.engines.remote import http
from completion_ls.engines.remote.engine import RemoteEngine
from completion_ls.engines.remote.errors import ServerError
from completion_ls.engines.remote.probe import look
from support.jobs import answer, job
from support.remote import faults
from support.remote.http import Dialect, serving
from support.remote.llama import LlamaCpp
from support.remote.model import HashedModel
from support.remote.vllm import Vllm
from support.tokenizer_kinds import KINDS

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("short_pauses")]

CODE = "def add(a, b):\n    return a + b\n"
SPOKEN = ("/completion", "/v1/completions")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return KINDS["qwen2"]()


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> HashedModel:
    return HashedModel(tokenizer, seed=3, end=0, end_bias=-6)


@pytest.fixture(params=["llama.cpp", "vllm"])
def dialect(request: pytest.FixtureRequest, model: HashedModel) -> Dialect:
    return LlamaCpp(model) if request.param == "llama.cpp" else Vllm(model, tells_cached=True)


def plain_job(tokenizer: Tokenizer, **more: Any) -> Job:
    return job(tokenizer.encode(CODE, add_special_tokens=False).ids, 6, **more)


def word_job(tokenizer: Tokenizer, word: str = " val") -> Job:
    before = tokenizer.encode(CODE, add_special_tokens=False).ids
    reading = Vocabulary(tokenizer).read(word)
    unfinished = Unfinished(word.encode(), len(reading))
    return job((*before, *reading), 6, unfinished=unfinished)


def everywhere(names: Sequence[str], value: object) -> Callable[[Any], Any]:
    """A twist: each field of these names has this value."""

    def twisted(told: Any) -> Any:
        match told:
            case dict():
                return {
                    name: value if name in names else twisted(inner) for name, inner in told.items()
                }
            case list():
                return [twisted(inner) for inner in told]
        return told

    return twisted


def of_the_best(value: object) -> Callable[[Any], Any]:
    """A twist: all log probabilities that are told beside the chosen token's have this value."""

    def twisted(told: Any) -> Any:
        for choice in told.get("choices", []):
            for top in (choice.get("logprobs") or {}).get("top_logprobs") or []:
                top.update(dict.fromkeys(top, value))
        for place in told.get("completion_probabilities", []):
            for one in place["top_logprobs"]:
                one["logprob"] = value
        return told

    return twisted


HUGE = 10**400
"""More than a float can be."""


def _name(value: object) -> str:
    return repr(value)[:20]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 5.0, HUGE], ids=_name)
@pytest.mark.parametrize("is_best", [False, True])
def test_what_can_be_no_probability_reaches_nobody_and_is_forgotten(
    dialect: Dialect, tokenizer: Tokenizer, engine_of: Connect, value: float, is_best: bool
) -> None:
    with serving(dialect) as server:
        engine = engine_of(server)
        whole = answer(engine, word_job(tokenizer))
        names = ("logprob", "token_logprobs")
        twist = everywhere(names, value if "llama" in repr(dialect).lower() else [value])
        for path in SPOKEN:
            server.fail(faults.Twisted(of_the_best(value) if is_best else twist), 99, path)
        for wanted in (word_job(tokenizer, " ret"), plain_job(tokenizer)):
            try:
                events = answer(engine, wanted)
            except JobFailed as failure:
                assert "shape" in str(failure.cause) or "probabilities" in str(failure.cause)
                continue
            for event in events:
                assert all(logprob <= 0 for logprob in event.logprobs)
                assert event.typed_logprob is None or event.typed_logprob <= 0
        server.fault = None
        _when_asked_again(engine)
        tokens = [token for event in answer(engine, word_job(tokenizer)) for token in event.tokens]
        assert tokens == [token for event in whole for token in event.tokens]
        assert answer(engine, word_job(tokenizer, " ret"))  # nothing of what was told stays


@pytest.mark.parametrize("id", [-1, 2**40, 2**70, HUGE], ids=_name)
def test_a_token_that_cannot_be_costs_one_answer(
    dialect: Dialect, tokenizer: Tokenizer, engine_of: Connect, id: int
) -> None:
    ids = [id] if isinstance(dialect, LlamaCpp) else [f"token_id:{id}"]
    with serving(dialect) as server:
        engine = engine_of(server)
        for wanted in (plain_job(tokenizer), word_job(tokenizer)):
            for path in SPOKEN:
                server.fail(faults.Twisted(everywhere(["tokens"], ids)), 99, path)
            text = Detokenizer(tokenizer, wanted.prompt)
            with pytest.raises(JobFailed, match="in another shape"):
                for event in answer(engine, wanted):
                    text.add(event.tokens)
            server.fault = None
        _when_asked_again(engine)
        assert answer(engine, plain_job(tokenizer))


def test_counts_that_cannot_be_are_no_counts_below_nothing(
    tokenizer: Tokenizer, model: HashedModel, engine_of: Connect
) -> None:
    for dialect, names in (
        (LlamaCpp(model), ("prompt_n", "cache_n")),
        (Vllm(model, tells_cached=True), ("cached_tokens",)),
    ):
        for value in (-7, 10**30):
            with serving(dialect) as server:
                engine = engine_of(server)
                for path in SPOKEN:
                    server.fail(faults.Twisted(everywhere(names, value)), 99, path)
                events = answer(engine, plain_job(tokenizer))
                assert all(0 <= event.reused < 2**40 for event in events)
                assert all(0 <= event.computed < 2**40 for event in events)


def test_half_a_surrogate_pair_is_no_text(
    dialect: Dialect, tokenizer: Tokenizer, engine_of: Connect
) -> None:
    with serving(dialect) as server:
        engine = engine_of(server)
        twist = everywhere(["text", "content"], "\ud83d")
        for path in SPOKEN:
            server.fail(faults.Twisted(twist), 99, path)
        with pytest.raises(JobFailed, match="in another shape"):
            answer(engine, plain_job(tokenizer))


def test_a_server_that_tells_less_when_asked_for_more_is_not_asked_for_ever(
    tokenizer: Tokenizer, model: HashedModel, engine_of: Connect
) -> None:
    asked = 0

    def fewer(told: Any) -> Any:
        nonlocal asked
        asked += 1
        for place in told.get("completion_probabilities", []):
            place["top_logprobs"] = place["top_logprobs"][: max(1, 20 - asked)]
        return told

    with serving(LlamaCpp(model)) as server:
        engine = engine_of(server)
        server.fail(faults.Twisted(fewer), 10_000, "/completion")
        for word in (" val", "pri", " ret", "(", "x"):
            assert answer(engine, word_job(tokenizer, word))
        assert len(server.asked("/completion")) < 200


@pytest.mark.parametrize("value", [0, -1, 10**12, "many", math.inf, math.nan, None], ids=repr)
def test_slots_and_a_context_that_cannot_be_are_not_believed(
    model: HashedModel, tokenizer: Tokenizer, engine_of: Connect, value: Any
) -> None:
    with serving(LlamaCpp(model, slots=value, context=value)) as server:
        engine = engine_of(server)
        assert engine.abilities.slots is None
        assert engine.max_context >= 1024
        assert answer(engine, plain_job(tokenizer))


def test_names_that_are_none_are_shown_to_nobody(model: HashedModel, tokenizer: Tokenizer) -> None:
    odd = ["x" * 100_000, "a\x1b[2J", 7, None, ["a"]]

    def listed(told: Any) -> Any:
        return {**told, "data": [{**told["data"][0], "id": id} for id in odd]}

    with serving(Vllm(model)) as server:
        server.fail(faults.Twisted(listed), path="/v1/models")
        with pytest.raises(ServerError, match="no model") as failure:
            look(RemoteSettings(url=server.url), tokenizer)
        assert len(str(failure.value)) < 300 and "\x1b" not in str(failure.value)
    with serving(LlamaCpp(model, props={"model_alias": "a\x1b[2J"})) as llama:
        assert look(RemoteSettings(url=llama.url), tokenizer).model == ""


def test_a_server_that_was_started_anew_with_another_model_is_noticed(
    tokenizer: Tokenizer, model: HashedModel, engine_of: Connect, told: list[str]
) -> None:
    """Between two keys, so that no request has failed: what was in the slot is not there any more."""
    with serving(LlamaCpp(model, props={"model_alias": "one"})) as server:
        engine = engine_of(server)
        prompt = tokenizer.encode(CODE * 6, add_special_tokens=False).ids
        answer(engine, job(prompt, 2, document="file:///a.py"))
        answer(engine, job(prompt, 2, document="file:///a.py"))  # others may use a slot
        server.dialect = LlamaCpp(model, props={"model_alias": "other"})
        with pytest.raises((JobFailed, ServerError), match="another model"):
            for _ in range(2):
                answer(engine, job(prompt, 2, document="file:///a.py"))
        deadline = time.monotonic() + 20
        with pytest.raises(ServerError, match="looked at anew"):
            while time.monotonic() < deadline:
                engine.step()


def _when_asked_again(engine: RemoteEngine) -> None:
    deadline = time.monotonic() + 20
    while engine.figures()["server_trouble"]:
        assert time.monotonic() < deadline
        engine.step()
        time.sleep(0.01)


PING = b": ping\n\n"
NOTHING = b'data: {"choices": [], "content": "", "tokens": []}\n\n'


@pytest.mark.parametrize(
    "fault",
    [faults.Drips(0.05), faults.Endless(PING), faults.Endless(PING, 0), faults.Endless(NOTHING)],
    ids=["bytes", "pings", "pings-from-the-beginning", "empty-events"],
)
def test_who_says_nothing_new_is_silent(
    dialect: Dialect,
    tokenizer: Tokenizer,
    engine_of: Connect,
    monkeypatch: pytest.MonkeyPatch,
    fault: faults.Fault,
) -> None:
    monkeypatch.setattr(http, "CONNECT_S", 0.2)
    with serving(dialect) as server:
        engine = engine_of(server, timeout_s=0.2)
        for wanted in (plain_job(tokenizer), word_job(tokenizer)):
            for path in SPOKEN:
                server.fail(fault, 99, path)
            with pytest.raises(JobFailed, match="nothing"):
                answer(engine, wanted)
            assert server.requests[-1].over.wait(5)
            server.fault = None
        assert answer(engine, plain_job(tokenizer))


def test_a_server_that_drips_does_not_keep_the_trial_for_ever(
    dialect: Dialect,
    tokenizer: Tokenizer,
    engine_of: Connect,
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "CONNECT_S", 0.2)
    with serving(dialect) as server:
        engine = engine_of(server, timeout_s=0.2)
        server.refuse()
        with pytest.raises(JobFailed):
            answer(engine, plain_job(tokenizer))
        server.fail(faults.Endless(b" ", after=0), 1, "/props")
        server.listen()
        _when_asked_again(engine)
        assert answer(engine, plain_job(tokenizer))


@pytest.mark.parametrize("is_word", [False, True])
def test_an_answer_that_does_not_stop_is_stopped(
    dialect: Dialect, tokenizer: Tokenizer, engine_of: Connect, is_word: bool
) -> None:
    with serving(dialect) as server:
        engine = engine_of(server)
        for path in SPOKEN:
            server.fail(faults.Repeats(), path=path)
        wanted = word_job(tokenizer) if is_word else plain_job(tokenizer)
        events = answer(engine, wanted)
        assert len([token for event in events for token in event.tokens]) <= 12
        assert server.requests[-1].over.wait(5)


def test_a_line_without_an_end_is_read_no_further(
    dialect: Dialect, tokenizer: Tokenizer, engine_of: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MOST_LINE", 100_000)
    with serving(dialect) as server:
        engine = engine_of(server, timeout_s=1)
        for path in SPOKEN:
            server.fail(faults.EndlessLine(), 99, path)
        with pytest.raises(JobFailed, match="a line without an end"):
            answer(engine, plain_job(tokenizer))
        assert server.requests[-1].over.wait(5)


@pytest.mark.parametrize(
    ("code", "said"), [(200, "an answer without an end"), (400, r"\(400: aaa")]
)
def test_an_answer_without_an_end_is_read_no_further(
    model: HashedModel,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    said: str,
) -> None:
    """Nor is what it says of an error."""
    monkeypatch.setattr(http, "MOST_LINE", 100_000)
    monkeypatch.setattr(http, "CONNECT_S", 1)
    with serving(Vllm(model)) as server:
        server.fail(faults.Endless(b"a" * (1 << 14), 0, 0, code), 99, "/v1/models")
        with pytest.raises(ServerError, match=said):
            look(RemoteSettings(url=server.url, timeout_s=1), tokenizer)
        assert server.requests[-1].over.wait(5)


@pytest.mark.parametrize("layers", [1, 3])
def test_packed_answers_are_not_unpacked(
    dialect: Dialect, tokenizer: Tokenizer, engine_of: Connect, layers: int
) -> None:
    with serving(dialect) as server:
        engine = engine_of(server)
        for path in SPOKEN:
            server.fail(faults.Packed(layers), path=path)
        with pytest.raises(JobFailed, match="packs its answers"):
            answer(engine, plain_job(tokenizer))
        server.fault = None
        _when_asked_again(engine)
        assert answer(engine, plain_job(tokenizer))
        assert server.requests[-1].headers["accept-encoding"] == "identity"


def test_a_server_that_comes_back_as_nonsense_is_tried_again(
    tokenizer: Tokenizer, model: HashedModel, engine_of: Connect, told: list[str]
) -> None:
    with serving(LlamaCpp(model)) as server:
        engine = engine_of(server)
        server.refuse()
        with pytest.raises(JobFailed):
            answer(engine, plain_job(tokenizer))
        nonsense = everywhere(["timings"], {"cache_n": math.inf})
        server.fail(faults.Twisted(nonsense), 4, "/completion")
        server.listen()
        _when_asked_again(engine)
        assert answer(engine, plain_job(tokenizer))
        assert len(told) == 2 and told[1] == ""


def test_a_document_that_has_no_slot_yet_hears_of_a_lost_server_as_others_do(
    tokenizer: Tokenizer, model: HashedModel, engine_of: Connect, told: list[str]
) -> None:
    with serving(LlamaCpp(model)) as server:
        engine = engine_of(server)
        with server.refusing():
            with pytest.raises(JobFailed):
                answer(engine, plain_job(tokenizer, document="file:///new.py"))
            assert len(told) == 1 and engine.figures()["server_trouble"] == told[0]
        server.fault = faults.Silent()
        asked = len(server.asked("/slots"))
        for _ in range(5):
            with pytest.raises(JobFailed):
                answer(engine, plain_job(tokenizer, document="file:///other.py"))
        assert len(server.asked("/slots")) == asked  # nobody waits for what is known to be lost


def test_slots_that_may_not_be_looked_at_are_done_without(
    tokenizer: Tokenizer, model: HashedModel, engine_of: Connect, told: list[str]
) -> None:
    with serving(LlamaCpp(model)) as server:
        engine = engine_of(server)
        server.fail(faults.Status(400), 99, "/slots")
        assert answer(engine, plain_job(tokenizer))
        assert told == []


def test_a_server_that_had_its_prompts_from_before_is_no_other(
    tokenizer: Tokenizer, model: HashedModel, engine_of: Connect
) -> None:
    """Whether the trial's prompt is there depends on what else is asked."""
    with serving(LlamaCpp(model)) as server:
        engine = engine_of(server)
        server.refuse()
        with pytest.raises(JobFailed):
            answer(engine, plain_job(tokenizer))
        found = everywhere(["timings"], {"prompt_n": 1, "cache_n": 50})
        server.fail(faults.Twisted(found), 2, "/completion")
        server.listen()
        _when_asked_again(engine)
        assert answer(engine, plain_job(tokenizer))


def test_an_answer_that_is_gone_on_with_is_closed_when_another_question_fails(
    tokenizer: Tokenizer, model: HashedModel, engine_of: Connect
) -> None:
    """A word of which the first answer's token does not decide needs a look elsewhere."""
    with serving(Vllm(model, max_logprobs=1000)) as server:
        engine = engine_of(server, timeout_s=0.5)
        for word in (" val", "pri", " ret", "(", "x"):
            server.fail(faults.SlowEvents(0.1), path="/v1/completions")
            server.fail(faults.Silent(), 99, path="/v1/completions")
            begun = len(server.requests)
            try:
                answer(engine, word_job(tokenizer, word))
            except JobFailed as failure:
                assert (
                    failure.cause.__traceback__ is not None
                )  # it is alive, and holds what it held
                assert all(asked.over.wait(5) for asked in server.requests[begun:])
            server.fault = None
            _when_asked_again(engine)
