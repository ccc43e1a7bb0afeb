"""How often a model is right where it says that it is: from its own probabilities to calibrated ones.

A table is measured by `completion-ls bench calibrate` and lies beside this module, one file a model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from completion_ls.config.there import is_file

FOLDER = Path(__file__).parent / "reliability"


@dataclass(frozen=True, slots=True)
class Point:
    """Texts to which the model gave about this probability (their mean), and the share that was
    right."""

    probability: float
    right: float


@cache
def table(model: str) -> tuple[Point, ...]:
    """The points of a model, both numbers rising; none where it was not measured."""
    file = FOLDER / f"{model}.json"
    # The name may be a path or a repository.
    if Path(model).name != model or not is_file(file):
        return ()
    return tuple(Point(*point) for point in json.loads(file.read_text())["points"])


def least_probability(points: Sequence[Point], show_above: float) -> float:
    """The model's own probability from which on a text is as probably right as `show_above` says:
    linear between the points, with 0 and 1 at the ends. Without points it is that itself."""
    if show_above <= 0:
        return 0.0  # however often what seems improbable is wrong
    below = Point(0.0, 0.0)
    for above in (*points, Point(1.0, 1.0)):
        if show_above <= above.right:
            return _between(
                show_above, below.right, above.right, below.probability, above.probability
            )
        below = above
    return 1.0


def least_logprob(model: str, show_above: float) -> float:
    """The same as a natural-log probability, by the table of a model."""
    least = least_probability(table(model), show_above)
    return math.log(least) if least > 0 else -math.inf


def monotone(bins: Iterable[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    """Bins (mean probability, share right, count), in the order of their probability, put together
    where the share would fall: the isotonic regression of the shares, by pooling neighbours."""
    pooled: list[tuple[float, float, int]] = []
    for probability, right, count in bins:
        while pooled and pooled[-1][1] >= right:
            p, r, n = pooled.pop()
            # Never above the larger one, as rounding could make the sum of both.
            probability = min(probability, p + (probability - p) * count / (n + count))
            right = (r * n + right * count) / (n + count)
            count += n
        pooled.append((probability, right, count))
    return pooled


def _between(x: float, x0: float, x1: float, y0: float, y1: float) -> float:
    return y1 if x1 <= x0 else y0 + (x - x0) / (x1 - x0) * (y1 - y0)
