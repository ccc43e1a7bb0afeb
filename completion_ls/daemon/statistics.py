"""What the daemon remembers of its work: counts and times, never text."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class Served:
    """One job that gave a first token. Times in milliseconds since the job's arrival."""

    reused: int
    computed: int
    first_token_ms: float


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie (nearest rank); 0 where there are none."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(percent * len(values) / 100) - 1)]


@dataclass(slots=True)
class Statistics:
    """Totals, and the last jobs that somebody waited for, for the percentiles.

    Jobs that somebody waits for are those of the key and manual lanes, and those of the background
    lane from their promotion on. What the background lane did until then is counted for itself;
    wasted are the seconds of jobs that somebody waited for and that were cancelled before they had
    given all that was wanted of them.
    """

    jobs: int = 0
    awaited: int = 0
    awaited_without_pass: int = 0
    engine_s: float = 0.0
    wasted_s: float = 0.0
    background_s: float = 0.0
    background_reused: int = 0
    background_computed: int = 0
    cancelled: int = 0
    failed: int = 0
    without_pass: int = 0
    decoded: int = 0
    """Tokens behind the first ones of jobs that somebody waited for, ..."""
    decode_s: float = 0.0
    """... and the seconds that they took."""
    recent: deque[Served] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def figures(self) -> dict[str, float]:
        """For `status`: the last jobs' first tokens and prompt tokens, and the totals."""
        first = [job.first_token_ms for job in self.recent]
        computed = [job.computed for job in self.recent]
        prompt = sum(job.reused + job.computed for job in self.recent)
        keystrokes = self.awaited + self.without_pass
        return {
            "jobs": self.jobs,
            "jobs_awaited": self.awaited,
            "jobs_awaited_without_pass": self.awaited_without_pass,
            "jobs_cancelled": self.cancelled,
            "jobs_failed": self.failed,
            "answered_without_pass": self.without_pass,
            "answered_without_pass_share": self.without_pass / keystrokes if keystrokes else 0.0,
            "engine_seconds": self.engine_s,
            "engine_seconds_wasted": self.wasted_s,
            "engine_seconds_background": self.background_s,
            "prompt_tokens_reused_background": self.background_reused,
            "prompt_tokens_computed_background": self.background_computed,
            "first_token_ms_p50": percentile(first, 50),
            "first_token_ms_p95": percentile(first, 95),
            "tokens_per_second": self.decoded / self.decode_s if self.decode_s else 0.0,
            "prompt_tokens_computed_p50": percentile(computed, 50),
            "prompt_tokens_computed_p95": percentile(computed, 95),
            "prompt_tokens_computed_mean": statistics.fmean(computed) if computed else 0.0,
            "prompt_tokens_reused_share": (
                sum(job.reused for job in self.recent) / prompt if prompt else 0.0
            ),
        }
