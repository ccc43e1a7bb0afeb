"""What `status --watch` shows: each daemon in sections, and those that have gone while one watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from completion_ls.cli.figures import NOTHING, Figures, sections
from completion_ls.wire.endpoint import Endpoint


def is_there(name: str) -> bool:
    """Whether a daemon of this endpoint listens, or was killed while it did."""
    return any(endpoint.name == name for endpoint in Endpoint.all())


@dataclass(slots=True)
class Watched:
    """One daemon, by its place: after a restart it is another process there."""

    figures: Figures
    """Its last ones."""
    gone_at: float | None = None
    has_left: bool = False
    """Whether it has taken its socket away, as it does unless it is killed."""
    restarts: int = 0


class Watch:
    """Follows the daemons of this user. Times are seconds of any one clock."""

    def __init__(self, is_there: Callable[[str], bool] = is_there) -> None:
        """`is_there` says whether the socket of this name, or its address, is still there."""
        self._is_there = is_there
        self._watched: dict[str, Watched] = {}

    def update(self, found: Sequence[Figures], now: float) -> None:
        """Take the figures of the daemons that answer now."""
        here = {figures["endpoint"]: figures for figures in found}
        for endpoint, figures in here.items():
            one = self._watched.setdefault(endpoint, Watched(figures))
            one.restarts += figures["pid"] != one.figures["pid"]
            one.figures, one.gone_at = figures, None
        for endpoint, one in self._watched.items():
            if endpoint not in here:
                one.gone_at = now if one.gone_at is None else one.gone_at
                one.has_left = not self._is_there(endpoint)

    def panels(self, now: float, *, is_brief: bool = False) -> Group:
        """All of them, in the order in which they were first seen, and what was accepted of their
        models; `is_brief` takes fewer lines."""
        watched = self._watched.values()
        shown: list[RenderableType] = [panel(one, now, is_brief=is_brief) for one in watched]
        return Group(*(shown or [NOTHING]), *(Text(line) for line in self._accepted()))

    def lines(self, now: float) -> list[str]:
        """The same in a line for each."""
        return [*(_line(one, now) for one in self._watched.values()), *self._accepted()] or [
            NOTHING
        ]

    def _accepted(self) -> list[str]:
        """What was accepted, by model: more than one daemon may have it."""
        counts = {_name(one): one.figures.get("suggestions") for one in self._watched.values()}
        return [
            f"{model}: {one.get('accepted', 0):,} of {one.get('shown', 0):,} suggestions accepted"
            for model, one in counts.items()
            if one
        ]


def panel(one: Watched, now: float, *, is_brief: bool = False) -> Panel:
    """One daemon; where it is brief, its sections stand one after the other."""
    gone = _gone(one, now)
    if gone or "loading" in one.figures:
        rows: Iterator[tuple[str, str]] = iter([("", gone or str(one.figures["loading"]))])
    elif is_brief:
        rows = iter([("", _in_a_line(one.figures))])
    else:
        rows = sections(one.figures)
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
    return f"{_name(one)}: {_in_a_line(one.figures)}"


def _in_a_line(figures: Figures) -> str:
    return "; ".join(f"{name} {text}".strip() for name, text in sections(figures))


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
    if one.has_left:
        return (
            f"It has left, {past} ago: it was stopped, or nobody was there any more; the next request "
            "of an editor starts it again."
        )
    return f"It has not answered for {past}; the next request of an editor starts it again."
