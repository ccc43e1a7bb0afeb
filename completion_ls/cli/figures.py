"""Figures of a daemon in sections, as lines, and what is said where there are none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Figures = dict[str, Any]
IN_SECTIONS = frozenset(
    {
        *("first_token_ms_p50", "first_token_ms_p95", "prompt_tokens_computed_p50"),
        *(
            "prompt_tokens_computed_p95",
            "prompt_tokens_computed_mean",
            "prompt_tokens_reused_share",
        ),
        *("answered_without_pass_share", "tokens_per_second", "draft_tokens_accepted_share"),
        *("draft_length_mean", "drafting", "jobs_by_lane", "kv_bytes", "kv_bytes_limit"),
        *("kv_by_document", "gpu_memory_bytes", "gpu_memory_bytes_limit", "memory_bytes"),
        *("metrics_port", "metrics_url", "metrics_failure"),
    }
)
"""Those that `sections` tells."""

NOTHING = "No engine daemon is running; an editor or `completion-ls demo` starts one."


def mib(count: int) -> str:
    """Bytes."""
    return f"{count / 2**20:,.0f} MiB"


def metrics_line(figures: Figures) -> str:
    """Where Prometheus finds the figures, or why not; empty where nobody asked for that."""
    if not figures.get("metrics_port"):
        return ""
    return str(figures.get("metrics_url") or figures.get("metrics_failure") or "not yet")


def job_lines(jobs_by_lane: dict[str, dict[str, int]]) -> list[str]:
    """What each lane has to do now."""
    return [
        f"{lane}: {jobs['running']} running, {jobs['waiting']} waiting"
        for lane, jobs in jobs_by_lane.items()
    ]


def document_lines(kv_by_document: list[dict[str, Any]]) -> list[str]:
    """Whose KV is kept."""
    return [f"{mib(one['bytes'])} {one['document'] or '(no name)'}" for one in kv_by_document]


def draft_lines(drafting: dict[str, dict[str, Any]]) -> list[str]:
    """Which sources of drafts are used, how often they are right, and why others are not used."""
    lines = []
    for name, source in drafting.items():
        said = "on" if source["on"] else f"off ({source['why']})"
        if source["checked"]:
            share = 100 * source["accepted"] / source["checked"]
            said += f", {share:.1f} % of {source['checked']:,} tokens right"
        lines.append(f"{name}: {said}")
    return lines


def sections(figures: Figures) -> Iterator[tuple[str, str]]:
    """Sections and their lines; figures of which nothing is known yet are left out."""
    if figures.get("first_token_ms_p95"):
        computed = "prompt_tokens_computed"
        yield (
            "first token",
            f"p50 {figures['first_token_ms_p50']:,.0f} ms, p95 {figures['first_token_ms_p95']:,.0f} ms",
        )
        yield (
            "per keystroke",
            f"p50 {figures[f'{computed}_p50']:,.0f}, p95 {figures[f'{computed}_p95']:,.0f}, "
            f"mean {figures[f'{computed}_mean']:,.1f} tokens computed",
        )
        yield (
            "",
            f"{100 * figures['prompt_tokens_reused_share']:.1f} % reused, "
            f"{100 * figures['answered_without_pass_share']:.1f} % answered without a pass",
        )
    if figures.get("tokens_per_second"):
        yield "writing", f"{figures['tokens_per_second']:,.1f} tokens/s"
    yield from _draft_rows(figures)
    yield from _section("jobs", job_lines(figures.get("jobs_by_lane", {})))
    yield from _memory_rows(figures)
    if metrics := metrics_line(figures):
        yield "metrics", metrics


def _draft_rows(figures: Figures) -> Iterator[tuple[str, str]]:
    if figures.get("draft_tokens_checked"):
        share = 100 * figures["draft_tokens_accepted_share"]
        yield "drafts", f"{share:.1f} % accepted, {figures['draft_length_mean']:.1f} long (mean)"
    yield from _section("drafting", draft_lines(figures.get("drafting", {})))


def _memory_rows(figures: Figures) -> Iterator[tuple[str, str]]:
    if figures.get("kv_bytes_limit"):  # a server keeps its own
        yield "KV", f"{mib(figures['kv_bytes'])} of {mib(figures['kv_bytes_limit'])}"
    yield from _section("", document_lines(figures.get("kv_by_document", [])))
    if "gpu_memory_bytes" in figures:
        used, limit = figures["gpu_memory_bytes"], figures["gpu_memory_bytes_limit"]
        yield "GPU memory", f"{mib(used)} of {mib(limit)}"
    yield "memory", f"{mib(figures['memory_bytes'])} of the process"


def _section(name: str, lines: list[str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines):
        yield "" if number else name, line
