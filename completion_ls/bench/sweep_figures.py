"""What a sweep measures, and what follows from it: speeds, acceptance, and the speed-up that a formula
predicts from acceptance and cost.

A pass that checks k draft tokens, each right with the probability α, gives (1-α^(k+1))/(1-α) tokens; it
costs as much as a pass of one position and k draft tokens of the cost c each, says Leviathan et al.,
"Fast inference from transformers via speculative decoding" (2023). What it really costs is measured, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal

from completion_ls.engines.vram import CacheType

Source = Literal["none", "lookup", "model", "layers"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the engine, and what it continues: `context` tokens of code, and, with `prose`, of
    prose, too."""

    source: Source = "none"
    length: int = 0
    """Draft tokens of each pass; 0 for as many as the engine has learnt to take."""
    layers: int = 0
    """So many first layers of the model guess, with the source "layers"."""
    sampled: bool = False
    """Drawn at `sweep.SAMPLING`, and else the most probable token."""
    own_noise: bool = False
    """The draft model draws with other noise than the target."""
    split: bool = False
    """Each position that is checked goes through the model in a pass of its own."""
    weights: str = ""
    kv_cache: CacheType | Literal[""] = ""
    """As set, unless named."""
    stream: bool = False
    """The draft model reads prompts beside the target."""
    fresh: bool = False
    """The prompt is read anew."""
    context: int = 512
    prose: bool = True

    @property
    def plain(self) -> Arm:
        """The same without drafts."""
        return replace(self, source="none", length=0, layers=0, own_noise=False, split=False)


@dataclass(frozen=True, slots=True)
class Run:
    """One round of an arm. `rest` tokens came in `seconds` and `passes` behind the first one, which took
    `first_s`. Of these seconds `draft_s` went into guessing; `lengths` says how many passes had a draft
    of how many tokens (those that had none are not in it); of the draft tokens so many were `checked`,
    up to the first wrong one of each draft, and `accepted`. `texts` are the tokens that came out."""

    rest: int
    seconds: float
    passes: int
    first_s: float
    draft_s: float = 0.0
    checked: int = 0
    accepted: int = 0
    lengths: Mapping[int, int] | None = None
    texts: tuple[tuple[int, ...], ...] = ()

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.rest / self.seconds

    @property
    def pass_s(self) -> float:
        """Seconds of a pass, guessing not counted."""
        return (self.seconds - self.draft_s) / self.passes

    @property
    def drafted(self) -> int:
        """Tokens guessed."""
        return sum(length * count for length, count in (self.lengths or {}).items())


def joined(runs: Sequence[Run]) -> Run:
    """The runs of several texts as one; the first tokens' times are added up."""
    return Run(
        rest=sum(run.rest for run in runs),
        seconds=sum(run.seconds for run in runs),
        passes=sum(run.passes for run in runs),
        first_s=sum(run.first_s for run in runs),
        draft_s=sum(run.draft_s for run in runs),
        checked=sum(run.checked for run in runs),
        accepted=sum(run.accepted for run in runs),
        lengths=_counted(runs),
        texts=tuple(text for run in runs for text in run.texts),
    )


def tokens_of_pass(acceptance: float, length: int) -> float:
    """How many tokens a pass gives on average that checks a draft of so many tokens."""
    if acceptance >= 1:
        return length + 1.0
    return (1 - acceptance ** (length + 1)) / (1 - acceptance)


def predicted(
    acceptance: float, lengths: Mapping[int, int], draft_cost: float, pass_cost: float = 1.0
) -> float:
    """The speed-up against no drafts. `lengths` says how many passes had how many draft tokens, each of
    which costs `draft_cost`; a pass costs `pass_cost` on average, both relative to a pass of one
    position. With one length it is (1-α^(k+1))/((1-α)(ck+1))."""
    tokens = sum(count * tokens_of_pass(acceptance, length) for length, count in lengths.items())
    cost = sum(count * (draft_cost * length + pass_cost) for length, count in lengths.items())
    return tokens / cost


