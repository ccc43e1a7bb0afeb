"""What `status --watch` shows: each daemon in sections, and those that have gone while one watched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from completion_ls.cli.figures import (
    NOTHING,
    Figures,
    document_lines,
    draft_lines,
    job_lines,
    mib,
)


@dataclass(slots=True)
class Watched:
    """One daemon, by its place: after a restart it is another process there."""

    figures: Figures
    """Its last ones."""
    gone_at: float | None = None
    restarts: int = 0


class Watch:
    """Follows the daemons of this user. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self._watched: dict[str, Watched] = {}

    def update(self, found: Sequence[Figures], now: float) -> None:
        """Take the figures of the daemons that answer now."""
        here = {figures["endpoint"]: figures for figures in found}
        for endpoint, figures in here.items():
            one = self._watched.setdefault(endpoint, Watched(figures))
            one.restarts += figures["pid"] != one.figures["pid"]
            one.figures, one.gone_at = figures, None
        for endpoint, one in self._watched.items():
            if endpoint not in here and one.gone_at is None:
                one.gone_at = now

    def panels(self, now: float) -> Group:
        """All of them, in the order in which they were first seen."""
        shown: list[RenderableType] = [_panel(one, now) for one in self._watched.values()]
        return Group(*(shown or [NOTHING]))

    def lines(self, now: float) -> list[str]:
        """The same in a line for each."""
        return [_line(one, now) for one in self._watched.values()] or [NOTHING]


def _panel(one: Watched, now: float) -> Panel:
    gone = _gone(one, now)
    if gone or "loading" in one.figures:
        rows: Iterator[tuple[str, str]] = iter([("", gone or str(one.figures["loading"]))])
    else:
        rows = _rows(one.figures)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for section, text in rows:
        grid.add_row(section, Text(text))
    title = Text(_name(one), overflow="ellipsis", no_wrap=True)
    return Panel(
        grid,
        title=title,
        title_align="left",
        subtitle=Text(_process(one)),
        subtitle_align="left",
        border_style="red" if gone else "green",
    )


def _line(one: Watched, now: float) -> str:
    if gone := _gone(one, now):
        return f"{_name(one)}: {gone}"
    if "loading" in one.figures:
        return f"{_name(one)}: {one.figures['loading']}"
    return f"{_name(one)}: " + "; ".join(
        f"{name} {text}".strip() for name, text in _rows(one.figures)
    )


def _name(one: Watched) -> str:
    return str(one.figures.get("model") or one.figures["endpoint"])


def _process(one: Watched) -> str:
    figures = one.figures
    parts = [f"{figures['engine']}"] if "engine" in figures else []
    parts += [f"process {figures['pid']}", f"up {timedelta(seconds=int(figures['uptime_s']))}"]
    if one.restarts:
        parts.append(f"started again {_times(one.restarts)} meanwhile")
    return ", ".join(parts)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _gone(one: Watched, now: float) -> str:
    if one.gone_at is None:
        return ""
    past = timedelta(seconds=int(now - one.gone_at))
    return f"It has not answered for {past}; the next request of an editor starts it again."


def _rows(figures: Figures) -> Iterator[tuple[str, str]]:
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
    if suggestions := figures.get("suggestions"):
        shown, accepted = suggestions.get("shown", 0), suggestions.get("accepted", 0)
        yield "suggestions", f"{accepted:,} of {shown:,} accepted"


def _draft_rows(figures: Figures) -> Iterator[tuple[str, str]]:
    if figures.get("draft_tokens_checked"):
        share = 100 * figures["draft_tokens_accepted_share"]
        yield "drafts", f"{share:.1f} % accepted, {figures['draft_length_mean']:.1f} long (mean)"
    yield from _section("drafting", draft_lines(figures.get("drafting", {})))


def _memory_rows(figures: Figures) -> Iterator[tuple[str, str]]:
    if "kv_bytes" in figures:
        yield "KV", f"{mib(figures['kv_bytes'])} of {mib(figures['kv_bytes_limit'])}"
    yield from _section("", document_lines(figures.get("kv_by_document", [])))
    if "gpu_memory_bytes" in figures:
        used, limit = figures["gpu_memory_bytes"], figures["gpu_memory_bytes_limit"]
        yield "GPU memory", f"{mib(used)} of {mib(limit)}"
    yield "memory", f"{mib(figures['memory_bytes'])} of the process"


def _section(name: str, lines: list[str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines):
        yield "" if number else name, line
