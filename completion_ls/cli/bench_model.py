"""`completion-ls bench quality` and `bench acceptance`: what a model says, not how fast."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import get_args

from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from completion_ls.bench.engine import read_prompts
from completion_ls.bench.engine_figures import Sizes
from completion_ls.cli.bench import FAILURES, failed, saying, torch_settings
from completion_ls.models.local import LocalModel, prepare

SAMPLING = "temperature 0.6, top-p 0.9"


def quality(options: argparse.Namespace) -> int:
    """Print the perplexity of each form of the weights; returns the exit status."""
    return _shown(_quality)


def acceptance(options: argparse.Namespace) -> int:
    """Print how often drafts are right, by how they are drawn; returns the exit status."""
    return _shown(lambda say: _acceptance(options.layers, options.places, say))


def _quality(say: Callable[[str], None]) -> Table:
    from completion_ls.bench.quality import Quality, perplexity
    from completion_ls.engines.llama import Llama
    from completion_ls.engines.native import load_native
    from completion_ls.engines.weights import WeightKind

    local, pieces = _model_and_code()
    found = []
    for kind in get_args(WeightKind):
        say(f"reading {local.name} as {kind}")
        model = Llama.read(local.folder, kind, load_native())
        found.append(Quality(kind, perplexity(model, pieces), model.weights.nbytes))
    reference = next(one.perplexity for one in found if one.kind == "bf16")
    table = Table(title=f"{local.name}: perplexity of {sum(map(len, pieces)):,} tokens of code")
    for column in ("weights", "MiB", "perplexity", "against bf16"):
        table.add_column(column, justify="right")
    for one in found:
        change = f"{100 * (one.perplexity / reference - 1):+.2f} %"
        table.add_row(one.kind, f"{one.nbytes / 2**20:.0f}", f"{one.perplexity:.4f}", change)
    return table


def _acceptance(layers: tuple[int, ...], places: int, say: Callable[[str], None]) -> Table:
    from completion_ls.bench.acceptance import acceptance as measure
    from completion_ls.engines.contract import Sampling
    from completion_ls.engines.llama import Llama
    from completion_ls.engines.native import load_native

    local, pieces = _model_and_code()
    settings = torch_settings()
    model = Llama.read(local.folder, settings.engine.weights, load_native())
    most = model.shape.layers
    if too_many := [count for count in layers if not 0 < count <= most]:
        raise ValueError(f"The model has {most} layers, so a draft cannot have {too_many[0]}.")
    chosen = layers or tuple(sorted({most // 3, most // 2, 2 * most // 3, most - 2, most - 1}))
    found = measure(model, pieces, chosen, Sampling(0.6, 0.9, 0, 1), places, say)
    table = Table(title=f"{local.name} drafted by its own first layers, {SAMPLING}")
    columns = ("layers", "coupled draws", "independent draws", "most probable", "overlap", "places")
    for column in columns:
        table.add_column(column, justify="right")
    for one in found:
        shares = one.coupled, one.independent, one.most_probable, one.overlap
        cells = (f"{100 * share:.1f} %" for share in shares)
        table.add_row(f"{one.layers} of {one.of_layers}", *cells, str(one.tokens))
    table.caption = (
        "How many draft tokens are the one that the target drew: drawn with the target's noise, with "
        "noise of their own, or not drawn at all. Overlap is the most that any way of drawing could "
        "reach."
    )
    return table


def _model_and_code() -> tuple[LocalModel, tuple[tuple[int, ...], ...]]:
    local = prepare(torch_settings().model.name)
    tokenizer = Tokenizer.from_file(str(local.folder / "tokenizer.json"))
    return local, read_prompts(tokenizer, Sizes(long=1120, fill=1120)).pieces


def _shown(work: Callable[[Callable[[str], None]], Table]) -> int:
    try:
        with saying() as say:
            table = work(say)
    except FAILURES as error:
        return failed(error)
    Console().print(table)
    return 0
