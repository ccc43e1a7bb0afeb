"""How often a model is right where it says that it is, and how much it should show for that.

The engine is loaded into this process and asked greedily at every key of a few stretches of a recorded
session, with the prompt that the daemon would build; it has as much time as it wants. What the front
would show with any threshold follows from that. The first half of the stretches makes the
reliability table and chooses the threshold, the second half says what it is worth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

from completion_ls.bench.future import came_next
from completion_ls.bench.infill import RULES, Writer, place_between
from completion_ls.bench.infill_figures import Estimate, wilson
from completion_ls.bench.shown import Key, Worth, first_line, worth
from completion_ls.bench.trace import MOST_LATER, Trace, apply, cut
from completion_ls.config.settings import Settings
from completion_ls.lsp.confidence import OFF
from completion_ls.lsp.situation import Situation, window
from completion_ls.lsp.suggestion import Suggestion
from completion_ls.models.reliability import Point, least_probability, monotone

EDGES = (0.0, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
GRID = tuple(n / 20 for n in range(19))
URI = "file:///calibrate"


@dataclass(frozen=True, slots=True)
class Asked:
    """The document after a key, what the model wrote at the cursor (texts and their natural-log
    probabilities), and what came there."""

    place: Situation
    text: str
    cursor: int
    tokens: tuple[tuple[str, float], ...]
    came: str


@dataclass(frozen=True, slots=True)
class Bin:
    """Beginnings of suggestions whose probability under the model lies between two edges."""

    low: float
    high: float
    mean: float
    count: int
    right: Estimate


@dataclass(frozen=True, slots=True)
class Row:
    """What a threshold (calibrated) is worth in each half."""

    show_above: float
    chosen_on: Worth
    held_out: Worth


@dataclass(frozen=True, slots=True)
class Calibration:
    """The bins of the first half, the points of its reliability table, and the thresholds."""

    keys: int
    bins: list[Bin]
    points: list[Point]
    rows: list[Row]

    def best(self, cost: float) -> Row:
        """The row of most utility in the first half."""
        return max(self.rows, key=lambda row: row.chosen_on.utility(cost))


def starts(transactions: int, stretches: int, keystrokes: int) -> list[int]:
    """Where so many stretches begin that are spread evenly over a trace."""
    step = transactions / stretches
    return [int(number * step + max(0.0, step - keystrokes) / 2) for number in range(stretches)]


def ask(
    writer: Writer, trace: Trace, start: int, keystrokes: int, progress: Callable[[], None]
) -> list[Asked]:
    """The keys of one stretch. Raises ValueError where there are none."""
    gaps = [0.0] * len(trace.transactions)
    stretch = cut(trace, start=start, keystrokes=keystrokes, gaps_s=gaps)
    limit = window(writer.settings.prompt.max_tokens)
    text, found = stretch.text, []
    for number, transaction in enumerate(stretch.transactions, stretch.first + 1):
        progress()
        if not transaction:
            continue
        text = apply(text, transaction)
        cursor = transaction[-1].end
        before, after = text[:cursor], text[cursor:]
        place = place_between(before, after, URI, limit)
        later = trace.transactions[number : number + MOST_LATER]
        came = came_next(after, cursor, later)
        found.append(Asked(place, text, cursor, tuple(_written(writer, place)), came))
    return found


def suggestion(key: Asked, settings: Settings, least: float = OFF) -> Suggestion:
    """The finished suggestion of a key, with a least log probability."""
    found = Suggestion.at(key.place, settings.completion, least=least)
    for text, logprob in key.tokens:
        found.add(text, [logprob], [len(text)])
    found.finished = True
    return found


def shown(keys: Sequence[Asked], settings: Settings, least: float) -> list[Key]:
    """What stands on the screen after each key of a stretch: as long as what is typed agrees with a
    suggestion, that is the rest of it."""
    live: Suggestion | None = None
    found = []
    for key in keys:
        if live is None or not live.goes_on(key.place):
            live = suggestion(key, settings, least)
        typed = live.typed_at(key.place)
        assert typed is not None
        live.typed_length = len(typed.text)
        seen = live.shown_at(key.place)
        found.append(Key(key.text, key.cursor, seen.text if seen else "", key.came))
    return found


def beginnings(key: Asked, settings: Settings) -> Iterator[tuple[float, bool]]:
    """The probability of each beginning of the first line offered, by tokens, and whether it is right."""
    offer = suggestion(key, settings).offer()
    line = first_line(offer.text) if offer else ""
    characters, logprob = 0, 0.0
    for text, one in key.tokens:
        logprob += one
        # Indentation is not the model's own, so blanks do not count.
        solid = len("".join(text.split()))
        characters += solid
        begin = _with_solid(line, characters)
        if solid and begin:
            yield math.exp(logprob), key.came.startswith(begin)
        if begin == line:
            return


def calibrate(stretches: Sequence[Sequence[Asked]], settings: Settings) -> Calibration:
    """Table and thresholds. Raises ValueError where there is nothing to choose from."""
    half = (len(stretches) + 1) // 2
    choosing, held_out = stretches[:half], stretches[half:]
    samples = [one for keys in choosing for key in keys for one in beginnings(key, settings)]
    bins = reliability(samples)
    if not bins or not held_out:
        raise ValueError("There is too little to calibrate by: type more stretches.")
    pooled = monotone((one.mean, one.right.value, one.count) for one in bins)
    points = [Point(round(mean, 4), round(right, 4)) for mean, right, _ in pooled]
    rows = []
    for show_above in GRID:
        probability = least_probability(points, show_above)
        least = math.log(probability) if probability else OFF
        worths = (
            sum((worth(shown(keys, settings, least)) for keys in part), Worth())
            for part in (choosing, held_out)
        )
        rows.append(Row(show_above, *worths))
    return Calibration(sum(map(len, choosing)), bins, points, rows)


def reliability(samples: Sequence[tuple[float, bool]]) -> list[Bin]:
    """The bins that have any sample. (Those of one suggestion are alike, so the intervals, Wilson's,
    are somewhat too narrow.)"""
    found = []
    for low, high in pairwise(EDGES):
        own = [one for one in samples if low <= one[0] < high or one[0] == high == 1.0]
        if own:
            mean = sum(probability for probability, _ in own) / len(own)
            right = wilson(sum(right for _, right in own), len(own))
            found.append(Bin(low, high, mean, len(own), right))
    return found


def _written(writer: Writer, place: Situation) -> Iterator[tuple[str, float]]:
    """What the model writes at a place, until the suggestion is complete."""
    whole = Suggestion.at(place, writer.settings.completion)
    with closing(writer.pieces(writer.prompt(RULES, place.before, place.after))) as pieces:
        for piece in pieces:
            yield piece.text, piece.logprob
            whole.add(piece.text)
            if whole.finished:
                return


def _with_solid(text: str, characters: int) -> str:
    """The shortest beginning with so many characters that are no blanks; all where it has fewer."""
    for index, character in enumerate(text):
        if characters <= 0:
            return text[:index]
        characters -= not character.isspace()
    return text
