"""The engine's thread, without a socket around it."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from completion_ls.config.settings import Settings
from completion_ls.daemon.foreground import HELD_S
from completion_ls.daemon.worker import Outgoing, Published, Worker
from completion_ls.engines.torch_cpu import TorchCpuEngine
from completion_ls.prompt.build import ALMOST
from completion_ls.wire.endpoint import DaemonConfig
from completion_ls.wire.messages import Chunk, Complete, Done, Error, File
from support.tiny_model import write_tiny_model

LINES = [f"value_{n} = add(values[{n}], {n * n})\n" for n in range(60)]


class Running:
    """A worker, and what it has published."""

    def __init__(self, folder: Path) -> None:
        sections = {"model": {"name": str(folder)}, "engine": {"threads": 1}}
        config = DaemonConfig.of(Settings.model_validate(sections))
        self.published: queue.Queue[Published] = queue.Queue()
        self.worker = Worker(config, self.published.put)
        self.worker.start()
        self.last = 0

    def submit(self, prefix: str, **more: Any) -> int:
        self.last += 1
        wanted = {"prompt_tokens": 256, "max_tokens": 4, "suffix": ""} | more
        request = Complete(id=self.last, prefix=prefix, **{"document": "a"} | wanted)
        self.worker.submit("peer", request)
        return self.last

    def end_of(self, id: int) -> Done | Error:
        while True:
            match self.published.get(timeout=60):
                case Outgoing(message=(Done() | Error()) as message) if message.id == id:
                    return message
                case Outgoing():
                    pass
                case other:
                    raise AssertionError(other)

    def ends(self, count: int) -> list[int]:
        """The ids of the next jobs that are done, in this order."""
        order: list[int] = []
        while len(order) < count:
            match self.published.get(timeout=60):
                case Outgoing(message=Done() as done):
                    order.append(done.id)
        return order

    def figures(self) -> dict[str, Any]:
        found: queue.Queue[dict[str, Any]] = queue.Queue()
        self.worker.snapshot(found.put)
        return found.get(timeout=60)

    def idle(self) -> dict[str, Any]:
        while (figures := self.figures())["jobs_active"]:
            pass
        return figures


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    found = Running(write_tiny_model(tmp_path / "model"))
    yield found
    found.worker.close()
    found.worker.join()


@pytest.mark.parametrize("ahead", [True, False])
def test_the_next_line_is_computed_ahead(running: Running, ahead: bool) -> None:
    most = 0
    for number in range(1, 40):
        text = "".join(LINES[:number])
        done = running.end_of(running.submit(text, ahead=ahead))
        assert isinstance(done, Done)
        if number > 1:
            most = max(most, done.computed)
        running.end_of(running.submit(text + LINES[number][:-1], ahead=ahead))
        running.idle()
    assert (most <= ALMOST + 4) is ahead
    assert (running.figures()["engine_seconds_background"] > 0) is ahead


def test_every_token_comes_with_its_probability(running: Running) -> None:
    id = running.submit(LINES[0], max_tokens=12)
    logprobs: list[float] = []
    while True:
        match running.published.get(timeout=60):
            case Outgoing(message=Chunk() as chunk) if chunk.id == id:
                logprobs += chunk.logprobs
            case Outgoing(message=Done() as done) if done.id == id:
                break
    assert len(logprobs) == done.generated == 12
    assert all(-100 < logprob <= 0 for logprob in logprobs)


def test_work_aside_that_fails_ends_nothing(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.end_of(running.submit(LINES[0]))
    forward = TorchCpuEngine._forward
    failures = []

    def failing(self: TorchCpuEngine, *arguments: Any, **more: Any) -> Any:
        if threading.current_thread() is running.worker and running.worker._aside.busy:
            failures.append(1)
            raise RuntimeError("no")
        return forward(self, *arguments, **more)

    monkeypatch.setattr(TorchCpuEngine, "_forward", failing)
    for number in range(1, 40):
        text = "".join(LINES[:number]) + LINES[number][:-1]
        running.end_of(running.submit(text, ahead=True))
        running.idle()
    assert failures
    monkeypatch.undo()
    assert isinstance(running.end_of(running.submit(LINES[5])), Done)


def test_jobs_that_are_cancelled_at_once_harm_nobody(running: Running) -> None:
    """The one thread takes from the inbox while another takes a job out of it again."""
    count = 3000
    for number in range(count):
        running.worker.cancel("peer", running.submit("x" * (number % 7 + 1)))
    assert isinstance(running.end_of(running.submit(LINES[0])), Done)
    figures = running.idle()
    assert figures["jobs"] == figures["jobs_awaited"] == count + 1
    assert count - 50 < figures["jobs_cancelled"] <= count  # some may have been served in time


def test_other_files_are_a_part_of_the_prompt(running: Running) -> None:
    files = [File(path="other.py", text="def add(one, two):\n    return one + two\n")]

    def prompt_tokens(**more: Any) -> int:
        done = running.end_of(running.submit("x = add(", **more))
        assert isinstance(done, Done)
        return done.reused + done.computed

    alone = prompt_tokens()
    assert prompt_tokens(repository="work", path="a.py", files=files) > alone + 10
    assert prompt_tokens(repository="work", path="a.py") == alone


def test_kv_is_told_by_document(running: Running) -> None:
    running.end_of(running.submit("".join(LINES[:30]), document="file:///one.py"))
    running.end_of(running.submit("def other():\n    ", document="file:///two.py"))
    figures = running.idle()
    used = {one["document"]: one["bytes"] for one in figures["kv_by_document"]}
    assert used.keys() == {"one.py", "two.py"}
    assert sum(used.values()) == figures["kv_bytes"]
    assert used["one.py"] > used["two.py"] > 0


def test_jobs_are_told_by_lane(running: Running) -> None:
    running.submit("x = ", max_tokens=3000)
    running.submit("y = ", lane="background")
    lanes = running.figures()["jobs_by_lane"]
    assert lanes["background"] == {"waiting": 1, "running": 0}
    assert sum(lanes["key"].values()) == 1
    assert lanes["manual"] == {"waiting": 0, "running": 0}
    running.worker.cancel("peer", 1)
    running.worker.cancel("peer", 2)
    assert not any(running.idle()["jobs_by_lane"]["background"].values())


@pytest.mark.parametrize("lane", ["manual", "came into view", "key"])
def test_the_front_where_the_user_is_goes_first(
    running: Running, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked by hand or came into view is there; who only types, where another one types, is not."""
    monkeypatch.setattr("completion_ls.engines.turns.LEAD_S", math.inf)
    running.end_of(running.submit(LINES[0]))  # "peer" is where the user was typing
    prompt = "".join(LINES[10:50])
    slow = running.submit(prompt, max_tokens=200, prompt_tokens=2048)
    if lane == "came into view":
        running.worker.came_into_view("other")
    request = Complete(
        id=900,
        document="b",
        prefix=LINES[3],
        suffix="",
        lane="manual" if lane == "manual" else "key",
        max_tokens=30,
    )
    running.worker.submit("other", request)
    assert running.ends(2) == ([slow, 900] if lane == "key" else [900, slow])


