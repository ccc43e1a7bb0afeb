"""exllamav2's generator, driven one job at a time and with the choice of tokens taken out.

The library keeps the page table (256 tokens a page, found again by the hash of what is in it and
before it; the last, partial page by its best match), reads prompts in chunks and runs both models.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import torch
from exllamav2.generator import ExLlamaV2DynamicGenerator, ExLlamaV2DynamicJob
from torch import Tensor

from completion_ls.decode.sampling import choose
from completion_ls.engines.contract import Sampling

HEADROOM = 32
"""Room in a job's pages for what is offered behind its last token."""


class PagedGenerator(ExLlamaV2DynamicGenerator):  # type: ignore[misc]
    """One prefill chunk or one pass of the target per call, for the job that is named."""

    all_pages: list[Any]

    @property
    def vocabulary(self) -> int:
        """Tokens that there are: models may have rows for more."""
        return min(int(self.model.config.vocab_size), int(self.tokenizer.get_vocab_size()))

    @property
    def pages_used(self) -> int:
        """Pages with keys and values in them."""
        return sum(page.kv_position > 0 for page in self.all_pages)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the caches of both models."""
        caches = [self.cache, self.draft_cache] if self.draft_model else [self.cache]
        return sum(tensor.nbytes for cache in caches for tensor in cache.all_tensors())

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of both models."""
        models = [self.model, self.draft_model] if self.draft_model else [self.model]
        return sum(module.weight_footprint() for model in models for module in model.modules)

    def begin(self, prompt: Sequence[int], room: int, *, fresh: bool = False) -> PagedJob | None:
        """A job whose text is `prompt`, with pages for `room` tokens behind it. A `fresh` one finds
        nothing of what is in the cache. None where too few pages are free."""
        job = PagedJob(torch.tensor([prompt]), max_new_tokens=room + HEADROOM)
        job.prepare_for_queue(self, self.job_serial)
        self.job_serial += 1
        if fresh:
            job.forget()
        if job.current_new_pages_required() > len(self.unreferenced_pages):
            return None
        job.allocate_pages()
        job.guessed_to = job.position
        self.active_jobs.append(job)
        return job

    def end(self, job: PagedJob) -> None:
        """Let go of a job's pages; what is in them can be found again."""
        self.active_jobs.remove(job)
        job.rewind()
        if self.draft_model and not job.is_fresh and job.guessed_to < job.position:
            # Who finds these pages takes it that both models have read them.
            self.look_with_draft(job, job.text(job.guessed_to, job.position), job.guessed_to)
        pages = job.own_pages
        job.deallocate_pages()
        if job.is_fresh:
            for page in pages:
                if page.ref_count == 0:
                    page.clear()

    def read(self, job: PagedJob, chunk: int) -> int:
        """Put the next chunk of the prompt through both models; returns how many tokens of it were
        computed. All but the last one are read; that goes with the first pass."""
        self.max_chunk_size = chunk
        before = job.position - job.reused
        pages = self.all_pages
        if job.is_fresh:
            self.all_pages = job.own_pages
        try:
            job.prefill([])
        finally:
            self.all_pages = pages
        job.guessed_to = job.position
        return job.position - job.reused - before

    def look(self, job: PagedJob, offered: Sequence[int]) -> Tensor:
        """Put the last token of the text and what is `offered` behind it through the target: the
        logits behind each, [1 + offered, vocabulary] (float32, on the CPU)."""
        sequence = job.sequences[0]
        start = torch.tensor([sequence.kv_position], dtype=torch.int32)
        blocks = job.get_block_index(sequence, len(sequence.sequence_ids) + len(offered))
        job.rewind()
        draft = torch.tensor([offered], dtype=torch.long)
        (ids,) = job.get_input_ids_list(draft, 0, add_to_cache=True)
        params = self.get_paged_params(1, blocks.unsqueeze(0), start, ids.shape[-1])
        found = self.model.forward_chunk(input_ids=ids, attn_params=params, cache=self.cache)
        logits: Tensor = found["logits"]
        return logits[0, :, : self.vocabulary].float().cpu()

    def look_with_draft(self, job: PagedJob, tokens: Sequence[int], start: int) -> Tensor:
        """Put `tokens` through the draft model, whose keys and values are there up to `start`: the
        logits behind the last one, [vocabulary]."""
        blocks = job.get_block_index(job.sequences[0], start + len(tokens))
        where = torch.tensor([start], dtype=torch.int32)
        params = self.get_paged_params(1, blocks.unsqueeze(0), where, len(tokens))
        found = self.draft_model.forward_chunk(
            input_ids=torch.tensor([tokens]),
            attn_params=params,
            cache=self.draft_cache,
            last_id_only=True,
        )
        logits: Tensor = found["logits"]
        return logits[0, -1].float().cpu()

    def iterate(self) -> list[dict[str, Any]]:
        """Not used: `begin`, `read` and `look` take its place."""
        raise NotImplementedError


