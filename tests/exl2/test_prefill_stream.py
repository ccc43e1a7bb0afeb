"""The draft model's stream, on streams that are played: its work is done when somebody waits for it,
and not before, as late as a GPU might come to it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import count
from typing import Any

import pytest
import torch

from completion_ls.config.settings import DraftSettings, EngineSettings
from completion_ls.engines.contract import Job, Lane
from completion_ls.engines.exl2 import loading
from completion_ls.engines.exl2.checks import Card
from support.exl2.tiny import TinyModels

pytestmark = pytest.mark.exl2

_ids = count(1)


class PlayedStream:
    """Work in the order in which it was given, done up to an event when that is waited for."""

    def __init__(self, *_: object) -> None:
        self.waiting: list[Callable[[], object]] = []
        self.waited_for: list[PlayedEvent] = []

    def wait_event(self, event: PlayedEvent) -> None:
        self.waited_for.append(event)
        event.reach()


class PlayedEvent:
    """A place in a stream."""

    def __init__(self) -> None:
        self.stream: PlayedStream | None = None
        self.behind: list[Callable[[], object]] = []

    def record(self, stream: PlayedStream) -> None:
        self.stream, self.behind = stream, list(stream.waiting)

    def reach(self) -> None:
        assert self.stream is not None
        for work in self.behind:
            if work in self.stream.waiting:
                self.stream.waiting.remove(work)
                work()


@pytest.fixture
def load(pair: TinyModels, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """How to make an engine whose draft model is all that guesses, with few pages."""
    cost = loading.step_cost([1.0, 1.1, 1.2, 1.3])
    monkeypatch.setattr(loading, "warm_up", lambda *_: (cost, 0.05))

    def make() -> Any:
        return loading.load(
            pair.target,
            EngineSettings(kind="exllamav2", kv_cache="fp16", context=2048, prefill_chunk=256),
            draft=DraftSettings(lookup=False),
            draft_folder=pair.draft,
            card=lambda: Card("large", 2**40),
        )

    return make


@pytest.fixture
def played(exllamav2: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """How to make a `PrefillStream` on played streams, whose own one is its `_stream`."""
    from exllamav2 import device

    from completion_ls.engines.exl2 import prefill_stream

    main = PlayedStream()
    monkeypatch.setattr(torch.cuda, "Stream", PlayedStream)
    monkeypatch.setattr(torch.cuda, "Event", PlayedEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: main)
    monkeypatch.setattr(prefill_stream, "wait_for_copies", lambda _: None)
    monkeypatch.setitem(device.global_streams, 0, main)
    forward = exllamav2.ExLlamaV2.forward_chunk

    def given(model: Any, **asked: Any) -> Any:
        stream = device.global_streams[0]
        if stream is main:
            return forward(model, **asked)
        asked["input_ids"] = asked["input_ids"].clone()  # they are on the card by now
        stream.waiting.append(lambda: forward(model, **asked))
        return {}

    monkeypatch.setattr(exllamav2.ExLlamaV2, "forward_chunk", given)
    yield lambda: prefill_stream.PrefillStream(0)
    assert device.global_streams[0] is main


def run(engine: Any, prompt: Sequence[int], steps: int | None = None) -> list[int]:
    """The output of a job, which is cancelled after so many `steps`."""
    one = Job(next(_ids), tuple(prompt), 20)
    engine.add(one)
    found: list[int] = []
    for _ in range(1000 if steps is None else steps):
        events = [event for event in engine.step() if event.job_id == one.id]
        found += [token for event in events for token in event.tokens]
        if any(event.finish for event in events):
            return found
    assert steps is not None, "it never ends"
    engine.cancel(one.id)
    return found


def test_guesses_are_the_same_with_it(load: Callable, played: Callable, text: list[int]) -> None:
    """A draft model whose keys and values are missing or old would be right less often, and there would
    be more passes."""
    plain, streamed = load(), load()
    streamed._generator.prefill_stream = played()
    choice = random.Random(5)
    beginnings = range(0, 2800, 400)
    for _ in range(60):
        start = choice.choice(beginnings)
        prompt = text[start : start + choice.randrange(3, 690)]
        steps = choice.choice([None, None, 1, 1, 2])
        if choice.random() < 0.5:  # work ahead of the user, which goes on in between
            ahead = Job(next(_ids), tuple(text[start : start + 600]), 20, lane=Lane.BACKGROUND)
            for engine in (streamed, plain):
                engine.add(ahead)
                engine.step()
        assert run(streamed, prompt, steps) == run(plain, prompt, steps)
    assert streamed.passes == plain.passes
    assert streamed.stats() == plain.stats()
    assert plain.stats().draft_tokens_accepted > 100


def test_the_first_token_does_not_wait_for_it(
    load: Callable, played: Callable, text: list[int]
) -> None:
    engine = load()
    stream = engine._generator.prefill_stream = played()
    own = stream._stream
    engine.add(Job(next(_ids), tuple(text[:200]), 20))
    events = engine.step()
    assert events[0].tokens and len(own.waiting) == 1
    # It begins behind all that had been done to its cache before.
    assert len(own.waited_for) == 1
    engine.step()
    assert not own.waiting


def test_pages_are_not_let_go_of_while_they_are_written_to(
    load: Callable, played: Callable, text: list[int]
) -> None:
    engine = load()
    stream = engine._generator.prefill_stream = played()
    one = Job(next(_ids), tuple(text[:600]), 20)
    engine.add(one)
    engine.step()
    assert len(stream._stream.waiting) == 1
    engine.cancel(one.id)
    assert not stream._stream.waiting


@pytest.mark.parametrize("streamed", [False, True])
def test_a_draft_model_that_fails_at_a_prompt_costs_no_answer(
    load: Callable,
    played: Callable,
    text: list[int],
    exllamav2: Any,
    monkeypatch: pytest.MonkeyPatch,
    streamed: bool,
) -> None:
    """And what it has not read is not taken for read."""
    plain, engine = load(), load()
    generator = engine._generator
    generator.prefill_stream = played() if streamed else None
    forward = exllamav2.ExLlamaV2.forward_chunk
    failed: list[int] = []

    def failing(model: Any, **asked: Any) -> Any:
        if model is generator.draft_model and asked.get("preprocess_only"):
            failed.append(asked["input_ids"].shape[-1])
            raise torch.cuda.OutOfMemoryError
        return forward(model, **asked)

    for prompt in (text[:600], text[300:700]):
        wanted = run(plain, prompt)
        with monkeypatch.context() as patch:
            patch.setattr(exllamav2.ExLlamaV2, "forward_chunk", failing)
            assert run(engine, prompt) == wanted
        # It has read the text since, in order to guess.
        assert run(engine, prompt) == run(plain, prompt) == wanted
    assert len(failed) == 2
    assert engine.passes == plain.passes


@pytest.mark.parametrize(("seconds", "is_on"), [([2.0, 1.0], True), ([1.0, 1.0], False)])
def test_it_is_on_where_it_wins(
    load: Callable,
    played: Callable,
    monkeypatch: pytest.MonkeyPatch,
    seconds: list[float],
    is_on: bool,
) -> None:
    generator = load()._generator
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(loading, "first_token_seconds", lambda *_: seconds)
    loading.try_prefill_stream(generator)
    assert (generator.prefill_stream is not None) == is_on


def test_both_ways_are_measured_and_leave_nothing(load: Callable, played: Callable) -> None:
    generator = load()._generator
    assert len(loading.first_token_seconds(generator, (None, played()))) == 2
    assert generator.prefill_stream is None and generator.pages_used == 0


def test_without_a_gpu_it_stays_off(load: Callable, caplog: pytest.LogCaptureFixture) -> None:
    generator = load()._generator
    loading.try_prefill_stream(generator)
    assert generator.prefill_stream is None
    assert "no streams without a GPU" in caplog.text


def test_copies_from_pageable_memory_need_not_be_waited_for(
    exllamav2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from exllamav2 import compat, device

    from completion_ls.engines.exl2.prefill_stream import wait_for_copies

    waited: list[object] = []

    def waits(tensor: Any, to: object, non_blocking: bool = False) -> Any:
        waited.append(tensor)
        return tensor

    holders = [
        module
        for name, module in list(sys.modules.items())
        if name.split(".")[0] == "exllamav2" and "safe_move_tensor" in vars(module)
    ]
    assert len(holders) > 5
    for module in holders:
        monkeypatch.setattr(module, "safe_move_tensor", waits)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    wait_for_copies(False)
    wait_for_copies(False)
    assert len({module.safe_move_tensor for module in holders} - {waits}) == 1
    tensor, pair = torch.ones(2), (torch.ones(1), torch.ones(1))
    monkeypatch.setattr(device, "get_device_stream", lambda _: object())
    assert compat.safe_move_tensor(tensor, "cpu") is tensor and waited == []
    monkeypatch.setattr(device, "get_device_stream", lambda _: None)
    assert compat.safe_move_tensor(tensor, "cpu") is tensor and waited == [tensor]
    assert compat.safe_move_tensor(pair, "cpu") is pair and waited == [tensor, pair]
    wait_for_copies(True)
    assert {module.safe_move_tensor for module in holders} == {waits}
