"""The figures of `status` as metrics for Prometheus, on a port of this machine only.

They are asked for when somebody asks, and hold no names: of a document, a model or a folder. Nothing
imports this module, or prometheus-client, where `daemon.metrics_port` is 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from completion_ls.wire.endpoint import LOOPBACK

_log = logging.getLogger(__name__)

Figures = dict[str, Any]

PREFIX = "completion_ls_"
COUNTERS = {
    "jobs": ("jobs", "Jobs that came."),
    "jobs_awaited": ("jobs_awaited", "Jobs that somebody waited for."),
    "jobs_awaited_without_pass": (
        "jobs_awaited_without_pass",
        "Jobs that somebody waited for whose first text needed no pass of the model.",
    ),
    "jobs_cancelled": ("jobs_cancelled", "Jobs given up before all that was wanted was there."),
    "jobs_failed": ("jobs_failed", "Jobs that failed."),
    "answered_without_pass": (
        "answered_without_pass",
        "Keystrokes that were answered from a suggestion that was there already.",
    ),
    "engine_seconds": ("engine_seconds", "Time spent computing."),
    "engine_seconds_wasted": (
        "engine_wasted_seconds",
        "The part of it on jobs that somebody waited for and that were cancelled.",
    ),
    "engine_seconds_background": (
        "engine_background_seconds",
        "The part of it on work ahead of the user.",
    ),
    "passes": ("passes", "Forward passes of the model."),
    "tokens_generated": ("tokens_generated", "Tokens of output."),
    "audited": ("audited", "Answers that were computed again from scratch."),
    "audit_ties": ("audit_ties", "Audited answers that differ between equally good tokens."),
    "audit_mismatches": ("audit_mismatches", "Audited answers that differ; there must be none."),
}
GAUGES = {
    "uptime_s": ("uptime_seconds", "Time since the daemon started."),
    "fronts": ("fronts", "Windows of editors, and commands that ask for text."),
    "memory_bytes": ("resident_memory_bytes", "Resident memory of the daemon."),
    "max_context": ("max_context_tokens", "Most tokens, prompt and output together, of one job."),
    "tokens_per_second": (
        "decode_tokens_per_second",
        "Rate of the tokens after the first one of jobs that somebody waited for.",
    ),
    "sequences_cached": ("sequences_cached", "Sequences (exllamav2: pages) with KV."),
    "sequences_in_use": ("sequences_in_use", "Sequences (exllamav2: pages) that belong to a job."),
    "kv_bytes": ("kv_bytes", "KV in use."),
    "kv_bytes_limit": ("kv_limit_bytes", "Most memory for KV."),
    "weight_bytes": ("weight_bytes", "Weights of the models."),
    "gpu_memory_bytes": ("gpu_memory_bytes", "Memory of the card in use, by any program."),
    "gpu_memory_bytes_limit": ("gpu_memory_limit_bytes", "Memory of the card."),
    "draft_length_mean": ("draft_length_mean_tokens", "Mean length of a draft."),
}
MS = 1e-3
QUANTILES = {
    "first_token_ms": (
        "first_token_seconds",
        "From a job's arrival to its first token, of the last 1,000 jobs.",
        MS,
    ),
    "prompt_tokens_computed": (
        "job_prompt_tokens_computed",
        "Prompt tokens that a job put through the model, of the last 1,000 jobs.",
        1,
    ),
}


class Metrics:
    """The HTTP server, on a thread of its own."""

    def __init__(self, port: int, ask: Callable[[], Figures]) -> None:
        """`ask` is called on threads of the server, once a request. Raises OSError where the port
        cannot be had."""
        registry = CollectorRegistry()
        registry.register(FiguresCollector(ask))
        self._server, self._thread = start_http_server(port, LOOPBACK, registry)

    def close(self) -> None:
        """Give the port back; takes up to half a second."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class FiguresCollector(Collector):
    """What Prometheus is given."""

    def __init__(self, ask: Callable[[], Figures]) -> None:
        self._ask = ask

    def collect(self) -> Iterable[Metric]:
        """Those of now; none where the engine has no time to answer."""
        try:
            return families(self._ask())
        except (TimeoutError, RuntimeError):  # RuntimeError: the daemon is leaving
            _log.info("the figures could not be had in time")
            return []


def families(figures: Figures) -> Iterator[Metric]:
    """The metrics that these figures of `status` make."""
    about = {"version": figures["version"], "engine": figures.get("engine", "")}
    yield InfoMetricFamily(PREFIX.rstrip("_"), "The daemon.", about)
    yield _gauge("ready", "Whether the model is loaded.", float("loading" not in figures))
    for figure, (name, text) in COUNTERS.items():
        if figure in figures:
            yield CounterMetricFamily(PREFIX + name, text, figures[figure])
    for figure, (name, text) in GAUGES.items():
        if figure in figures:
            yield _gauge(name, text, figures[figure])
    for figure, (name, text, unit) in QUANTILES.items():
        if f"{figure}_p50" in figures:
            found = GaugeMetricFamily(PREFIX + name, text, labels=["quantile"])
            found.add_metric(["0.5"], unit * figures[f"{figure}_p50"])
            found.add_metric(["0.95"], unit * figures[f"{figure}_p95"])
            yield found
    if "prompt_tokens_reused" in figures:
        yield _prompt_tokens(figures)
    yield from _drafts(figures.get("drafting", {}))
    yield _lanes(figures.get("jobs_by_lane", {}))


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, value)


def _prompt_tokens(figures: Figures) -> Metric:
    text = "Prompt tokens, by where their KV came from."
    found = CounterMetricFamily(PREFIX + "prompt_tokens", text, labels=["source"])
    found.add_metric(["cache"], figures["prompt_tokens_reused"])
    found.add_metric(["computed"], figures["prompt_tokens_computed"])
    return found


def _drafts(drafting: dict[str, dict[str, Any]]) -> Iterator[Metric]:
    text = "Whether drafts of this source are used."
    is_on = GaugeMetricFamily(PREFIX + "drafting", text, labels=["source"])
    text = "Draft tokens that were compared with what the model chose."
    checked = CounterMetricFamily(PREFIX + "draft_tokens_checked", text, labels=["source"])
    text = "Draft tokens that were right."
    accepted = CounterMetricFamily(PREFIX + "draft_tokens_accepted", text, labels=["source"])
    for name, source in drafting.items():
        is_on.add_metric([name], float(source["on"]))
        checked.add_metric([name], source["checked"])
        accepted.add_metric([name], source["accepted"])
    yield from (is_on, checked, accepted)


def _lanes(jobs_by_lane: dict[str, dict[str, int]]) -> Metric:
    found = GaugeMetricFamily(PREFIX + "lane_jobs", "Jobs now.", labels=["lane", "state"])
    for lane, jobs in jobs_by_lane.items():
        for state, count in jobs.items():
            found.add_metric([lane, state], count)
    return found
