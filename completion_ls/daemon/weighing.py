"""From a request for weighed lines to their search, where there is something to weigh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from completion_ls.daemon.repository import repository_of
from completion_ls.daemon.ways import Search, Ways, text_below
from completion_ls.decode.vocabulary import spelling_of
from completion_ls.engines.contract import Job, Lane
from completion_ls.prompt.build import PromptBuilder
from completion_ls.wire.messages import Complete


@dataclass(frozen=True, slots=True)
class Weighing:
    """Lines are weighed: what for, and how far it is."""

    search: Search
    ways: Ways


def weigh(
    prompts: PromptBuilder,
    tokenizer: Tokenizer,
    request: Complete,
    budget: int,
    new_id: Callable[[], int],
) -> Weighing | None:
    """The search of a request whose prompt and text below have `budget` tokens, the latter at most half of
    them; None without text below, and where the model reads it itself."""
    below = text_below(request.suffix)
    if prompts.fim or not below:
        return None
    tokens = prompts.section(below)[: max(0, budget // 2)]
    prompt = prompts.build(
        request.prefix,
        request.suffix,  # that it was read before lines are weighed by it was measured to be no harm
        context=request.context,
        budget=budget - len(tokens),
        suffix_share=request.suffix_share,
        repository=repository_of(request),
    )

    def job(prompt: tuple[int, ...], **more: Any) -> Job:
        return Job(
            new_id(),
            prompt,
            stop_token_ids=prompts.stop_token_ids,
            lane=lane_of(request),
            # The lines are much alike: what follows in one is a good draft for the others.
            document=request.document,
            **more,
        )

    search = Search(
        prompt=prompt,
        below=tokens,
        on_blank_line=not request.prefix.rpartition("\n")[2].strip(),
        most_tokens=request.max_tokens,
        job=job,
        spell=spelling_of(tokenizer),
        section=prompts.section,
    )
    return Weighing(search, search.ways())


def lane_of(request: Complete) -> Lane:
    """The lane that a request asks for."""
    return {"key": Lane.KEY, "manual": Lane.MANUAL, "background": Lane.BACKGROUND}[request.lane]
