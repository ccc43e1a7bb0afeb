"""The drafts of one arm of a sweep: from one source, perhaps always of one length, and timed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from completion_ls.bench.acceptance import OTHER_NOISE
from completion_ls.decode.draft_length import LONG, MOST, PassCost, Trust
from completion_ls.engines.contract import Job
from completion_ls.engines.draft_model import CHUNK, DraftModel
from completion_ls.engines.drafts import MODEL, Drafts, Guesser, JobDrafts


class ArmDrafts(Drafts):
    """`Drafts` that have seen no other answer of the document, as it would be the one that is
    measured, and that count what they do."""

    def __init__(
        self,
        cost: PassCost,
        *,
        lookup: bool = False,
        model: Guesser | None = None,
        length: int = 0,
        own_noise: bool = False,
    ) -> None:
        """Of always `length` tokens where there are so many; 0 for as many as are worth it. With
        `own_noise` the model draws with other noise than the target."""
        super().__init__(cost, lookup=lookup, model=model, most=MOST)
        self._always = length
        self._own_noise = own_noise
        self.begin()

    def begin(self) -> None:
        """Count anew."""
        self.lengths: Counter[int] = Counter()
        """How many passes had a draft of how many tokens."""
        self.seconds = 0.0
        """Spent on guessing."""
        self._before = self._totals()

    @property
    def checked(self) -> int:
        """Draft tokens since `begin`."""
        return self._totals()[0] - self._before[0]

    @property
    def accepted(self) -> int:
        """Those that were right."""
        return self._totals()[1] - self._before[1]

    def of(self, job: Job, prompt: Sequence[int]) -> JobDrafts:
        """The drafts of one job. The draft model has read the prompt before the first token is said, as
        it has on exllamav2, so that the tokens behind it do not pay for it."""
        sampling = job.sampling
        if self._own_noise:
            sampling = replace(sampling, seed=sampling.seed + OTHER_NOISE)
        if isinstance(self.model, DraftModel):
            for _ in range(len(prompt) // CHUNK + 1):
                self.model.propose(prompt, 1, sampling)
        return super().of(replace(job, fresh=True, sampling=sampling), prompt)

    def propose(self, drafts: JobDrafts, most: int) -> tuple[Trust, tuple[int, ...]] | None:
        """As asked for."""
        began = time.perf_counter()
        if self._always:
            found = self._fixed(drafts, min(most, self._always))
        else:
            found = super().propose(drafts, most)
        self.seconds += time.perf_counter() - began
        if found:
            self.lengths[len(found[1])] += 1
        return found

    def _totals(self) -> tuple[int, int]:
        checked = sum(source.checked for source in self.figures)
        return checked, sum(source.accepted for source in self.figures)

    def _fixed(self, drafts: JobDrafts, most: int) -> tuple[Trust, tuple[int, ...]] | None:
        if most < 1:
            return None
        if drafts.lookup and (found := drafts.lookup.propose(most)):
            return Trust(found.source, found.match), found.tokens
        if self.model:
            tokens = self.model.propose(drafts.text, most, drafts.job.sampling)
            return (Trust(MODEL, LONG), tokens) if tokens else None
        return None
