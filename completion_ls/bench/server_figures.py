"""From what keys cost a server to how many users it has room for: each line, and how it is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean, median
from typing import Any

from completion_ls.bench.server_cost import NO_SESSION, OURS, Capacity, Cost, Key
from completion_ls.daemon.statistics import percentile

MOST_PROMPT_TOKENS = 3
"""So many prompt tokens a key may cost a server, in the median, by our prompts."""
HELD = (NO_SESSION.name, OURS.name)
"""The arms of which that is asked."""


@dataclass(frozen=True, slots=True)
class Figures:
    """An arm's figures: of a key, but for the shares. `without_request_share` are keys whose first text
    waited for no request, `cancelled_share` is of the requests, `unread` are tokens that were decoded for
    nobody."""

    arm: str
    requests: float
    prompt_p50: float
    prompt_p95: float
    prompt: float
    decoded: float
    passes_p50: float
    passes_p95: float
    passes: float
    without_request_share: float
    cancelled_share: float
    unread: float


@dataclass(frozen=True, slots=True)
class Team:
    """Who uses the server: an assumption."""

    users: int
    typing_share: float
    """Of the time in which they use it, how much they type."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the arithmetic: a value for each arm, or one for all, and how it is known."""

    text: str
    values: tuple[float, ...]
    known: str


def summarize(cost: Cost) -> Figures:
    """An arm's figures in one round."""
    count = len(cost.keys)

    def spread(get: Callable[[Key], int]) -> tuple[float, float, float]:
        values = [get(key) for key in cost.keys]
        return percentile(values, 50), percentile(values, 95), fmean(values)

    return Figures(
        cost.arm,
        cost.requests / count,
        *spread(lambda key: key.work.prompt_tokens),
        fmean(key.work.decoded for key in cost.keys),
        *spread(lambda key: key.work.passes),
        sum(key.awaited == 0 for key in cost.keys) / count,
        cost.cancelled / cost.requests if cost.requests else 0.0,
        cost.unread / count,
    )


def medians(rounds: Sequence[Sequence[Figures]]) -> list[Figures]:
    """Arm by arm, the median of each figure over the rounds."""
    names = [field.name for field in fields(Figures)][1:]
    return [
        Figures(same[0].arm, **{name: median(getattr(one, name) for one in same) for name in names})
        for same in zip(*rounds, strict=True)
    ]


def rows(figures: Sequence[Figures]) -> Iterator[tuple[str, ...]]:
    """A row a figure, a column an arm."""

    def row(text: str, shown: Callable[[Figures], str]) -> tuple[str, ...]:
        return text, *map(shown, figures)

    yield row("requests", lambda one: f"{one.requests:.2f}")
    yield row(
        "keys whose first text needed no request",
        lambda one: f"{100 * one.without_request_share:.0f} %",
    )
    yield row("prompt tokens evaluated: mean (p50, p95)", lambda one: _spread(one, "prompt"))
    yield row("tokens decoded", lambda one: f"{one.decoded:.2f}")
    yield row("passes: mean (p50, p95)", lambda one: _spread(one, "passes"))
    yield row("requests that were cancelled", lambda one: f"{100 * one.cancelled_share:.0f} %")
    yield row("tokens decoded after they were", lambda one: f"{one.unread:.2f}")


def _spread(one: Figures, name: str) -> str:
    mean, p50, p95 = (getattr(one, name + end) for end in ("", "_p50", "_p95"))
    return f"{mean:.2f} ({p50:.0f}, {p95:.0f})"


def arithmetic(
    figures: Sequence[Figures], keys_per_s: float, team: Team, rates: Rates
) -> list[Line]:
    """From keys to users, line by line."""
    typing = [keys_per_s * one.passes for one in figures]
    each = [team.typing_share * passes for passes in typing]
    prompts = [team.typing_share * keys_per_s * one.prompt for one in figures]
    lines = [
        Line("keys a second while somebody types", (keys_per_s,), "measured: the recording"),
        Line("× passes a key", tuple(one.passes for one in figures), "measured here"),
        Line("= passes a second while somebody types", tuple(typing), "computed"),
        Line("× share of the time with typing", (team.typing_share,), "assumed: --typing-share"),
        Line("= passes a second of a user, on average", tuple(each), "extrapolated"),
        Line("× users", (team.users,), "chosen: --users"),
        Line("= passes a second that reach the server", _times(team.users, each), "extrapolated"),
        Line("with prompt tokens a second", _times(team.users, prompts), "extrapolated"),
        *rates.lines,
    ]
    users = tuple(rates.passes / passes if passes else 0.0 for passes in each)
    lines.append(Line("users a server, by passes", users, "extrapolated"))
    if rates.prompt is not None:
        busy = [
            passes / rates.passes + tokens / rates.prompt
            for passes, tokens in zip(each, prompts, strict=True)
        ]
        users = tuple(1 / share if share else 0.0 for share in busy)
        lines.append(Line("users a server, by passes and prompts", users, "extrapolated"))
    return lines


@dataclass(frozen=True, slots=True)
class Rates:
    """What a server does in a second, of all answers together, and how that is known."""

    passes: float
    prompt: float | None
    lines: tuple[Line, ...]

    @classmethod
    def measured(cls, done: Capacity) -> Rates:
        """Of the server here; what it does for several at once where that is more."""
        how = "measured here"
        one = Line("passes a second of this server, one answer", (done.one,), how)
        several = Line(f"the same, {done.slots} answers at once", (done.all,), how)
        prompt = Line("prompt tokens a second of this server", (done.prompt,), how)
        return cls(max(done.one, done.all), done.prompt, (one, several, prompt))

    @classmethod
    def given(cls, passes: float, prompt: float | None) -> Rates:
        """Of another machine."""
        lines = [Line("passes a second of a server", (passes,), "given: --passes-per-second")]
        if prompt is not None:
            how = "given: --prompt-tokens-per-second"
            lines.append(Line("prompt tokens a second of a server", (prompt,), how))
        return cls(passes, prompt, tuple(lines))


def _times(users: int, values: Sequence[float]) -> tuple[float, ...]:
    return tuple(users * value for value in values)


def verdicts(figures: Sequence[Figures]) -> Iterator[tuple[str, bool]]:
    """Whether a key costs no more prompt tokens than it may, a sentence for each arm of which that is
    asked."""
    for one in figures:
        if one.arm in HELD:
            is_met = one.prompt_p50 <= MOST_PROMPT_TOKENS
            yield (
                (
                    f"{one.arm}: {one.prompt_p50:.0f} prompt tokens evaluated a key (p50), at most "
                    f"{MOST_PROMPT_TOKENS} are allowed: {'met' if is_met else 'NOT met'}."
                ),
                is_met,
            )


def as_dict(figures: Sequence[Figures], lines: Sequence[Line]) -> dict[str, Any]:
    """For JSON."""
    return {
        "arms": [asdict(one) for one in figures],
        "arithmetic": [asdict(line) for line in lines],
        "prompt_tokens_p50_allowed": MOST_PROMPT_TOKENS,
        "met": all(is_met for _, is_met in verdicts(figures)),
    }
