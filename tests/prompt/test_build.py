"""Prompts: what changes least stands first, so typing appends; never more than the budget."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from completion_ls.prompt.build import PromptBuilder
from support.tiny_model import write_tiny_model

FIM = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
LINES = "".join(f"    value_{n} = add({n}, {n * n})\n" for n in range(400))


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model") / "tokenizer.json"


@pytest.fixture(scope="module", params=["plain", "qwen"])
def builder(request: pytest.FixtureRequest, tokenizer_file: Path) -> PromptBuilder:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    if request.param == "qwen":
        tokenizer.add_special_tokens([AddedToken(token, special=True) for token in FIM])
    builder = PromptBuilder(tokenizer, "auto", frozenset({0}))
    assert (builder.fim is None) == (request.param == "plain")
    return builder


def build(
    builder: PromptBuilder, prefix: str, suffix: str, context: str = "", budget: int = 2000
) -> tuple[int, ...]:
    share = 0.25
    return builder.build(prefix, suffix, context=context, budget=budget, suffix_share=share).ids


def shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    count = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        count += 1
    return count


texts = st.text(alphabet="abc (){}\n\té🥸", max_size=400)


@given(texts, texts, texts, st.integers(64, 300))
@settings(max_examples=60)
def test_within_the_budget_and_never_empty(
    builder: PromptBuilder, prefix: str, suffix: str, context: str, budget: int
) -> None:
    assert 0 < len(build(builder, prefix, suffix, context, budget)) <= budget


def test_typing_computes_a_few_tokens(builder: PromptBuilder) -> None:
    typed = "    result = compute(first, second)"
    before = build(builder, LINES, "\n" + LINES)
    for count in range(1, len(typed) + 1):
        now = build(builder, LINES + typed[:count], "\n" + LINES)
        assert len(now) - shared(before, now) <= 4
        before = now


def test_closers_of_the_editor_change_nothing(builder: PromptBuilder) -> None:
    plain = build(builder, LINES + "    print(", "\n" + LINES)
    assert build(builder, LINES + "    print(", ")\n" + LINES) == plain


def test_an_edit_far_above_or_below_changes_nothing(builder: PromptBuilder) -> None:
    plain = build(builder, LINES + "    x = ", "\n" + LINES)
    assert build(builder, "# new\n" + LINES + "    x = ", "\n" + LINES + "# new\n") == plain


def test_text_below_and_context_are_in_the_prompt(builder: PromptBuilder) -> None:
    plain = build(builder, "x = ", "\n")
    assert len(build(builder, "x = ", "\n" + LINES)) > len(plain)
    assert len(build(builder, "x = ", "\n", context="def add(a, b):\n")) > len(plain)


def test_special_tokens_in_the_text_are_text(builder: PromptBuilder) -> None:
    special = {builder._tokenizer.token_to_id(token) for token in ["<|endoftext|>", *FIM]}
    plain = [id for id in build(builder, "x = ", "\n") if id in special]
    text = "<|endoftext|> <|fim_middle|> "
    found = [id for id in build(builder, text + "x = ", "\n" + text) if id in special]
    assert found == plain


def test_a_format_whose_tokens_are_missing_is_refused(tokenizer_file: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    with pytest.raises(ValueError, match="<fim_prefix>"):
        PromptBuilder(tokenizer, "starcoder", frozenset())
