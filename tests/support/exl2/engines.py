"""Engines put together by hand from loaded tiny models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from completion_ls.decode.draft_length import PassCost
from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.drafts import Drafts
from completion_ls.engines.exl2.host_tier import HOST_BYTES
from completion_ls.engines.exl2.widths import DRAFTED, OFFERED
from support.exl2.tiny import CacheKind, load_tokenizer, make_cache

if TYPE_CHECKING:
    from completion_ls.engines.exl2.engine import Exl2Engine

PAGE = 256
COST = PassCost.of([(1, 1.0), (4, 1.05), (8, 1.1), (17, 1.3)])
"""Drafts pay with such passes."""


def make_engine(
    target: Any,
    draft: Any = None,
    *,
    lookup: bool = False,
    cache: CacheKind = "fp16",
    pages: int = 12,
    chunk: int = 512,
    host_bytes: int = HOST_BYTES,
) -> Exl2Engine:
    """An engine on a target, with a draft model that guesses, or with drafts that are looked up, or
    both."""
    from completion_ls.engines.exl2.engine import Exl2Engine
    from completion_ls.engines.exl2.generator import PagedDraft, PagedGenerator

    tokens = PAGE * pages
    small = {"draft_model": draft, "draft_cache": make_cache(draft, cache, tokens)} if draft else {}
    generator = PagedGenerator(
        target,
        make_cache(target, cache, tokens),
        load_tokenizer(target),
        host_bytes=host_bytes,
        max_batch_size=1,
        max_q_size=OFFERED,
        max_chunk_size=512,
        num_draft_tokens=DRAFTED,
        **small,
    )
    guesser = PagedDraft(generator, 0.1) if draft else None
    drafts = Drafts(COST, lookup=lookup, model=guesser, most=DRAFTED) if lookup or draft else None
    tokenizer = Tokenizer.from_file(f"{target.config.model_dir}/tokenizer.json")
    return Exl2Engine(generator, 4096, chunk, Vocabulary(tokenizer), drafts, guesser)
