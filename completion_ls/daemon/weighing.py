"""From a request for weighed lines to their search, where there is something to weigh."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from completion_ls.daemon.repository import repository_of
from completion_ls.daemon.ways import Search, Way, Ways, text_below
from completion_ls.decode.vocabulary import spelling_of
from completion_ls.engines.contract import Engine, Event, Job, Lane
from completion_ls.prompt.build import PromptBuilder
from completion_ls.wire.messages import Complete


@dataclass(slots=True)
class Weighing:
    """Lines are weighed: what for, and how far it is."""

    search: Search
    ways: Ways
    job: Job
    """The one under way, which the engine is to have."""

    def advance(self, engine: Engine, event: Event) -> list[Way] | None:
        """Take an event of the job, and give the engine the next one in its place where it is of no more
        use; returns the ways, the best first, when they are found. Raises ValueError where the engine
        refuses a job."""
        try:
            wanted = self.ways.send(event)
        except StopIteration as end:
            engine.cancel(self.job.id)
            found: list[Way] = end.value
            return found
        if wanted is not self.job:
            engine.cancel(self.job.id)
            self.job = wanted
            engine.add(wanted)
        return None


def weigh(
    prompts: PromptBuilder,
    tokenizer: Tokenizer,
    request: Complete,
    budget: int,
    new_id: Callable[[], int],
    front: Hashable = None,
) -> Weighing | None:
    """The search of a front's request whose prompt and text below have `budget` tokens, the latter at
    most half of them; None without text below, and where the model reads it itself."""
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
            lane=Lane[request.lane.upper()],
            front=front,
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
    ways = search.ways()
    return Weighing(search, ways, next(ways))
