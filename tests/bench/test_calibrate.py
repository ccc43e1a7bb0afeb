"""Calibration of a model that is made up: what it writes and how sure it is are given."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from completion_ls.bench.calibrate import Asked, beginnings, calibrate, reliability, shown, starts
from completion_ls.cli.main import main
from completion_ls.config.settings import Settings
from completion_ls.lsp.confidence import OFF
from support.session import at

OWN = Path(__file__).parents[1] / "data" / "own_trace.json.gz"
SETTINGS = Settings()
LINE = "total = first + second\n"


def asked(size: int, *tokens: tuple[str, float], came: str | None = None) -> Asked:
    """The model's words behind so many characters of the line."""
    place = replace(at("x = 1\n" + LINE[:size]), limit=1000)
    text = place.before
    return Asked(place, text, len(text), tokens, LINE[size:] if came is None else came)


def test_stretches_are_spread_over_the_trace() -> None:
    assert starts(1000, 4, 100) == [75, 325, 575, 825]
    assert starts(100, 2, 300) == [0, 50]


def test_beginnings_are_those_of_the_first_line_by_tokens() -> None:
    key = asked(8, ("first", -0.5), (" ", 0.0), ("-", -0.5), (" second", -1.0), ("\n", -3.0))
    found = list(beginnings(key, SETTINGS))
    expected = [(math.exp(-0.5), True), (math.exp(-1.0), False), (math.exp(-2.0), False)]
    assert found == [(pytest.approx(p), right) for p, right in expected]
    assert list(beginnings(asked(8, ("\n", -0.1)), SETTINGS)) == []


def test_what_is_shown_stays_while_it_is_typed_and_ends_where_the_model_is_unsure() -> None:
    sure = [("first", -0.1), (" -", -2.0), (" second", 0.0), ("\n", 0.0)]
    keys = [asked(8, *sure), asked(9, ("x", 0.0), ("\n", 0.0)), asked(13, (" +", -0.1))]
    assert [key.shown for key in shown(keys, SETTINGS, OFF)] == [
        "first - second",
        "irst - second",
        " - second",
    ]
    assert [key.shown for key in shown(keys, SETTINGS, math.log(0.5))] == ["first", "irst", " +"]


def test_reliability_has_the_share_that_was_right_in_each_bin() -> None:
    found = reliability([(0.15, True), (0.17, False), (1.0, True)])
    assert [(one.low, one.high, one.count) for one in found] == [(0.1, 0.2, 2), (0.9, 1.0, 1)]
    assert found[0].mean == pytest.approx(0.16)
    assert found[0].right.value == 0.5
    assert reliability([]) == []


def test_the_threshold_is_chosen_on_the_first_half_and_told_on_the_second() -> None:
    right = asked(8, ("first", -0.2), (" + second", -0.1), ("\n", 0.0))
    wrong = asked(8, ("nothing", -0.7), ("\n", 0.0))
    stretches = [[right], [wrong], [right], [wrong]]
    found = calibrate(stretches, SETTINGS)
    assert found.keys == 2
    assert [one.right.value for one in found.bins] == [0.0, 1.0, 1.0]
    best = found.best(0.25)
    assert best.chosen_on.precision == 1.0 > found.rows[0].chosen_on.precision
    assert best.held_out.precision == 1.0
    assert best.held_out.saved == len("first + second") - 1
    assert found.rows[0].held_out.shown == 2
    with pytest.raises(ValueError, match="too little"):
        calibrate(stretches[:1], SETTINGS)
    with pytest.raises(ValueError, match="too little"):
        calibrate([[asked(8)], [right]], SETTINGS)


@pytest.mark.model
@pytest.mark.long
def test_the_command_prints_json_and_writes_a_table(
    tmp_path: Path,
    shared: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in shared.items():
        monkeypatch.setenv(name, value)
    table = tmp_path / "table.json"
    options = ["--stretches", "2", "--keystrokes", "6", "--table", str(table), "--json"]
    assert main(["bench", "calibrate", str(OWN), *options]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["starts"] == [147, 447]
    assert [row["show_above"] for row in figures["rows"]][:3] == [0.0, 0.05, 0.1]
    assert all(row["held_out"]["typed"] == 6 for row in figures["rows"])
    written = json.loads(table.read_text())
    assert written["measured_on"]["model"] == "smollm2-135m-instruct"
    assert all(0 <= part <= 1 for point in written["points"] for part in point)
