"""The figures of an engine measurement: medians over rounds, ratios to peers, and their table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

OURS = "completion-ls"
Raw = dict[str, dict[str, list[float]]]
"""Side, measure: one value a round."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: counts of tokens, except `prompts`, `idle_s` and `copy_bytes`."""

    prompts: int = 3
    context: int = 1120
    tokens: int = 100
    short: int = 256
    long: int = 4096
    fill: int = 8192
    idle_s: float = 3.0
    copy_bytes: int = 1 << 28

    def within(self, most: int) -> Sizes:
        """The same for a model whose context holds `most` tokens. Raises ValueError where it cannot
        be measured at all."""
        room = most - self.tokens - 1
        if room < self.short:
            raise ValueError(
                f"The model's context of {most} tokens is too short; measuring needs "
                f"{self.short + self.tokens + 1}."
            )
        return Sizes(
            prompts=self.prompts,
            context=min(self.context, room),
            tokens=self.tokens,
            short=self.short,
            long=min(self.long, room),
            fill=min(self.fill, most),
            idle_s=self.idle_s,
            copy_bytes=self.copy_bytes,
        )


@dataclass(frozen=True, slots=True)
class Measure:
    """A row of the table. `better` is 1 where more is better, -1 where less is, 0 where a comparison
    with a peer says nothing."""

    key: str
    text: str
    show: Callable[[float], str]
    better: int


def measures(sizes: Sizes) -> tuple[Measure, ...]:
    """All rows, in order."""
    return (
        Measure("cold_ms", f"first token, {sizes.context:,} cold", _ms, -1),
        Measure("plain_per_s", f"tokens/s at {sizes.context:,}", _one, 1),
        Measure("drafted_per_s", "the same with drafts", _one, 1),
        Measure("short_per_s", f"tokens/s at {sizes.short:,}", _one, 1),
        Measure("long_per_s", f"tokens/s at {sizes.long:,}", _one, 1),
        Measure("long_share", f"... share of that at {sizes.short:,}", _share, 0),
        Measure("pass_ms", f"one pass at {sizes.short:,}", _ms, 0),
        Measure("floor_ms", "floor: weights / copy", _ms, 0),
        Measure("pass_over_floor", "pass / floor", _two, 0),
        Measure("copied_per_s", "copy (reads and writes)", _gigabytes_per_s, 0),
        Measure("import_ms", "import of the library", _ms, 0),
        Measure("load_ms", "load, files in memory", _ms, -1),
        Measure("peak_bytes", f"peak memory, KV of {sizes.fill:,}", _mebibytes, -1),
        Measure("idle_cpu_s", f"CPU time in {sizes.idle_s:g} s idle", _seconds, 0),
    )


@dataclass(frozen=True, slots=True)
class Report:
    """One measurement. `engine` are the settings of that name; `versions` has the peers and what
    they stand on; `load_averages` are those of the machine before and after; `drafts_equal` says
    whether our drafted text was the plain one, None where the settings have no drafts;
    `speculations` are llama.cpp's kinds of drafts, each with its tokens a second in one trial,
    and `speculation` the one that was taken."""

    model: str
    engine: dict[str, object]
    rounds: int
    sizes: Sizes
    raw: Raw
    versions: dict[str, str]
    threads: int
    weight_bytes: int
    untied: bool
    load_averages: tuple[float, float] | None
    drafts_equal: bool | None
    tokens_per_pass: float
    speculation: str
    speculations: dict[str, float]

    @property
    def peers(self) -> list[str]:
        """Their names, in the order in which they were given."""
        return [name for name in self.raw if name != OURS]

    def as_dict(self) -> dict[str, Any]:
        """For JSON; the sides' rounds are under `raw`."""
        middle = medians(self.raw)
        return asdict(self) | {
            "median": middle,
            "ratio": {name: ratios(middle[OURS], middle[name]) for name in self.peers},
        }


def medians(raw: Raw) -> dict[str, dict[str, float]]:
    """Over the rounds."""
    return {
        side: {key: median(values) for key, values in measured.items()}
        for side, measured in raw.items()
    }


def ratios(ours: Mapping[str, float], peer: Mapping[str, float]) -> dict[str, float]:
    """How many times better ours is, of what both have."""
    found = {}
    for measure in measures(Sizes()):
        if measure.better and measure.key in ours and measure.key in peer:
            high, low = ours[measure.key], peer[measure.key]
            if measure.better < 0:
                high, low = low, high
            if low > 0:
                found[measure.key] = high / low
    return found


def floor_s(weight_bytes: int, copied_per_s: float) -> float:
    """The time in which the machine copies the weights once."""
    return weight_bytes / copied_per_s


def rate(counts: Sequence[int], times_s: Sequence[float]) -> float:
    """So many a second, all together."""
    return sum(counts) / sum(times_s)


def rows(report: Report) -> Iterator[list[str]]:
    """The table: what is measured, ours, and for each peer its figure and the ratio."""
    middle = medians(report.raw)
    against = {name: ratios(middle[OURS], middle[name]) for name in report.peers}
    for measure in measures(report.sizes):
        if not any(measure.key in side for side in middle.values()):
            continue
        row = [measure.text, _shown(measure, middle[OURS])]
        for name in report.peers:
            better = against[name].get(measure.key)
            row += [_shown(measure, middle[name]), "" if better is None else f"{better:.2f}"]
        yield row


def notes(report: Report) -> Iterator[str]:
    """What the reader of the table has to know."""
    yield (
        f"{report.model}, {report.threads} threads, medians of {report.rounds} rounds in which the "
        "sides alternate; greedy, nothing reused. Ratios: how many times better completion-ls is."
    )
    engine = ", ".join(f"{key} = {value}" for key, value in report.engine.items())
    yield f"Settings of the engine: {engine}."
    if report.versions:
        yield ", ".join(f"{name} {version}" for name, version in report.versions.items()) + "."
    if report.drafts_equal is None:
        yield "These settings have no drafts."
    else:
        same = "the same as" if report.drafts_equal else "NOT THE SAME AS"
        yield (
            f"The text with drafts is {same} the text without; "
            f"{report.tokens_per_pass:.2f} tokens a pass."
        )
    if report.speculations:
        tried = ", ".join(f"{kind}: {value:.1f}" for kind, value in report.speculations.items())
        yield (
            f"llama.cpp's drafts: {report.speculation}, the fastest in one trial of each kind "
            f"(tokens/s: {tried})."
        )
    if report.untied:
        yield "The floor counts the embedding table, of which a pass reads one row only."
    if report.load_averages:
        before, after = report.load_averages
        yield f"Load average of the machine: {before:.1f} before, {after:.1f} after."


def _shown(measure: Measure, side: Mapping[str, float]) -> str:
    return measure.show(side[measure.key]) if measure.key in side else "–"


def _ms(value: float) -> str:
    return f"{value:,.1f} ms" if value < 100 else f"{value:,.0f} ms"


def _one(value: float) -> str:
    return f"{value:.1f}"


def _two(value: float) -> str:
    return f"{value:.2f}"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _seconds(value: float) -> str:
    return f"{value:.2f} s"


def _mebibytes(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB"


def _gigabytes_per_s(value: float) -> str:
    return f"{value / 1e9:.1f} GB/s"
