"""exllamav2's generator, driven one job at a time and with the choice of tokens taken out.

The library keeps the page table (256 tokens a page, found again by the hash of what is in it and
before it; the last, partial page by its best match), reads prompts in chunks and runs both models.
"""

from __future__ import annotations

import copy
import logging
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from exllamav2.generator import ExLlamaV2DynamicGenerator, ExLlamaV2DynamicJob
from torch import Tensor

from completion_ls.engines.contract import Sampling
from completion_ls.engines.exl2.choice import Choices
from completion_ls.engines.exl2.host_tier import HOST_BYTES, HostTier, PageText
from completion_ls.engines.exl2.prefill_stream import PrefillStream
from completion_ls.engines.exl2.widths import OFFERED, filled

_log = logging.getLogger(__name__)

WORTH_A_COPY = 16
"""From so many tokens on it is quicker to copy a page from host memory than to compute them."""
AHEAD = 4
"""Pages that are next to be overwritten and are saved before anybody waits for it."""
OUTDATED, EMPTY = -1, -2
"""In the place of the time of a page's last use: it is to be given first."""


class PagedGenerator(ExLlamaV2DynamicGenerator):  # type: ignore[misc]
    """One prefill chunk or one pass of the target per call, for the job that is named."""

    all_pages: list[Any]
    referenced_pages: dict[bytes, Any]
    unreferenced_pages: dict[bytes, Any]

    def __init__(self, *arguments: Any, host_bytes: int = HOST_BYTES, **more: Any) -> None:
        """As the library's; `host_bytes` of host memory are for pages that the card has no place
        for."""
        self.tier = HostTier(host_bytes)
        self.prefill_stream: PrefillStream | None = None
        """Where the draft model reads prompts, if not where the target does."""
        self.visits: list[int] = []
        """By page: which job, counted from 1, used it last; 0 if it is not worth saving."""
        self.documents: list[str] = []
        """By page: whose text used it last."""
        self.visit = 0
        super().__init__(*arguments, **more)

    def reset_page_table(self) -> None:
        """Forget all keys and values."""
        super().reset_page_table()
        self.visits = [0] * self.max_pages
        self.documents = [""] * self.max_pages
        self.tier.clear()

    @property
    def vocabulary(self) -> int:
        """Tokens that there are: models may have rows for more."""
        return min(int(self.model.config.vocab_size), int(self.tokenizer.get_vocab_size()))

    @property
    def pages_used(self) -> int:
        """Pages with keys and values in them."""
        return sum(page.kv_position > 0 for page in self.all_pages)

    @property
    def pages_in_use(self) -> int:
        """Pages that belong to a job."""
        return sum(page.ref_count > 0 for page in self.all_pages)

    def pages_by_document(self) -> dict[str, int]:
        """How many of these each document's text used last."""
        return dict(
            Counter(self.documents[page.page_index] for page in self.all_pages if page.kv_position)
        )

    @property
    def kv_bytes(self) -> int:
        """Bytes of the caches of both models."""
        return sum(tensor.nbytes for tensor in self._cache_tensors())

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of both models."""
        models = [self.model, self.draft_model] if self.draft_model else [self.model]
        return sum(module.weight_footprint() for model in models for module in model.modules)

    def begin(
        self, prompt: Sequence[int], room: int, *, fresh: bool = False, document: str = ""
    ) -> PagedJob | None:
        """A job whose text is `prompt`, of a `document`, with pages for `room` tokens behind it. A
        `fresh` one finds nothing of what is in the cache. None where too few pages are free."""
        job = PagedJob(torch.tensor([prompt]), max_new_tokens=room + OFFERED)
        job.prepare_for_queue(self, self.job_serial)
        self.job_serial += 1
        if fresh:
            job.forget()
        if job.current_new_pages_required() > len(self.unreferenced_pages):
            return None
        self.visit += 1
        job.visit = self.visit
        for page in self.unreferenced_pages.values():
            if not page.kv_position:
                page.access_serial = EMPTY
        if not fresh:
            self._restore(job)
        there = self.referenced_pages.keys() | self.unreferenced_pages.keys()
        given = sum(one not in there for one in job.all_unique_hashes)
        self._save(self._oldest(given + job.sequences[0].new_unique_pages))
        job.allocate_pages()
        job.document = document
        self._note_document(job)
        job.guessed_to = job.position
        self.active_jobs.append(job)
        try:
            if not fresh:
                self._restore_last(job)
        except Exception:
            self.end(job)
            raise
        job.guessed_to = job.position
        return job

    def end(self, job: PagedJob) -> None:
        """Let go of a job's pages; what is in them can be found again."""
        self._join()
        self.active_jobs.remove(job)
        job.rewind()
        if self.draft_model and not job.is_fresh and job.guessed_to < job.position:
            # Who finds these pages takes it that both models have read them.
            try:
                self.look_with_draft(job, job.text(job.guessed_to, job.position), job.guessed_to)
            except Exception as error:  # a guess must never cost an answer
                _log.warning("the draft model failed: %s", type(error).__name__)
                job.lose(job.guessed_to)
        pages = job.own_pages
        self._note_document(job)  # it may have other pages than at first
        # The library gives pages that were not written to back to their old text. Where that has
        # another page by now, it would take this one for the first page of a text.
        there = self.referenced_pages.keys() | self.unreferenced_pages.keys()
        emptied = [
            page
            for page in pages
            if (page.phash_revert in there if page.can_revert else job.is_fresh)
        ]
        if not job.is_fresh:
            self._note_use(pages, job.visit)
        job.deallocate_pages()
        for page in emptied:
            if page.ref_count == 0:
                page.clear()

    def save_ahead(self) -> None:
        """Save the pages that are next to be overwritten, so that no job has to wait for it."""
        self._save(self._oldest(AHEAD))

    def read(self, job: PagedJob, chunk: int) -> int:
        """Put the next chunk of the prompt through both models; returns how many tokens of it were
        computed. All but the last one are read; that goes with the first pass."""
        self._join()
        self.max_chunk_size = chunk
        before = job.position - job.reused
        guessed_all = job.guessed_to == job.position
        pages = self.all_pages
        if job.is_fresh:
            self.all_pages = job.own_pages
        try:
            with self._target_first() as asked:
                job.prefill([])
        finally:
            self.all_pages = pages
        if guessed_all and self._read_with_draft(asked):
            job.guessed_to = job.position
        return job.position - job.reused - before

    def look(self, job: PagedJob, offered: Sequence[int]) -> Tensor:
        """Put the last token of the text and what is `offered` behind it through the target: the
        logits behind each, [1 + offered, vocabulary] (float32, where the target is)."""
        sequence = job.sequences[0]
        wanted = 1 + len(offered)
        filling = [0] * (filled(wanted) - wanted)
        start = torch.tensor([sequence.kv_position], dtype=torch.int32)
        blocks = job.get_block_index(sequence, job.position + wanted + len(filling))
        job.rewind_pages()
        draft = torch.tensor([[*offered, *filling]], dtype=torch.long)
        (ids,) = job.get_input_ids_list(draft, 0, add_to_cache=True)
        params = self.get_paged_params(1, blocks.unsqueeze(0), start, ids.shape[-1])
        found = self.model.forward_chunk(input_ids=ids, attn_params=params, cache=self.cache)
        logits: Tensor = found["logits"]
        return logits[0, :wanted, : self.vocabulary].float()

    def look_with_draft(self, job: PagedJob, tokens: Sequence[int], start: int) -> Tensor:
        """Put `tokens` through the draft model, whose keys and values are there up to `start`: the
        logits behind the last one, [1, vocabulary] (float32, where the draft model is)."""
        self._join()
        logits: Tensor
        for begin in range(0, len(tokens), self.max_chunk_size):
            piece, place = tokens[begin : begin + self.max_chunk_size], start + begin
            blocks = job.get_block_index(job.sequences[0], place + len(piece))
            where = torch.tensor([place], dtype=torch.int32)
            params = self.get_paged_params(1, blocks.unsqueeze(0), where, len(piece))
            found = self.draft_model.forward_chunk(
                input_ids=torch.tensor([piece]),
                attn_params=params,
                cache=self.draft_cache,
                last_id_only=True,
            )
            logits = found["logits"]
        return logits[0, -1:].float()

    def iterate(self) -> list[dict[str, Any]]:
        """Not used: `begin`, `read` and `look` take its place."""
        raise NotImplementedError

    @contextmanager
    def _target_first(self) -> Iterator[list[dict[str, Any]]]:
        """What the draft model is asked for in here is noted and not done."""
        asked: list[dict[str, Any]] = []

        def note(**arguments: Any) -> None:
            # On each stream its own copies: a tensor made on one is not ready for the other.
            arguments["attn_params"] = copy.copy(arguments["attn_params"])
            if self.prefill_stream:
                self.prefill_stream.mark()
            asked.append(arguments)

        if self.draft_model is None:
            yield asked
            return
        forward = self.draft_model.forward_chunk
        self.draft_model.forward_chunk = note
        try:
            yield asked
        finally:
            self.draft_model.forward_chunk = forward

    def _read_with_draft(self, asked: Sequence[dict[str, Any]]) -> bool:
        """Do what was noted; False where that failed. A guess must never cost an answer."""
        stream = self.prefill_stream
        try:
            for arguments in asked:
                with stream.current() if stream else nullcontext():
                    self.draft_model.forward_chunk(**arguments)
        except Exception as error:
            _log.warning("the draft model failed: %s", type(error).__name__)
            return False
        return True

    def _join(self) -> None:
        """What is still read is of jobs that run: to be called before the draft model or a copy
        touches their pages, and before they let go of them."""
        if self.prefill_stream:
            self.prefill_stream.join()

    def _cache_tensors(self) -> list[Tensor]:
        caches = [self.cache, self.draft_cache] if self.draft_model else [self.cache]
        return [tensor for cache in caches for tensor in cache.all_tensors()]

    def _page_tensors(self, page: Any) -> list[Tensor]:
        """What the caches of both models have of a page."""
        start = page.page_index * self.page_size
        return [tensor[0].narrow(0, start, self.page_size) for tensor in self._cache_tensors()]

    def _oldest(self, count: int) -> list[Any]:
        """The pages that the library will give next."""
        by_use = sorted(self.unreferenced_pages.values(), key=lambda page: page.access_serial)
        return by_use[:count]

    def _touch(self, page: Any) -> None:
        """Make it the last page to be given."""
        self.access_serial += 1
        page.access_serial = self.access_serial

    def _save(self, pages: Sequence[Any]) -> None:
        for page in pages:
            visit = self.visits[page.page_index]
            if visit and page.kv_position >= WORTH_A_COPY:
                partial = page.kv_position < self.page_size
                self.tier.save(_text(page), self._page_tensors(page), visit, partial=partial)

    def _restore(self, job: PagedJob) -> None:
        """Bring back the full pages of a job's text. What the card has of it is kept there."""
        missing: list[tuple[bytes, PageText]] = []
        unbroken = True
        first_gap = 0
        for number, phash in enumerate(job.sequences[0].page_hashes):
            text = job.page_text(number)
            self.tier.touch(text, job.visit)
            page = self.referenced_pages.get(phash) or self.unreferenced_pages.get(phash)
            if page is None and text in self.tier:
                missing.append((phash, text))
            elif page is None or page.kv_position < self.page_size:
                unbroken = False
            if page is not None and page.ref_count == 0:
                self._touch(page)
            first_gap += unbroken
        nearest, _ = self._nearest(job.page_text(first_gap))
        if nearest is not None and nearest.ref_count == 0:
            self._touch(nearest)
        targets = self._oldest(len(missing))
        self._save(targets)
        for page, (phash, text) in zip(targets, missing, strict=True):
            page.clear()  # a copy that fails leaves a part of it
            if not self.tier.restore(text, self._page_tensors(page)):
                continue
            del self.unreferenced_pages[page.phash]
            self.unreferenced_pages[phash] = page
            page.phash, page.prev_hash = phash, text.before
            page.kv_position, page.can_revert = self.page_size, False
            page.sequence[0] = text.ids
            self._touch(page)

    def _restore_last(self, job: PagedJob) -> None:
        """Begin a job's first page that has to be computed with what is in host memory, where that is
        longer than what the card has: the library looks there when it reads the prompt."""
        number = job.position // self.page_size
        text, page = job.page_text(number), job.own_pages[number]
        if page.ref_count > 1:
            return
        _, on_card = self._nearest(text, page)
        found, count = self.tier.best(text)
        if found is None or count < on_card + WORTH_A_COPY:
            return
        self.tier.touch(found, job.visit)
        self.tier.restore(found, self._page_tensors(page))
        page.prev_hash, page.kv_position, page.can_revert = text.before, count, False
        page.sequence[0, :count] = text.ids[:count]
        job.sequences[0].kv_position += count
        job.cached_tokens += count

    def _nearest(self, text: PageText, but: Any = None) -> tuple[Any, int]:
        """The page on the card that begins as `text` does for longest, and how many tokens that is."""
        found, most = None, 0
        for page in self.all_pages:
            if page.prev_hash == text.before and page.kv_position and page is not but:
                common = text.common(_text(page))
                if common > most:
                    found, most = page, common
        return found, most

    def _note_document(self, job: PagedJob) -> None:
        for page in job.own_pages:
            self.documents[page.page_index] = job.document

    def _note_use(self, pages: Sequence[Any], visit: int) -> None:
        """Note that these pages, one text's, were used. Partial ones of earlier versions of it that
        are not worth their places are given first, and not saved."""
        used = {page.prev_hash: page for page in pages if page.kv_position}
        for page in used.values():
            self.visits[page.page_index] = max(self.visits[page.page_index], visit)
        for other in self.unreferenced_pages.values():
            page = used.get(other.prev_hash)
            if page is None or not 0 < other.kv_position < self.page_size:
                continue
            if _text(page).outdates(_text(other)):
                other.access_serial = OUTDATED
                self.visits[other.page_index] = 0


