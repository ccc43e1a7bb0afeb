"""Jobs of the daemon's own, on the background lane: nobody waits for them and nobody sees their text.

After a keystroke was served, the prompt that the next Enter will need is computed where it is mostly
another one (the window's start or the anchor moves), so that the first key of the next line costs no
more than the others. And one answer in so many is computed again, from scratch, to be compared.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from completion_ls.daemon.audit import Audit, Output
from completion_ls.daemon.repository import repository_of
from completion_ls.engines.contract import Engine, Event, Job, Lane
from completion_ls.prompt.build import PromptBuilder
from completion_ls.wire.messages import Complete

STRETCH = 16
"""Characters of a line after which the next line's prompt is looked for again."""


@dataclass(slots=True)
class _NextLine:
    """The last prompt that was computed ahead. It is looked for a few times a line: on the way to the
    next Enter only the line itself changes, and of that only its length matters."""

    place: tuple[object, ...] = ()
    job_id: int | None = None


class Aside:
    """What runs aside, in one engine. Ids are chosen by the caller."""

    def __init__(self, audit_every: int) -> None:
        self._audit = Audit(audit_every)
        self._next_line = _NextLine()
        self._counted: dict[int, tuple[int, int]] = {}

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return self._next_line.job_id is not None or self._audit.busy

    def served(
        self,
        engine: Engine,
        prompts: PromptBuilder,
        request: Complete,
        budget: int,
        id: int,
        front: Hashable = None,
    ) -> None:
        """A keystroke at a front has its first text: compute what the next line needs."""
        line = request.prefix.rfind("\n") + 1
        typed = (len(request.prefix) - line) // STRETCH
        above = request.prefix[:line]
        repository = repository_of(request)
        place = (request.document, repository, request.context, above, request.suffix, typed)
        if not request.ahead or place == self._next_line.place:
            return
        prompt = prompts.ahead(
            request.prefix,
            request.suffix,
            context=request.context,
            budget=budget,
            suffix_share=request.suffix_share,
            repository=repository,
        )
        if self._next_line.job_id is not None:
            engine.cancel(self._next_line.job_id)
            self._counted.pop(self._next_line.job_id, None)
        self._next_line = _NextLine(place)
        if prompt is not None:
            job = Job(
                id,
                prompt.ids,
                1,
                lane=Lane.BACKGROUND,
                unfinished=prompt.unfinished,
                front=front,
                document=request.document,
            )
            engine.add(job)
            self._next_line.job_id = id

    def answered(self, engine: Engine, job: Job, output: Output, id: int) -> None:
        """An answer is complete: audit it, if it is its turn."""
        if output.tokens and self._audit.due(job):
            engine.add(self._audit.repeat(job, output, id))

    def owns(self, id: int) -> bool:
        """Whether a job is one of these."""
        return id == self._next_line.job_id or self._audit.owns(id)

    def count(self, event: Event) -> tuple[int, int]:
        """The prompt tokens that were reused and computed since the job's last event."""
        reused, computed = self._counted.get(event.job_id, (0, 0))
        self._counted[event.job_id] = event.reused, event.computed
        return event.reused - reused, event.computed - computed

    def advance(self, event: Event) -> None:
        """Take an event of one of these jobs."""
        if event.finish is not None:
            self._counted.pop(event.job_id, None)
        if self._audit.owns(event.job_id):
            self._audit.advance(event)
        elif event.finish is not None:
            self._next_line.job_id = None

    def drop(self, id: int) -> None:
        """One of these jobs failed."""
        self._counted.pop(id, None)
        self._audit.drop(id)
        if id == self._next_line.job_id:
            self._next_line.job_id = None

    def figures(self) -> dict[str, int]:
        """For `status`."""
        return self._audit.figures()
