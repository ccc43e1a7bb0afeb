"""The figures: percentiles, what counts as flicker, the summary, the peer's window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_ls.bench.figures import EngineTime, Keystroke, cost_rows, rows, summarize
from completion_ls.bench.flicker import flickers
from completion_ls.bench.llama_cpp import PeerError, gguf_of, window
from completion_ls.daemon.statistics import percentile

IDLE = EngineTime(0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([], 50, 0.0),
        ([3.0], 0, 3.0),
        ([3.0], 100, 3.0),
        ([2.0, 1.0], 50, 1.0),
        ([2.0, 1.0], 51, 2.0),
        ([3.0, 1.0, 2.0], 50, 2.0),
        ([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 50, 3.0),
        (list(range(1, 101)), 95, 95),
        (list(range(1, 101)), 99, 99),
        (list(range(1, 101)), 7, 7),
    ],
)
def test_percentile_is_the_nearest_rank(
    values: list[float], percent: float, expected: float
) -> None:
    assert percentile(values, percent) == expected


@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(1, 100))
def test_so_many_percent_lie_at_or_below_the_percentile(values: list[float], percent: int) -> None:
    found = percentile(values, percent)
    assert found in values
    assert 100 * sum(value <= found for value in values) >= percent * len(values)
    assert 100 * sum(value < found for value in values) < percent * len(values)


@pytest.mark.parametrize(
    ("before", "typed", "shown", "final", "expected"),
    [
        # The rest of what was shown, at once and in the end.
        ("return a", "r", ["eturn a"], "eturn a", False),
        ("return a", "ret", ["urn a"], "urn a", False),
        # It was still growing.
        ("ret", "r", ["et", "eturn"], "eturn a", False),
        # A partial on its way, and nobody waited for the answer.
        ("return a", "r", ["et"], None, False),
        ("return a", "r", [], None, False),
        # The answer is shorter, another, or none.
        ("return a", "r", ["eturn"], "eturn", True),
        ("return a", "r", ["eturn a"], "eturn b", True),
        ("return a", "r", [""], "", True),
        # A partial that is another text, also where the answer is right again.
        ("return a", "r", ["aise"], None, True),
        ("return a", "r", ["aise", "eturn a"], "eturn a", True),
        # What was typed disagrees, or uses up what was shown, or nothing was shown.
        ("return a", "x", ["yz"], "yz", False),
        ("return a", "return a", [" + b"], " + b", False),
        ("re", "ret", ["urn"], "urn", False),
        ("", "r", ["eturn"], "eturn", False),
    ],
)
def test_flicker(
    before: str, typed: str, shown: list[str], final: str | None, expected: bool
) -> None:
    assert flickers(before, typed, shown, final) is expected


def key(first_ms: float = 1.0, computed: int = 0, reused: int = 0, **more: int) -> Keystroke:
    counts = {"jobs": 1, "jobs_without_pass": 0, "daemon_bytes": 5, "front_bytes": 1} | more
    return Keystroke(first_ms, first_ms < 100, reused, computed, **counts)  # type: ignore[arg-type]


def test_summary() -> None:
    keys = [
        key(0.5, jobs=0),
        key(2.0, reused=90, jobs_without_pass=1),
        key(50.0, computed=10, daemon_bytes=9, flickered=True),
        key(200.0, computed=50, reused=50, jobs=2, jobs_without_pass=1, daemon_bytes=7),
    ]
    summary = summarize(keys, EngineTime(4.0, 1.0, 0.5))
    assert (summary.keystrokes, summary.with_text, summary.pass_keystrokes) == (4, 3, 2)
    assert (summary.first_ms_p50, summary.first_ms_p95) == (2.0, 200.0)
    assert (summary.pass_first_ms_p50, summary.pass_first_ms_p95) == (50.0, 200.0)
    assert (summary.by_front_alone_share, summary.without_pass_share) == (0.25, 0.5)
    assert (summary.computed_mean, summary.computed_p50, summary.computed_max) == (15.0, 0, 50)
    assert summary.reused_share == 0.7
    assert summary.flickers == 1
    assert (summary.engine_wasted_share, summary.engine_background_share) == (0.25, 0.125)
    assert (summary.daemon_bytes_end, summary.daemon_bytes_peak) == (7, 9)


def test_a_prompt_that_was_spared_counts_as_reused_with_the_last_ones_length() -> None:
    keys = [key(jobs=0), key(computed=20, reused=80), key(jobs=0), key(jobs=0), key(reused=100)]
    summary = summarize(keys, IDLE)
    assert summary.jobs_reused_share == 180 / 200
    assert summary.reused_share == 380 / 400


def test_a_session_of_nothing_has_a_summary() -> None:
    summary = summarize([], IDLE)
    assert not any(summary.as_dict().values())
    assert all(text for _, text in [*rows(summary), *cost_rows(summary)])


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (99, "one\ntwo\nfour\nfive\nth"),
        (8, "one\ntwo\nfour\nth"),
        (3, "one\ntwo\nth"),  # a quarter of three is too little for the text behind the cursor
        (2, "two\nth"),
        (1, "th"),
    ],
)
def test_the_peers_window(tokens: int, expected: str) -> None:
    text = "one\ntwo\nthfour\nfive"
    cursor = text.index("four")

    def count(line: str) -> int:
        return len(line.strip("\n")) // 2

    assert window(text, cursor, tokens, 0.25, count) == expected


def test_the_peer_needs_a_gguf_file() -> None:
    with pytest.raises(PeerError, match=r"models pull"):
        gguf_of("/nowhere/model.gguf")
