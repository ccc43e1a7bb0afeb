"""The engine's measurement: arithmetic, its children, and the command on the real model."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_ls.bench import engine, sides
from completion_ls.bench.child import child
from completion_ls.bench.engine_figures import (
    OURS,
    Measure,
    Report,
    Sizes,
    floor_s,
    measures,
    medians,
    notes,
    rate,
    ratios,
    rows,
)
from completion_ls.bench.llama_cpp import PeerError
from completion_ls.bench.own_engine import generate
from completion_ls.cli import bench
from completion_ls.cli.main import PEERS, main
from completion_ls.config.settings import DraftSettings, EngineSettings, Settings
from completion_ls.engines.contract import Event, Finish, Job

SMALL = Sizes(
    prompts=3, context=96, tokens=24, short=32, long=64, fill=200, idle_s=0.1, copy_bytes=1 << 20
)
TIMES = st.floats(1e-6, 1e6)


def report(**changed: object) -> Report:
    values: dict[str, object] = {
        "model": "m",
        "engine": {"kind": "torch_cpu"},
        "rounds": 3,
        "sizes": Sizes(),
        "raw": {
            OURS: {"cold_ms": [2.0, 1.0, 9.0], "plain_per_s": [30.0] * 3, "pass_ms": [33.0] * 3},
            "llama.cpp": {"cold_ms": [3.0] * 3, "plain_per_s": [60.0] * 3, "drafted_per_s": [70.0]},
        },
        "versions": {"xllamacpp": "1.2"},
        "threads": 2,
        "weight_bytes": 100,
        "untied": False,
        "load_averages": (0.1, 1.9),
        "drafts_equal": True,
        "tokens_per_pass": 1.5,
        "speculation": "ngram-mod",
        "speculations": {"ngram-mod": 70.0, "ngram-cache": 50.0},
    }
    return Report(**(values | changed))  # type: ignore[arg-type]


@given(st.dictionaries(st.sampled_from("abc"), st.lists(TIMES, min_size=1, max_size=5), min_size=1))
def test_medians_are_of_the_rounds(measured: dict[str, list[float]]) -> None:
    assert medians({"x": measured})["x"] == {key: median(measured[key]) for key in measured}


@given(st.sampled_from(measures(Sizes())), TIMES, TIMES)
def test_a_ratio_above_one_says_that_ours_is_better(
    measure: Measure, ours: float, peer: float
) -> None:
    found = ratios({measure.key: ours}, {measure.key: peer})
    if measure.better == 0:
        assert not found
        return
    better = ours > peer if measure.better > 0 else ours < peer
    assert (found[measure.key] > 1) is better


def test_a_ratio_needs_both_sides() -> None:
    assert ratios({"cold_ms": 1.0}, {"plain_per_s": 1.0}) == {}
    assert ratios({"plain_per_s": 1.0}, {"plain_per_s": 0.0}) == {}


def test_floor_and_rate() -> None:
    assert floor_s(500, 10_000.0) == 0.05
    # All tokens over all seconds, not the mean of the prompts' speeds.
    assert rate([100, 100], [1.0, 3.0]) == 50.0


def test_the_table_has_a_ratio_for_each_peer() -> None:
    table = {row[0]: row[1:] for row in rows(report())}
    assert table["first token, 1,120 cold"] == ["2.0 ms", "3.0 ms", "1.50"]
    assert table["tokens/s at 1,120"] == ["30.0", "60.0", "0.50"]
    assert table["the same with drafts"] == ["–", "70.0", ""]
    assert table["one pass at 256"] == ["33.0 ms", "–", ""]
    assert len(table) == 4


def test_the_notes_say_what_the_reader_must_know() -> None:
    text = "\n".join(notes(report(untied=True)))
    for part in (
        "medians of 3 rounds",
        "kind = torch_cpu",
        "xllamacpp 1.2",
        "ngram-mod, the fastest",
        "0.1 before, 1.9 after",
        "is the same as",
        "embedding",
    ):
        assert part in text
    assert "NOT THE SAME" in "\n".join(notes(report(drafts_equal=False)))
    bare = report(drafts_equal=None, speculations={}, versions={}, load_averages=None)
    text = "\n".join(notes(bare))
    assert "no drafts" in text
    assert not any(part in text for part in ("xllamacpp", "Load", "drafts:", "embedding"))


def test_json_has_rounds_medians_and_ratios() -> None:
    value = json.loads(json.dumps(report().as_dict()))
    assert value["raw"][OURS]["cold_ms"] == [2.0, 1.0, 9.0]
    assert value["median"][OURS]["cold_ms"] == 2.0
    assert value["ratio"] == {"llama.cpp": {"cold_ms": 1.5, "plain_per_s": 0.5}}


def test_a_short_context_makes_everything_shorter() -> None:
    sizes = Sizes().within(1000)
    assert (sizes.context, sizes.short, sizes.long, sizes.fill) == (899, 256, 899, 1000)
    assert Sizes().within(8192) == Sizes()
    with pytest.raises(ValueError, match="too short"):
        Sizes().within(300)


def test_drafts_are_switched_and_nothing_else_is() -> None:
    settings = Settings(engine=EngineSettings(threads=3))
    on, off = engine.with_drafts(settings, True), engine.with_drafts(settings, False)
    assert on == settings
    assert off.draft.max_tokens == 0
    assert engine.with_drafts(off, True) == settings
    blind = Settings(draft=DraftSettings(lookup=False))
    assert engine.with_drafts(blind, True) == engine.with_drafts(blind, False)


class Scripted:
    """An engine that gives these tokens a step, two passes each."""

    def __init__(self, steps: list[tuple[int, ...]]) -> None:
        self.left = steps
        self.passes = 0
        self.jobs: list[Job] = []

    def add(self, job: Job) -> None:
        self.jobs.append(job)

    def step(self) -> list[Event]:
        tokens, *self.left = self.left
        self.passes += 2
        finish = None if self.left else Finish.LENGTH
        return [Event(self.jobs[-1].id, tokens, (0.0,) * len(tokens), 0, 1, finish)]


def test_a_continuation_is_divided_where_its_first_token_came() -> None:
    scripted = Scripted([(), (), (1, 2), (3,), (4, 5)])
    done = generate(scripted, (7, 8), 5)  # type: ignore[arg-type]
    assert (done["tokens"], done["first"], done["rest_passes"]) == ([1, 2, 3, 4, 5], 2, 4)
    assert len(done["steps_s"]) == 2
    (job,) = scripted.jobs
    assert (job.prompt, job.max_new_tokens, job.fresh) == ((7, 8), 5, True)
    assert not job.stop_token_ids


def test_a_continuation_of_one_token_has_no_rest() -> None:
    done = generate(Scripted([(), (9,)]), (1,), 1)  # type: ignore[arg-type]
    assert (done["tokens"], done["first"], done["steps_s"]) == ([9], 1, [])


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (["--against", "vllm"], "'vllm' is none of llama.cpp, transformers"),
        (["--against", "llama.cpp,"], "'' is none of llama.cpp, transformers"),
        (["--rounds", "0"], "one at least"),
    ],
)
def test_wrong_options_are_named(
    option: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "engine", *option])
    assert sentence in capsys.readouterr().err


def test_a_missing_peer_is_named_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
    assert main(["bench", "engine", "--against", "transformers,llama.cpp"]) == 1
    assert "needs xllamacpp, which is in the extra `bench`" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["engine", "quality", "acceptance"])
def test_another_engine_than_it_can_measure(
    action: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMPLETION_LS_PROFILE", "nvidia-24gb")
    assert main(["bench", action]) == 1
    said = capsys.readouterr().err
    assert "torch_cpu only" in said and "scripts/gpu_check.sh" in said


@pytest.mark.parametrize(
    "command",
    [
        *(["bench", action] for action in ("engine", "quality", "acceptance", "protocol", "sweep")),
        *(["bench", "calibrate", "a.json.gz"], ["bench", "infill", "a.jsonl"], ["tune", "."]),
    ],
)
def test_a_server_is_not_measured_as_an_engine(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMPLETION_LS_PROFILE", "remote")
    assert main(command) == 1
    assert "engine.kind is remote" in capsys.readouterr().err


def test_the_peers_of_the_command_line_are_those_that_are_measured() -> None:
    assert PEERS == (engine.LLAMA_CPP, engine.TRANSFORMERS)


@pytest.mark.process
async def test_a_peer_that_cannot_load_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"^transformers failed\. "):
        async with sides.transformers("transformers", tmp_path, 1):
            raise AssertionError("An empty folder was loaded.")


@pytest.mark.process
async def test_a_program_that_ends_is_a_sentence() -> None:
    with pytest.raises(PeerError, match="ended with the status 1"):
        async with child("completion_ls.bench.no_such_program", {}, PeerError):
            raise AssertionError("It became ready.")


def descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


@pytest.fixture
def none_left() -> Iterator[None]:
    before = descendants()
    yield
    assert descendants() <= before


@pytest.mark.process
@pytest.mark.model
@pytest.mark.usefixtures("none_left")
def test_the_command_measures_and_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(against=(), rounds=1, json=True)
    assert bench.engine(options, SMALL) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["rounds"], figures["model"]) == (1, "smollm2-135m-instruct")
    assert set(figures["raw"]) == {OURS}
    ours = figures["raw"][OURS]
    assert set(ours) == {measure.key for measure in measures(SMALL)}
    assert all(len(values) == 1 for values in ours.values())
    assert all(values[0] > 0 for key, values in ours.items() if key != "idle_cpu_s")
    assert ours["idle_cpu_s"][0] >= 0
    assert figures["weight_bytes"] > 1e7
    assert figures["threads"] >= 1
    assert figures["drafts_equal"] is True
    assert figures["tokens_per_pass"] >= 1


@pytest.mark.process
@pytest.mark.model
@pytest.mark.usefixtures("none_left")
async def test_an_interrupt_ends_the_children() -> None:
    said: list[str] = []
    work = asyncio.create_task(engine.measure(Settings(), ["transformers"], 1, SMALL, said.append))
    deadline = time.monotonic() + 60
    while not any("prompt 1" in text for text in said) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert len(descendants()) >= 2
    work.cancel()  # what asyncio.run does at Ctrl-C
    with pytest.raises(asyncio.CancelledError):
        await work