@dataclass(frozen=True, slots=True)
class Row:
    """An arm's rounds, beside those of the arm that it is compared with in the same rounds."""

    name: str
    arm: Arm
    base_arm: Arm
    runs: tuple[Run, ...]
    base: tuple[Run, ...]

    @property
    def tokens_per_s(self) -> float:
        """The median over the rounds."""
        return median(run.rate for run in self.runs)

    @property
    def spread(self) -> tuple[float, float]:
        """The smallest and the largest tokens a second."""
        rates = [run.rate for run in self.runs]
        return min(rates), max(rates)

    @property
    def first_ms(self) -> tuple[float, float, float]:
        """Milliseconds to the first token: the median, the smallest and the largest."""
        times = [1e3 * run.first_s for run in self.runs]
        return median(times), min(times), max(times)

    @property
    def speed_up(self) -> float:
        """Against the other arm: the median of the rounds' ratios."""
        return median(run.rate / base.rate for run, base in self._pairs())

    @property
    def acceptance(self) -> float | None:
        """α: how often a draft token is right where all before it were. None where none was checked."""
        checked = sum(run.checked for run in self.runs)
        return sum(run.accepted for run in self.runs) / checked if checked else None

    @property
    def accepted_per_pass(self) -> float | None:
        """Draft tokens that came out of a pass, on average; None without drafts."""
        if self.acceptance is None:
            return None
        return sum(run.accepted for run in self.runs) / sum(run.passes for run in self.runs)

    @property
    def draft_cost(self) -> float | None:
        """c: that of a draft token, relative to a pass of one position; the median over the rounds."""
        if self._is_drafted:
            costs = [
                run.draft_s / run.drafted / base.pass_s
                for run, base in self._pairs()
                if run.drafted
            ]
            return median(costs) if costs else None
        return None

    @property
    def pass_cost(self) -> float | None:
        """That of this arm's passes, as wide as they are, relative to those of one position."""
        if self._is_drafted:
            return median(run.pass_s / base.pass_s for run, base in self._pairs())
        return None

    @property
    def predicted(self) -> float | None:
        """The speed-up by the formula, from α and c; None without drafts."""
        return self._predicted(1.0)

    @property
    def predicted_with_pass(self) -> float | None:
        """The same with the measured cost of a pass in the place of 1."""
        return self._predicted(self.pass_cost)

    @property
    def same_text(self) -> bool | None:
        """Whether what came out is what comes out without drafts; None where that is another arm's."""
        if self._is_drafted:
            return all(run.texts == base.texts for run, base in self._pairs())
        return None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        low, high = self.spread
        return {
            "name": self.name,
            "arm": asdict(self.arm),
            "tokens_per_s": self.tokens_per_s,
            "from": low,
            "to": high,
            "first_ms": self.first_ms[0],
            "acceptance": self.acceptance,
            "accepted_per_pass": self.accepted_per_pass,
            "draft_cost": self.draft_cost,
            "pass_cost": self.pass_cost,
            "speed_up": self.speed_up,
            "predicted": self.predicted,
            "predicted_with_pass": self.predicted_with_pass,
            "same_text": self.same_text,
            "rounds": [
                {name: value for name, value in asdict(run).items() if name != "texts"}
                for run in self.runs
            ],
        }

    @property
    def _is_drafted(self) -> bool:
        """The formula compares with the same without drafts."""
        return self.arm != self.arm.plain and self.base_arm == self.arm.plain

    def _pairs(self) -> Iterable[tuple[Run, Run]]:
        return zip(self.runs, self.base, strict=True)

    def _predicted(self, pass_cost: float | None) -> float | None:
        acceptance, cost = self.acceptance, self.draft_cost
        if acceptance is None or cost is None or pass_cost is None:
            return None
        lengths = Counter(_counted(self.runs))
        lengths[0] = sum(run.passes for run in self.runs) - lengths.total()
        return predicted(acceptance, lengths, cost, pass_cost)


@dataclass(frozen=True, slots=True)
class Question:
    """One table. `left_out` are rows that there are not, each with the reason. With `of_prompts` it is
    about the time to the first token."""

    title: str
    rows: tuple[Row, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    of_prompts: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "title": self.title,
            "rows": [row.as_dict() for row in self.rows],
            "left_out": dict(self.left_out),
        }


def fastest(rows: Iterable[Row]) -> Row | None:
    """The one with the most tokens a second of those with drafts; None where there is none."""
    drafting = (row for row in rows if row.arm.source != "none")
    return max(drafting, key=lambda row: row.tokens_per_s, default=None)


def _counted(runs: Iterable[Run]) -> dict[int, int]:
    total = Counter[int]()
    for run in runs:
        total.update(run.lengths or {})
    return dict(sorted(total.items()))
