"""The figures of a typed session: one record a keystroke, and their summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from completion_ls.daemon.statistics import percentile


@dataclass(frozen=True, slots=True)
class Keystroke:
    """What one keystroke cost. `first_text_ms` is None where nothing was offered."""

    first_text_ms: float | None
    answer_ms: float
    reused: int
    computed: int
    jobs: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Times in milliseconds, shares from 0 to 1, prompt tokens a keystroke."""

    keystrokes: int
    with_text: int
    first_text_ms_p50: float
    first_text_ms_p95: float
    first_text_ms_p99: float
    pass_ms_p50: float
    pass_ms_p95: float
    without_pass_share: float
    computed_p50: float
    computed_p90: float
    computed_p99: float
    computed_mean: float
    reused_share: float

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


def summarize(keystrokes: Sequence[Keystroke]) -> Summary:
    """The summary of a session. Keystrokes answered without a pass count as 0 computed tokens."""
    first = [key.first_text_ms for key in keystrokes if key.first_text_ms is not None]
    passes = [key.first_text_ms for key in keystrokes if key.first_text_ms is not None and key.jobs]
    computed = [key.computed for key in keystrokes]
    prompt = sum(key.reused + key.computed for key in keystrokes)
    count = max(1, len(keystrokes))
    return Summary(
        keystrokes=len(keystrokes),
        with_text=len(first),
        first_text_ms_p50=percentile(first, 50),
        first_text_ms_p95=percentile(first, 95),
        first_text_ms_p99=percentile(first, 99),
        pass_ms_p50=percentile(passes, 50),
        pass_ms_p95=percentile(passes, 95),
        without_pass_share=sum(key.jobs == 0 for key in keystrokes) / count,
        computed_p50=percentile(computed, 50),
        computed_p90=percentile(computed, 90),
        computed_p99=percentile(computed, 99),
        computed_mean=sum(computed) / count,
        reused_share=sum(key.reused for key in keystrokes) / prompt if prompt else 0.0,
    )


def rows(summary: Summary) -> list[tuple[str, str]]:
    """The summary for a table."""
    return [
        ("keystrokes", f"{summary.keystrokes} ({summary.with_text} with ghost text)"),
        (
            "time to first ghost text",
            f"p50 {summary.first_text_ms_p50:.1f} ms, p95 {summary.first_text_ms_p95:.1f} ms"
            if summary.with_text
            else "none was offered",
        ),
        (
            "the same, where a pass was needed",
            f"p50 {summary.pass_ms_p50:.1f} ms, p95 {summary.pass_ms_p95:.1f} ms",
        ),
        ("answered without a model pass", f"{100 * summary.without_pass_share:.1f} %"),
        (
            "prompt tokens computed per key",
            f"p50 {summary.computed_p50:.0f}, p90 {summary.computed_p90:.0f}, "
            f"mean {summary.computed_mean:.1f}",
        ),
        ("prompt tokens reused", f"{100 * summary.reused_share:.1f} %"),
    ]
