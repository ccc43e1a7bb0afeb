"""How often a draft is right, by how it is drawn: with the target's noise, with noise of its own, or
as the most probable token. The draft is the target without its last layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from completion_ls.decode.sampling import candidates, choose
from completion_ls.engines.contract import Sampling
from completion_ls.engines.draft_model import truncated
from completion_ls.engines.kv import KvCache
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
    prompts: Sequence[Sequence[int]],
    layers: Sequence[int],
    sampling: Sampling,
    tokens: int,
    say: Callable[[str], None] = lambda text: None,
) -> list[Acceptance]:
    """Continue each prompt by `tokens` as the target draws them, and ask each draft at every place."""
    texts = []
    for number, prompt in enumerate(prompts):
        say(f"drawing text {number + 1} of {len(prompts)}")
        texts.append(_drawn(model, prompt, sampling, tokens))
    found = []
    for count in layers:
        say(f"asking the first {count} layers")
        draft = truncated(model, count)
        results = []
        for prompt, (text, rows) in zip(prompts, texts, strict=True):
            guessed = _rows(draft, [*prompt, *text])[len(prompt) - 1 : -1]
            for place, (row, own) in enumerate(zip(rows, guessed, strict=True)):
                position = len(prompt) + place
                results.append(_compare(row, own.numpy(), text[place], sampling, position))
        shares = np.array(results).mean(0)
        found.append(Acceptance(count, model.shape.layers, len(results), *map(float, shares)))
    return found


def _compare(
    target: npt.NDArray[np.float32],
    draft: npt.NDArray[np.float32],
    token: int,
    sampling: Sampling,
    position: int,
) -> tuple[float, float, float, float]:
    other = Sampling(
        sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed + OTHER_NOISE
    )
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


def _drawn(
    model: Llama, prompt: Sequence[int], sampling: Sampling, tokens: int
) -> tuple[list[int], list[npt.NDArray[np.float32]]]:
    """Tokens, and the logits that each was drawn from."""
    kv = KvCache(model.shape, 0, model.kv_dtype).acquire(prompt, len(prompt) + tokens)
    assert kv is not None
    row = model.forward(prompt, kv, 1)[0].numpy()
    kv.extend(prompt)
    text: list[int] = []
    rows = []
    while True:
        rows.append(row)
        text.append(choose(row, sampling, len(prompt) + len(text))[0])
        if len(text) == tokens:
            return text, rows
        row = model.forward(text[-1:], kv, 1)[0].numpy()
        kv.extend(text[-1:])


def _rows(model: Llama, text: Sequence[int]) -> torch.Tensor:
    kv = KvCache(model.shape, 0, model.kv_dtype).acquire(text, len(text))
    assert kv is not None
    return model.forward(text, kv, len(text))


def load_target(folder: Path, kind: str) -> Llama:
    """The model of a folder as the engine reads it."""
    from completion_ls.engines.native import load_native

    return Llama.read(folder, kind, load_native())  # type: ignore[arg-type]  # checked by settings
