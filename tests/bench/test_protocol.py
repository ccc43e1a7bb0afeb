"""The measuring rule: its figures from made-up timings, what it refuses, and a small run of it."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_ls.bench import protocol
from completion_ls.bench.protocol import (
    CASES,
    PEAK,
    ROUNDS,
    STEADY,
    TOKENS,
    Case,
    Report,
    Result,
    Round,
    summary,
)
from completion_ls.bench.sides import Generation
from completion_ls.cli.bench_protocol import HEAD, markdown, notes, plot, rows
from completion_ls.cli.main import main

RATES = (30.0, 10.0, 20.0)


def result(case: Case = PEAK, context: int | None = None) -> Result:
    rounds = tuple(Round(1.0 / rate, rate) for rate in RATES)
    return Result(case, context or case.context, rounds)


def report(*, before: float = 0.0, after: float = 0.0, forced: bool = False) -> Report:
    return Report(
        model="m",
        engine={"kind": "torch_cpu"},
        draft={"lookup": True},
        threads=2,
        results=(result(), result(STEADY, 8092)),
        busy=(before, after),
        load_averages=(0.1, None),
        forced=forced,
    )


def test_the_rule_is_that_of_the_article() -> None:
    assert (TOKENS, ROUNDS) == (100, 3)
    assert [(case.text, case.context) for case in CASES] == [("prose", 512), ("code", 8192)]


@given(st.integers(1, 99), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_a_round_counts_what_comes_behind_the_first_token(
    rest: int, first_s: float, rest_s: float
) -> None:
    done = Generation(tuple(range(rest + 1)), first_s, rest, rest_s)
    assert summary(done) == Round(first_s, rest / rest_s)


def test_a_round_without_a_second_token_is_none() -> None:
    with pytest.raises(ValueError, match="no token behind the first"):
        summary(Generation((1,), 0.1, 0, 0.0))


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=5))
def test_the_median_counts_and_stands_within_the_spread(rates: list[float]) -> None:
    found = Result(PEAK, 512, tuple(Round(1.0, rate) for rate in rates))
    low, high = found.spread
    assert found.tokens_per_s == median(rates)
    assert low <= found.tokens_per_s <= high


def test_the_table_has_both_results_with_their_spread() -> None:
    found = list(rows(report()))
    assert found == [
        ("short-context peak", "512", "20.0", "10.0", "30.0", "50 ms"),
        ("8K steady", "8,092", "20.0", "10.0", "30.0", "50 ms"),
    ]
    head, line, first, second, *_ = markdown(report())
    assert {one.count("|") for one in (head, line, first, second)} == {len(HEAD) + 1}


def test_the_notes_say_what_the_figures_depend_on() -> None:
    quiet = "\n".join(notes(report()))
    assert "has 8,092 tokens of context and not 8,192" in quiet and "0.00 before" in quiet
    assert "measure again" not in quiet and "--force" not in quiet
    assert "Other work came up meanwhile" in "\n".join(notes(report(after=1.5)))
    assert "compare nothing with this" in "\n".join(notes(report(before=1.5, forced=True)))


def test_the_figures_go_through_json() -> None:
    values = json.loads(json.dumps(report(after=1.0).as_dict()))
    assert values["is_loaded"]
    assert [one["tokens_per_s"] for one in values["results"]] == [20.0, 20.0]
    assert values["results"][0]["rounds"][0] == {"first_s": 1 / 30, "tokens_per_s": 30.0}


def test_the_picture_is_one(tmp_path: Path) -> None:
    plot(tmp_path / "a.png", report())
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("command", ["protocol", "sweep"])
def test_on_a_busy_machine_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    async def busy() -> float:
        return 1.7

    monkeypatch.setattr(protocol, "busy_processors", busy)
    assert main(["bench", command]) == 1
    written = capsys.readouterr()
    assert "keeps 1.7 processors busy" in written.err and "--force" in written.err
    assert written.out == ""


@pytest.mark.model
@pytest.mark.process
def test_a_small_run_on_the_default_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = (Case(PEAK.name, "prose", 48), Case(STEADY.name, "code", 96))
    monkeypatch.setattr(protocol, "CASES", small)
    monkeypatch.setattr(protocol, "TOKENS", 12)
    assert main(["bench", "protocol", "--force", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["model"] == "smollm2-135m-instruct"
    for one, case in zip(values["results"], small, strict=True):
        assert (one["case"]["name"], one["context"]) == (case.name, case.context)
        assert len(one["rounds"]) == ROUNDS and one["tokens_per_s"] > 0 and one["first_s"] > 0
