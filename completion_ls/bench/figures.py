"""The figures of a typed session: one record a keystroke, and their summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from completion_ls.daemon.statistics import percentile


@dataclass(frozen=True, slots=True)
class Keystroke:
    """What one keystroke cost. Memory is resident memory when the first text was there.

    `first_ms` ends with the first ghost text or with the answer that there is none. `jobs` were
    added for it (or promoted from the background lane), and `jobs_without_pass` of them had their
    first text without a pass of the model. Prompt tokens are those since the key before had its
    first text, so the word that comes along with that key's second token is counted here; work ahead
    of the user is not counted.
    """

    first_ms: float
    with_text: bool
    reused: int
    computed: int
    jobs: int
    jobs_without_pass: int
    daemon_bytes: int
    front_bytes: int
    flickered: bool = False

    @property
    def by_front_alone(self) -> bool:
        """The text was there already: no job."""
        return self.jobs == 0

    @property
    def needed_pass(self) -> bool:
        """The model had to compute before there was text."""
        return self.jobs > self.jobs_without_pass


@dataclass(frozen=True, slots=True)
class EngineTime:
    """Seconds in the engine: all, on jobs that were cancelled before they had given all that was
    wanted of them, and on the background lane (which is not wasted in this sense)."""

    total_s: float
    wasted_s: float
    background_s: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Times in milliseconds, shares from 0 to 1, prompt tokens a keystroke, memory in bytes.

    `reused_share` is of the prompts of all keystrokes, `jobs_reused_share` of those that came to the
    engine. A prompt that did not counts as reused, with the length of the last one that did.
    """

    keystrokes: int
    with_text: int
    first_ms_p50: float
    first_ms_p95: float
    first_ms_p99: float
    pass_keystrokes: int
    pass_first_ms_p50: float
    pass_first_ms_p95: float
    pass_first_ms_p99: float
    by_front_alone_share: float
    without_pass_share: float
    computed_mean: float
    computed_p50: float
    computed_p90: float
    computed_p99: float
    computed_max: int
    reused_share: float
    jobs_reused_share: float
    flickers: int
    engine_seconds: float
    engine_wasted_share: float
    engine_background_share: float
    daemon_bytes_end: int
    daemon_bytes_peak: int
    front_bytes_end: int
    front_bytes_peak: int

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


def summarize(keystrokes: Sequence[Keystroke], engine: EngineTime) -> Summary:
    """The summary of a session."""
    first = [key.first_ms for key in keystrokes]
    passes = [key.first_ms for key in keystrokes if key.needed_pass]
    computed = [key.computed for key in keystrokes]
    reused = sum(key.reused for key in keystrokes)
    spared = length = 0
    for key in keystrokes:
        length = (key.reused + key.computed) // key.jobs if key.jobs else length
        spared += length if key.by_front_alone else 0
    daemon = [key.daemon_bytes for key in keystrokes]
    front = [key.front_bytes for key in keystrokes]
    return Summary(
        keystrokes=len(keystrokes),
        with_text=sum(key.with_text for key in keystrokes),
        first_ms_p50=percentile(first, 50),
        first_ms_p95=percentile(first, 95),
        first_ms_p99=percentile(first, 99),
        pass_keystrokes=len(passes),
        pass_first_ms_p50=percentile(passes, 50),
        pass_first_ms_p95=percentile(passes, 95),
        pass_first_ms_p99=percentile(passes, 99),
        by_front_alone_share=_share(sum(key.by_front_alone for key in keystrokes), len(first)),
        without_pass_share=_share(len(first) - len(passes), len(first)),
        computed_mean=fmean(computed) if computed else 0.0,
        computed_p50=percentile(computed, 50),
        computed_p90=percentile(computed, 90),
        computed_p99=percentile(computed, 99),
        computed_max=max(computed, default=0),
        reused_share=_share(reused + spared, reused + spared + sum(computed)),
        jobs_reused_share=_share(reused, reused + sum(computed)),
        flickers=sum(key.flickered for key in keystrokes),
        engine_seconds=engine.total_s,
        engine_wasted_share=_share(engine.wasted_s, engine.total_s),
        engine_background_share=_share(engine.background_s, engine.total_s),
        daemon_bytes_end=daemon[-1] if daemon else 0,
        daemon_bytes_peak=max(daemon, default=0),
        front_bytes_end=front[-1] if front else 0,
        front_bytes_peak=max(front, default=0),
    )


def rows(summary: Summary) -> list[tuple[str, str]]:
    """What whoever types notices, for a table."""
    return [
        ("keystrokes", f"{summary.keystrokes} ({summary.with_text} with ghost text)"),
        (
            "time to first ghost text, or none",
            f"p50 {summary.first_ms_p50:.1f} ms, p95 {summary.first_ms_p95:.1f} ms, "
            f"p99 {summary.first_ms_p99:.1f} ms",
        ),
        (
            f"the same, the {summary.pass_keystrokes} that needed a pass",
            f"p50 {summary.pass_first_ms_p50:.1f} ms, p95 {summary.pass_first_ms_p95:.1f} ms, "
            f"p99 {summary.pass_first_ms_p99:.1f} ms",
        ),
        (
            "answered without a model pass",
            f"{_percent(summary.without_pass_share)} (without the engine "
            f"{_percent(summary.by_front_alone_share)})",
        ),
        (
            "prompt tokens computed per key",
            f"mean {summary.computed_mean:.1f}, p50 {summary.computed_p50:.0f}, "
            f"p90 {summary.computed_p90:.0f}, p99 {summary.computed_p99:.0f}, "
            f"max {summary.computed_max}",
        ),
        (
            "prompt tokens reused",
            f"{_percent(summary.reused_share)} (of those that came to the engine "
            f"{_percent(summary.jobs_reused_share)})",
        ),
    ]


def cost_rows(summary: Summary) -> list[tuple[str, str]]:
    """What the machine paid, for a table."""
    return [
        ("ghost text that flickered", f"{summary.flickers} keystrokes"),
        (
            "engine time",
            f"{summary.engine_seconds:.1f} s, {_percent(summary.engine_wasted_share)} wasted on "
            f"cancelled work, {_percent(summary.engine_background_share)} ahead of the user",
        ),
        ("memory of the daemon", _memory(summary.daemon_bytes_end, summary.daemon_bytes_peak)),
        ("memory of the server", _memory(summary.front_bytes_end, summary.front_bytes_peak)),
    ]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _memory(end: int, peak: int) -> str:
    return f"{end / 2**20:,.0f} MiB, peak {peak / 2**20:,.0f} MiB"
