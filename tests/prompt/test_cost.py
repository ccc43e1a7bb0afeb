"""What a keystroke costs: the tokens of its prompt that no cached sequence has."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

from completion_ls.decode.tokens import common_prefix
from completion_ls.prompt.build import MOST_LOST, PromptBuilder
from support.fim import ROWS, row, setting
from support.typing import document, session

BUDGET = 1024
KEPT = 4
"""Cached sequences."""
NEW_START = 50
"""From so many tokens on it is not the word that changed but the window or the anchor."""


@dataclass
class Figures:
    """Tokens computed for each step and in advance, and lost with each character typed."""

    computed: list[int] = field(default_factory=list)
    in_advance: int = 0
    lost: list[int] = field(default_factory=list)

    def quantile(self, part: float) -> int:
        return sorted(self.computed)[int(part * len(self.computed))]


def run(folder: Path, format_name: str, *, with_ahead: bool) -> Figures:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if format_name != "plain":
        tokens = row(format_name).control
        tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens])
        format_name = setting(format_name)
    builder = PromptBuilder(tokenizer, format_name, frozenset())
    figures = Figures()
    cached: list[tuple[int, ...]] = [()]
    for state in session(document()):
        options = {"context": "", "budget": BUDGET, "suffix_share": 0.25}
        ids = builder.build(state.prefix, state.suffix, **options).ids
        cost = len(ids) - max(common_prefix(ids, other) for other in cached)
        figures.computed.append(cost)
        if state.typed and cost < NEW_START:
            figures.lost.append(len(cached[-1]) - common_prefix(ids, cached[-1]))
        keep(cached, ids)
        ahead = builder.ahead(state.prefix, state.suffix, **options) if with_ahead else None
        if ahead:
            figures.in_advance += len(ahead.ids) - max(
                common_prefix(ahead.ids, other) for other in cached
            )
            keep(cached, ahead.ids)
            cached.append(cached.pop(-2))
    return figures


def keep(cached: list[tuple[int, ...]], ids: tuple[int, ...]) -> None:
    """As a cache does that lets a prompt take over the sequence it mostly shares."""
    nearest = max(cached, key=lambda other: common_prefix(ids, other))
    if len(nearest) - common_prefix(ids, nearest) < NEW_START:
        cached.remove(nearest)
    cached.append(ids)
    del cached[:-KEPT]


@pytest.mark.model
@pytest.mark.parametrize("format_name", ["plain", *ROWS])
def test_a_session_computes_a_token_or_two_a_key(
    default_model_folder: Path, format_name: str
) -> None:
    figures = run(default_model_folder, format_name, with_ahead=False)
    assert len(figures.computed) > 1200
    assert figures.quantile(0.5) <= 1
    assert figures.quantile(0.9) <= 2
    assert statistics.mean(figures.computed) <= 10
    assert max(figures.lost) <= MOST_LOST


@pytest.mark.model
@pytest.mark.parametrize("format_name", ["plain", "starcoder"])
def test_what_is_computed_ahead_is_not_waited_for(
    default_model_folder: Path, format_name: str
) -> None:
    alone = run(default_model_folder, format_name, with_ahead=False)
    helped = run(default_model_folder, format_name, with_ahead=True)
    saved = sum(alone.computed) - sum(helped.computed)
    assert saved > 0
    assert figures_of_jumps(helped) < figures_of_jumps(alone)
    assert helped.in_advance <= 3 * saved


def figures_of_jumps(figures: Figures) -> int:
    return sum(cost >= NEW_START for cost in figures.computed)
