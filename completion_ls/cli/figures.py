"""Figures of a daemon that are more than one number, as lines, and what is said where there are none."""

from __future__ import annotations

from typing import Any

Figures = dict[str, Any]

NOTHING = "No engine daemon is running; an editor or `completion-ls demo` starts one."


def mib(count: int) -> str:
    """Bytes."""
    return f"{count / 2**20:,.0f} MiB"


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