class PagedJob(ExLlamaV2DynamicJob):  # type: ignore[misc]
    """A text and its pages."""

    is_fresh = False
    guessed_to = 0
    """Tokens of the text whose keys and values the draft model has, too."""

    @property
    def position(self) -> int:
        """Tokens of the text whose keys and values are there."""
        return int(self.sequences[0].kv_position)

    @property
    def reused(self) -> int:
        """How many of them were found in the cache."""
        return int(self.cached_pages) * int(self.generator.page_size) + int(self.cached_tokens)

    @property
    def own_pages(self) -> list[Any]:
        """Its pages, in order."""
        return list(self.sequences[0].allocated_pages)

    def accept(self, token: int) -> None:
        """Make the token that was chosen a part of the text; it follows one that was looked at."""
        self.receive_sample(None, torch.tensor([[token]]), None, None, None, False, [], True)

    def rewind(self) -> None:
        """Forget what was offered and not accepted."""
        size = self.generator.page_size
        first = self.position // size
        for number, page in enumerate(self.own_pages[first:], first):
            page.kv_position = min(page.kv_position, max(0, self.position - number * size))
        self.guessed_to = min(self.guessed_to, self.position)

    def text(self, start: int, end: int) -> list[int]:
        """Tokens of it."""
        ids: Tensor = self.sequences[0].sequence_ids.torch_slice(start, end)
        return [int(token) for token in ids[0]]

    def forget(self) -> None:
        """Find nothing in the cache, and be found by nobody."""
        self.is_fresh = True
        sequence = self.sequences[0]
        sequence.page_hashes = [secrets.token_bytes(16) for _ in sequence.page_hashes]
        self.all_unique_hashes = list(sequence.page_hashes)


class PagedDraft:
    """The draft model, on the pages of the target's jobs: as `DraftModel`, it chooses with the
    target's temperature, filters and noise."""

    def __init__(self, generator: PagedGenerator, cost: float) -> None:
        """`cost` is that of one of its passes, relative to one of the target."""
        self.cost = cost
        self.work: PagedJob | None = None
        """Whose text is to be guessed."""
        self._generator = generator

    def propose(self, text: Sequence[int], count: int, sampling: Sampling) -> tuple[int, ...]:
        """`count` tokens that may follow `text`, prompt and output of the job."""
        work = self.work
        assert work is not None
        vocabulary = self._generator.vocabulary
        waiting, start = list(text[work.guessed_to :]), work.guessed_to
        tokens: list[int] = []
        while True:
            row = self._generator.look_with_draft(work, waiting, start)[:vocabulary]
            start += len(waiting)
            work.guessed_to = start
            tokens.append(choose(row.numpy(), sampling, len(text) + len(tokens))[0])
            if len(tokens) == count:
                return tuple(tokens)
            waiting = tokens[-1:]
