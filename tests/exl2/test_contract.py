"""What every engine owes its callers, of the engine on exllamav2: the engines' suite. What it says in
terms of transformers' models and of a cap in bytes is in `test_engine` and `test_host_tier`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engines.test_contract import (
    Numbers,
    engine,
    test_a_cold_job_computes_everything,
    test_a_jump_keeps_the_way_back,
    test_a_keystroke_goes_before_everything_else,
    test_a_running_job_lends_its_prefix,
    test_a_sample_goes_on_the_same_while_it_is_typed_along,
    test_a_stop_token_ends_the_job_and_is_not_part_of_it,
    test_a_stop_token_has_to_wait_for_the_minimum,
    test_an_accepted_suggestion_is_reused,
    test_background_work_takes_small_steps_until_somebody_waits_for_it,
    test_backspace_costs_one_token,
    test_cancel_before_the_first_step_and_of_unknown_jobs,
    test_cancel_during_decode,
    test_cancel_during_prefill,
    test_close_drops_jobs_and_memory,
    test_decoding_jobs_of_a_lane_take_turns,
    test_each_typed_token_costs_one_token,
    test_given_tokens_are_as_probable_as_when_they_are_chosen,
    test_given_tokens_leave_the_next_answers_as_they_are,
    test_jobs_that_make_no_sense_are_refused,
    test_other_choices_are_the_next_best_ones,
    test_seeds_are_reproducible_and_independent_of_history,
    test_the_newest_keystroke_is_prefilled_first,
    test_the_same_prompt_again,
    test_two_documents_keep_their_caches,
)

from support.jobs import job, run

__all__ = [
    "engine",
    "test_a_cold_job_computes_everything",
    "test_a_jump_keeps_the_way_back",
    "test_a_keystroke_goes_before_everything_else",
    "test_a_running_job_lends_its_prefix",
    "test_a_sample_goes_on_the_same_while_it_is_typed_along",
    "test_a_stop_token_ends_the_job_and_is_not_part_of_it",
    "test_a_stop_token_has_to_wait_for_the_minimum",
    "test_an_accepted_suggestion_is_reused",
    "test_background_work_takes_small_steps_until_somebody_waits_for_it",
    "test_backspace_costs_one_token",
    "test_cancel_before_the_first_step_and_of_unknown_jobs",
    "test_cancel_during_decode",
    "test_cancel_during_prefill",
    "test_close_drops_jobs_and_memory",
    "test_decoding_jobs_of_a_lane_take_turns",
    "test_each_typed_token_costs_one_token",
    "test_given_tokens_are_as_probable_as_when_they_are_chosen",
    "test_given_tokens_leave_the_next_answers_as_they_are",
    "test_jobs_that_make_no_sense_are_refused",
    "test_other_choices_are_the_next_best_ones",
    "test_seeds_are_reproducible_and_independent_of_history",
    "test_the_newest_keystroke_is_prefilled_first",
    "test_the_same_prompt_again",
    "test_two_documents_keep_their_caches",
]
pytestmark = pytest.mark.exl2

TO_THE_TOKEN = (
    test_a_running_job_lends_its_prefix,
    test_a_sample_goes_on_the_same_while_it_is_typed_along,
    test_given_tokens_are_as_probable_as_when_they_are_chosen,
    test_given_tokens_leave_the_next_answers_as_they_are,
    test_seeds_are_reproducible_and_independent_of_history,
)
"""They compare long texts of engines that have computed them in different pieces."""


@pytest.fixture
def numbers() -> Numbers:
    from support.exl2.tiny import VOCABULARY

    return Numbers(VOCABULARY, chunk=512, background_chunk=256, again=1, near=0.2)


@pytest.fixture(params=["fp16", "q8", "q6", "q4"])
def make_engine(exllamav2: Any, target: Any, request: pytest.FixtureRequest) -> Callable[[], Any]:
    """Engines without drafts, whose cache has room for some documents."""
    from support.exl2.engines import make_engine

    if request.param in ("q6", "q4") and request.function in TO_THE_TOKEN:
        pytest.skip("with so few bits it shows which tokens went through the model together")
    return lambda: make_engine(target, cache=request.param)


@pytest.fixture
def greedy(make_engine: Callable[[], Any]) -> Callable[[tuple[int, ...], int], list[int]]:
    """The most probable output, of an engine that has seen nothing else; `test_engine` holds it against
    transformers."""
    return lambda prompt, count: run(make_engine(), job(prompt, count)).tokens
