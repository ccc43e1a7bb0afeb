"""What every engine owes its callers, of the engine on exllamav2: the tests of the engines' suite
that say nothing of what a step or a repeated prompt costs; `test_engine` does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from engines.test_contract import (
    test_a_cold_job_computes_everything,
    test_a_keystroke_goes_before_everything_else,
    test_a_sample_goes_on_the_same_while_it_is_typed_along,
    test_a_stop_token_ends_the_job_and_is_not_part_of_it,
    test_a_stop_token_has_to_wait_for_the_minimum,
    test_an_accepted_suggestion_is_reused,
    test_backspace_costs_one_token,
    test_cancel_before_the_first_step_and_of_unknown_jobs,
    test_decoding_jobs_of_a_lane_take_turns,
    test_each_typed_token_costs_one_token,
    test_the_newest_keystroke_is_prefilled_first,
    test_two_documents_keep_their_caches,
)

__all__ = [
    "test_a_cold_job_computes_everything",
    "test_a_keystroke_goes_before_everything_else",
    "test_a_sample_goes_on_the_same_while_it_is_typed_along",
    "test_a_stop_token_ends_the_job_and_is_not_part_of_it",
    "test_a_stop_token_has_to_wait_for_the_minimum",
    "test_an_accepted_suggestion_is_reused",
    "test_backspace_costs_one_token",
    "test_cancel_before_the_first_step_and_of_unknown_jobs",
    "test_decoding_jobs_of_a_lane_take_turns",
    "test_each_typed_token_costs_one_token",
    "test_the_newest_keystroke_is_prefilled_first",
    "test_two_documents_keep_their_caches",
]
pytestmark = pytest.mark.exl2


@pytest.fixture
def engine(exllamav2: Any, target: Any) -> Iterator[Any]:
    """An engine without drafts, whose cache has room for some documents."""
    from completion_ls.engines.exl2.engine import Exl2Engine
    from completion_ls.engines.exl2.generator import PagedGenerator
    from support.exl2.tiny import load_tokenizer, make_cache

    generator = PagedGenerator(
        target,
        make_cache(target, "fp16", 256 * 12),
        load_tokenizer(target),
        max_batch_size=1,
        max_q_size=32,
        max_chunk_size=512,
    )
    made = Exl2Engine(generator, 2048, 512, None)
    yield made
    made.close()
