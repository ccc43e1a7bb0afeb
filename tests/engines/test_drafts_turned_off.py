"""An engine whose drafts cost more than they gain goes on without them, and says so."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from completion_ls.config.settings import EngineSettings
from completion_ls.decode import draft_worth
from completion_ls.decode.draft_length import PassCost
from completion_ls.decode.draft_worth import DRAFTED, FIRST_REST, PLAIN, ROUNDS
from completion_ls.engines import torch_cpu
from completion_ls.engines.draft_model import DraftModel
from completion_ls.engines.drafts import LOOKUP, MODEL, Drafts
from completion_ls.engines.llama import Llama
from completion_ls.engines.torch_cpu import TorchCpuEngine
from support.clock import Clock, SlowGuesser
from support.jobs import job, run

FREE = PassCost(((1, 1.0), (17, 1.0)))
ENOUGH = FIRST_REST + 2 * ROUNDS * (DRAFTED + PLAIN)
PROMPT = tuple(range(20))


@pytest.fixture(scope="module")
def model(tiny: Callable) -> Llama:
    return Llama.read(tiny("qwen3").folder, "float32", None)


@pytest.fixture
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is the same, with less to measure."""
    for name, count in {"FIRST_REST": 8, "REST": 8, "DRAFTED": 4, "PLAIN": 2}.items():
        monkeypatch.setattr(draft_worth, name, count)


def make(model: Llama, drafts: Drafts | None) -> TorchCpuEngine:
    return TorchCpuEngine(model, EngineSettings(threads=1), model.shape.context, None, drafts)


def slow(
    model: Llama, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> tuple[TorchCpuEngine, SlowGuesser]:
    """An engine whose passes take a second, with a draft model that is right and takes so long."""
    clock = Clock()
    monkeypatch.setattr(torch_cpu, "time", clock)
    guesser = SlowGuesser(DraftModel(model), clock, seconds)
    engine = make(model, Drafts(FREE, lookup=False, model=guesser, most=1))
    monkeypatch.setattr(engine, "_forward", clock.timed(engine._forward, 1.0))
    return engine, guesser


def test_a_draft_model_that_is_slower_than_it_says_is_turned_off_once(
    model: Llama, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, guesser = slow(model, monkeypatch, seconds=5.0)
    expected = run(make(model, None), job(PROMPT, 200)).tokens
    # A pass with a draft gives two tokens, in six seconds.
    with caplog.at_level(logging.WARNING):
        while guesser.calls < ENOUGH and engine.stats().drafting[0].is_on:
            assert run(engine, job(PROMPT, 200, fresh=True)).tokens == expected
        calls = guesser.calls
        assert run(engine, job(PROMPT, 200, fresh=True)).tokens == expected
    (source,) = engine.stats().drafting
    assert (source.name, source.is_on) == (MODEL, False)
    assert guesser.calls - calls < 200 / 4  # only until it was turned off
    assert source.drafts <= calls and source.proposed == source.checked
    assert source.why_off.startswith("0.3 tokens/s with drafts and 1.0 without")
    (said,) = [record.getMessage() for record in caplog.records]
    assert source.why_off in said
    assert "draft.model" in said and "draft.max_tokens = 0" in said


def test_a_draft_model_that_pays_stays(
    model: Llama,
    short_rounds: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, guesser = slow(model, monkeypatch, seconds=0.5)
    while guesser.calls < 300:
        run(engine, job(PROMPT, 200, fresh=True))
    (source,) = engine.stats().drafting
    assert source.is_on and not source.why_off
    assert source.drafts > 100
    assert source.accepted == source.checked
    assert not caplog.records


def test_where_the_draft_model_is_off_drafts_are_still_looked_up(
    model: Llama, short_rounds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(torch_cpu, "time", clock)
    guesser = SlowGuesser(DraftModel(model), clock, 50.0)
    engine = make(model, Drafts(FREE, lookup=True, model=guesser, most=1))
    monkeypatch.setattr(engine, "_forward", clock.timed(engine._forward, 1.0))
    while guesser.calls < 300 and all(source.is_on for source in engine.stats().drafting):
        text = tuple((number * (guesser.calls + 1)) % 97 for number in range(20))
        run(engine, job(text, 60))
    lookup, of_model = engine.stats().drafting
    assert (lookup.name, lookup.is_on) == (LOOKUP, True)
    assert (of_model.name, of_model.is_on) == (MODEL, False)
    run(engine, job((*PROMPT, *PROMPT, *PROMPT), 60))
    assert engine.stats().drafting[0].drafts > lookup.drafts


def test_a_job_that_is_given_up_is_not_measured(model: Llama) -> None:
    """What its last pass would have given is not known."""
    drafts = Drafts(FREE, lookup=False, model=DraftModel(model), most=7)
    engine = make(model, drafts)
    one = job(PROMPT, 200)
    engine.add(one)
    for _ in range(3):
        engine.step()
    running = engine._jobs[one.id]
    assert running.drafts is not None and running.drafts.stretch is not None
    assert running.drafts.stretch.tokens > 0
    engine.cancel(one.id)
    assert running.drafts.stretch is None
    assert drafts.figures[0].accepted > 0
