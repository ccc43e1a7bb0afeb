"""How often a draft is right, by how it is drawn: with the target's noise, with noise of its own, or
as the most probable token. The draft is the target without its last layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from completion_ls.bench.quality import logits
from completion_ls.decode.sampling import candidates, choose
from completion_ls.engines.contract import Sampling
from completion_ls.engines.llama import Llama

OTHER_NOISE = 1 << 32
"""Added to the seed for draws of their own."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of one draft: the share of its tokens that are the target's."""

    layers: int
    of_layers: int
    tokens: int
    coupled: float
    independent: float
    most_probable: float
    overlap: float
    """What no way of drawing can exceed: the sum over all tokens of the smaller probability."""


def acceptance(
    model: Llama,
    texts: Sequence[Sequence[int]],
    layers: Sequence[int],
    sampling: Sampling,
    places: int,
    say: Callable[[str], None] = lambda text: None,
) -> list[Acceptance]:
    """At the last `places` of each text both the target and each draft draw what comes next."""
    say("asking the model")
    targets = [logits(model, text, places).numpy() for text in texts]
    found = []
    for count in layers:
        say(f"asking its first {count} layers")
        draft = truncated(model, count)
        shares = [
            _compare(row, own, sampling, len(text) - places + place)
            for text, rows in zip(texts, targets, strict=True)
            for place, (row, own) in enumerate(
                zip(rows, logits(draft, text, places).numpy(), strict=True)
            )
        ]
        means = map(float, np.array(shares).mean(0))
        found.append(Acceptance(count, model.shape.layers, len(shares), *means))
    return found


def truncated(model: Llama, layers: int) -> Llama:
    """The model without its last layers: a draft that every model brings along."""
    weights = replace(model.weights, layers=model.weights.layers[:layers])
    return Llama(replace(model.shape, layers=layers), weights, model.native)


def _compare(
    target: npt.NDArray[np.float32],
    draft: npt.NDArray[np.float32],
    sampling: Sampling,
    position: int,
) -> tuple[float, float, float, float]:
    other = replace(sampling, seed=sampling.seed + OTHER_NOISE)
    token = choose(target, sampling, position)[0]
    p, q = _chances(target, sampling), _chances(draft, sampling)
    return (
        choose(draft, sampling, position)[0] == token,
        choose(draft, other, position)[0] == token,
        int(draft.argmax()) == token,
        float(np.minimum(p, q).sum()),
    )


def _chances(logits: npt.NDArray[np.float32], sampling: Sampling) -> npt.NDArray[np.float64]:
    ids, scaled = candidates(logits, sampling)
    weights = np.exp(scaled - scaled.max())
    chances = np.zeros(len(logits))
    chances[ids] = weights / weights.sum()
    return chances
