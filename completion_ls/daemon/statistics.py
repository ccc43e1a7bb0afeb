"""What the daemon remembers of its work, and its engine of its own, as figures: counts and times, and of
texts no more than the names of their files."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from completion_ls.config.printable import printable
from completion_ls.config.settings import DraftSettings
from completion_ls.engines.contract import EngineStats

MOST_DOCUMENTS = 12
"""So many documents are told of by name."""
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
    by_front: defaultdict[Hashable, float] = field(default_factory=lambda: defaultdict(float))
    """Engine seconds of each front that is there."""
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

    def figures(self) -> dict[str, Any]:
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
            "engine_seconds_by_front": sorted(self.by_front.values(), reverse=True),
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


def of_engine(stats: EngineStats, settings: DraftSettings) -> dict[str, Any]:
    """For `status`: what the engine says of itself. `settings` say why sources of drafts are missing."""
    drafts = sum(source.drafts for source in stats.drafting)
    proposed = sum(source.proposed for source in stats.drafting)
    checked, accepted = stats.draft_tokens_checked, stats.draft_tokens_accepted
    card = {"gpu_memory_bytes": stats.card_bytes, "gpu_memory_bytes_limit": stats.card_bytes_limit}
    return {
        "jobs_active": stats.jobs_active,
        "jobs_by_lane": {
            lane.name.lower(): {"waiting": jobs.waiting, "running": jobs.running}
            for lane, jobs in stats.lanes.items()
        },
        "passes": stats.passes,
        "prompt_tokens_reused": stats.prompt_tokens_reused,
        "prompt_tokens_computed": stats.prompt_tokens_computed,
        "tokens_generated": stats.tokens_generated,
        "sequences_cached": stats.sequences_cached,
        "sequences_in_use": stats.sequences_in_use,
        "kv_bytes": stats.kv_bytes,
        "kv_bytes_limit": stats.kv_bytes_limit,
        "kv_by_document": _by_name(stats.kv_by_document),
        "weight_bytes": stats.weight_bytes,
        **{name: value for name, value in card.items() if value is not None},
        "drafting": _drafting(stats, settings),
        "draft_tokens_checked": checked,
        "draft_tokens_accepted": accepted,
        "draft_tokens_accepted_share": accepted / checked if checked else 0.0,
        "draft_length_mean": proposed / drafts if drafts else 0.0,
    }


def _drafting(stats: EngineStats, settings: DraftSettings) -> dict[str, dict[str, Any]]:
    """By source whether it is on, why not, and how many of its tokens were checked and right."""
    if not settings.max_tokens:
        missing = dict.fromkeys(("lookup", "model"), "draft.max_tokens is 0")
    else:
        missing = {"lookup": "draft.lookup is false", "model": "draft.model names none"}
    found: dict[str, dict[str, Any]] = {
        name: {"on": False, "why": why, "checked": 0, "accepted": 0}
        for name, why in missing.items()
    }
    for source in stats.drafting:
        found[source.name] = {
            "on": source.is_on,
            "why": source.why_off,
            "checked": source.checked,
            "accepted": source.accepted,
        }
    return found


def _by_name(kv_by_document: Mapping[str, int]) -> list[dict[str, Any]]:
    """Those that use most, by the last part of their names: the folders are nobody's business."""
    ordered = sorted(kv_by_document.items(), key=lambda one: -one[1])
    return [
        {"document": _name(uri), "bytes": used} for uri, used in ordered[:MOST_DOCUMENTS] if used
    ]


def _name(uri: str) -> str:
    try:
        path = urlsplit(uri).path
    except ValueError:  # brackets where a host should stand
        path = uri
    name = unquote(path.replace("\\", "/").rstrip("/").rpartition("/")[2])
    return printable(name).replace("\n", "\ufffd")
