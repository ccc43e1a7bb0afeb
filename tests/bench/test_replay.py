"""A stretch of our own history, typed through the real server, daemon and model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from completion_ls.bench.figures import summarize
from completion_ls.bench.replay import replay
from completion_ls.bench.trace import cut, read_trace
from completion_ls.cli import bench
from completion_ls.cli.main import main

OWN = Path(__file__).parents[1] / "data" / "own_trace.json.gz"
START = 200
TYPED = ["bench", "replay", str(OWN), "--start", str(START), "--json"]


@pytest.fixture
def on_the_shared_daemon(shared: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in shared.items():
        monkeypatch.setenv(name, value)


@pytest.mark.process
@pytest.mark.model
@pytest.mark.usefixtures("on_the_shared_daemon")
async def test_typing_costs_a_token_or_two_a_key_and_nothing_flickers() -> None:
    trace = read_trace(OWN)
    gaps = [0.0] * len(trace.transactions)
    stretch = cut(trace, start=START, keystrokes=120, gaps_s=gaps)
    session = await replay(stretch, uri="file:///own.py", language="python")
    assert session.editor.text != stretch.text
    summary = summarize(session.keystrokes, session.engine_time)
    assert summary.keystrokes == 120
    assert summary.with_text > 0
    assert summary.computed_p50 <= 2
    assert summary.computed_p90 <= 3
    assert summary.computed_mean <= 100
    assert summary.reused_share >= 0.96
    assert summary.flickers == 0
    assert 0 < summary.by_front_alone_share <= summary.without_pass_share < 1
    assert summary.engine_seconds > 0
    assert 0 <= summary.engine_wasted_share <= 1
    assert summary.daemon_bytes_peak >= summary.daemon_bytes_end > summary.front_bytes_end > 0


@pytest.mark.process
@pytest.mark.model
@pytest.mark.usefixtures("on_the_shared_daemon")
def test_the_command_prints_json_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "picture"
    assert main([*TYPED, "--keystrokes", "8", "--gaps", "recorded", "--plot", str(picture)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["start"], figures["end"], figures["keystrokes"]) == (START, START + 8, 8)
    assert figures["model"] == "smollm2-135m-instruct"
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize(
    ("option", "module"),
    [(["--plot", "x.png"], "matplotlib"), (["--against", "llama.cpp"], "xllamacpp")],
)
def test_a_missing_extra_is_named_before_anything_is_typed(
    option: list[str],
    module: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bench  # imported while that is possible
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, module, raising=False)
    assert main([*TYPED, *option]) == 1
    assert f"needs {module}, which is in the extra `bench`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--start", "100000"], "There is nothing to type"),
        (["--keystrokes", "0"], "There is nothing to type"),
    ],
)
def test_a_stretch_outside_of_the_trace_is_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TYPED, *arguments]) == 1
    assert sentence in capsys.readouterr().err