def _text(page: Any) -> PageText:
    """What a page holds."""
    return PageText(page.prev_hash, page.sequence[0, : page.kv_position].numpy().tobytes())


class PagedJob(ExLlamaV2DynamicJob):  # type: ignore[misc]
    """A text and its pages."""

    is_fresh = False
    visit = 0
    """Jobs are counted from 1."""
    document = ""
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
        """Forget what was offered and not accepted. To be called before another job is worked on: it
        would take what was offered for the text that it is not."""
        self.rewind_pages()
        self.guessed_to = min(self.guessed_to, self.position)

    def rewind_pages(self) -> None:
        """The same, but what the draft model has read stays: the target has yet to say what of it is
        right."""
        size = self.generator.page_size
        # Nothing is offered inside the prompt, but pages further on in it may have been found.
        first = max(self.position // size, len(self.sequences[0].page_hashes))
        for number, page in enumerate(self.own_pages[first:], first):
            page.kv_position = min(page.kv_position, max(0, self.position - number * size))

    def lose(self, start: int) -> None:
        """Forget the keys and values that it has behind `start`, where no other job needs them."""
        size = self.generator.page_size
        last = -(-self.position // size)
        for number, page in enumerate(self.own_pages[start // size : last], start // size):
            if page.ref_count == 1:
                page.kv_position = min(page.kv_position, start - number * size)

    def text(self, start: int, end: int) -> list[int]:
        """Tokens of it."""
        ids: Tensor = self.sequences[0].sequence_ids.torch_slice(start, end)
        return [int(token) for token in ids[0]]

    def page_text(self, number: int) -> PageText:
        """What is to be read into a page: all but the last token of the text are."""
        size, sequence = self.generator.page_size, self.sequences[0]
        end = min((number + 1) * size, len(sequence.sequence_ids) - 1)
        ids: Tensor = sequence.sequence_ids.torch_slice(number * size, end)
        before = sequence.page_hashes[number - 1] if number else None
        return PageText(before, ids.numpy().tobytes())

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
            row = self._generator.look_with_draft(work, waiting, start)[:, :vocabulary]
            start += len(waiting)
            work.guessed_to = start
            tokens.append(Choices(row, sampling).at(0, len(text) + len(tokens))[0])
            if len(tokens) == count:
                return tuple(tokens)
            waiting = tokens[-1:]