@pytest.mark.parametrize("types_along", [True, False])
def test_who_types_along_what_is_shown_is_still_where_the_user_is(
    running: Running, types_along: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("completion_ls.engines.turns.LEAD_S", math.inf)
    clock = SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr("completion_ls.daemon.worker.time", clock)
    now = 100.0
    running.end_of(running.submit(LINES[0]))
    running.idle()
    now += 0.9 * HELD_S
    if types_along:
        running.worker.answered_without_pass("peer")
        running.idle()
    now += 0.9 * HELD_S
    prompt = "".join(LINES[10:50])
    request = Complete(id=900, document="b", prefix=prompt, suffix="", max_tokens=200)
    running.worker.submit("other", request.model_copy(update={"prompt_tokens": 2048}))
    quick = running.submit(LINES[3], max_tokens=30)
    assert running.ends(2) == ([quick, 900] if types_along else [900, quick])
    assert running.figures()["answered_without_pass"] == types_along


def test_each_front_has_its_part_of_the_engines_time(running: Running) -> None:
    running.end_of(running.submit(LINES[0], max_tokens=20))
    request = Complete(id=900, document="b", prefix=LINES[3], suffix="", max_tokens=3)
    running.worker.submit("other", request)
    running.end_of(900)
    figures = running.idle()
    most, least = figures["engine_seconds_by_front"]
    assert most >= least > 0
    assert most + least <= figures["engine_seconds"]
    running.worker.cancel_all("other")
    assert len(running.figures()["engine_seconds_by_front"]) == 1
