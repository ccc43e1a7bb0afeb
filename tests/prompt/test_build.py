"""Prompts: what changes least stands first, so typing appends; never more than the budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from completion_ls.decode.tokens import common_prefix
from completion_ls.prompt.build import ALMOST, PromptBuilder
from completion_ls.prompt.formats import Repository
from support.fim import row
from support.tiny_model import write_tiny_model

FIM = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
LINES = "".join(f"    value_{n} = add({n}, {n * n})\n" for n in range(400))


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model") / "tokenizer.json"


@dataclass(frozen=True)
class Model:
    """A tokenizer, and the builder of its prompts."""

    tokenizer: Tokenizer
    format: str
    builder: PromptBuilder

    def fresh(self) -> PromptBuilder:
        return PromptBuilder(self.tokenizer, self.format, frozenset({0}))


@pytest.fixture(scope="module", params=["plain", "qwen", "codestral", "mellum", "chat"])
def model(request: pytest.FixtureRequest, tokenizer_file: Path) -> Model:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    name = str(request.param)
    if name != "plain":
        # Not special, as Qwen's own tokenizer has it; they steer the model all the same.
        control = row("chatml" if name == "chat" else name).control
        tokenizer.add_tokens([AddedToken(token, special=False) for token in control])
    return Model(tokenizer, name, PromptBuilder(tokenizer, name, frozenset({0})))


@pytest.fixture(scope="module")
def builder(model: Model) -> PromptBuilder:
    return model.builder


@pytest.fixture(scope="module")
def qwen(tokenizer_file: Path) -> Model:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.add_tokens([AddedToken(token, special=False) for token in FIM])
    return Model(tokenizer, "auto", PromptBuilder(tokenizer, "auto", frozenset({0})))


def build(
    builder: PromptBuilder, prefix: str, suffix: str, context: str = "", budget: int = 2000
) -> tuple[int, ...]:
    share = 0.25
    return builder.build(prefix, suffix, context=context, budget=budget, suffix_share=share).ids


texts = st.text(alphabet="abc (){}\n\té🥸", max_size=400)


def parts(model: Model, ids: tuple[int, ...]) -> list[tuple[int, ...]]:
    """What stands behind each of PRE, SUF and MID."""
    marks = [ids.index(model.tokenizer.token_to_id(token)) for token in FIM]
    ends = [*marks[1:], len(ids)]
    return [ids[start + 1 : end] for start, end in zip(marks, ends, strict=True)]


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
        assert len(now) - common_prefix(before, now) <= 4
        before = now


def test_enter_keeps_most_of_the_prompt(builder: PromptBuilder) -> None:
    """With FIM the anchor stays for some lines; where it moves the text below is read again."""
    text, moved = LINES, 0
    before = build(builder, text, "\n" + LINES)
    for number in range(40):
        text += f"    other_{number} = add({number}, 1)\n"
        now = build(builder, text, "\n" + LINES)
        moved += len(now) - common_prefix(before, now) > 100
        before = now
    assert moved <= 12


def test_what_enter_will_need_is_known_before(builder: PromptBuilder) -> None:
    options = {"context": "", "budget": 2000, "suffix_share": 0.25}
    text, needed = LINES, 0
    for number in range(40):
        text += f"    other_{number} = add({number}, 1)"
        now = build(builder, text, "\n" + LINES)
        ahead = builder.ahead(text, "\n" + LINES, **options)
        cached = [now, ahead.ids] if ahead else [now]
        needed += ahead is not None
        text += "\n"
        then = build(builder, text + "    ", "\n" + LINES)
        assert len(then) - max(common_prefix(then, ids) for ids in cached) <= ALMOST + 4
    assert 0 < needed <= 12


def test_a_jump_keeps_what_is_above_both_places(builder: PromptBuilder) -> None:
    if builder.fim and builder.fim.suffix_first:
        pytest.skip("what stands behind the cursor comes first, and is another text there")
    lines = LINES.splitlines(keepends=True)[:90]
    here, there = (
        build(builder, "".join(lines[:cursor]), "".join(lines[cursor:]), budget=4000)
        for cursor in (80, 60)
    )
    above = build(builder, "".join(lines[:30]), "", budget=4000)
    assert common_prefix(here, there) > len(above)


def test_without_fim_the_last_lines_stand_in_one_piece_behind_the_text_below(
    tokenizer_file: Path,
) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    builder = PromptBuilder(tokenizer, "plain", frozenset())
    lines = LINES.splitlines(keepends=True)[:90]
    text = tokenizer.decode(
        build(builder, "".join(lines[:60]), "".join(lines[60:]), budget=4000),
        skip_special_tokens=False,
    )
    above, below, last = text.split("\n\n\n")
    assert above and "".join(lines).startswith(above)
    assert last and "".join(lines[:60]).endswith(last)
    assert (above + "\n" + last).count("\n") == 60
    assert below.startswith("\n" + lines[61])
    assert "".join(lines[61:]).startswith(below.lstrip("\n"))


@pytest.mark.parametrize("rest", ["", ")", ", 2)", "  # note"])
def test_without_fim_the_nearest_lines_below_are_seen(tokenizer_file: Path, rest: str) -> None:
    """However few they are; the rest of the cursor's line is not."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    builder = PromptBuilder(tokenizer, "plain", frozenset())
    for below in ("    return x\n", "    total = x\n    return total"):
        ids = build(builder, "def f(a):\n    x = add(a", f"{rest}\n{below}")
        apart = "\n\n\n" + below.rstrip("\n") + "\n\n\n"
        assert tokenizer.decode(ids, skip_special_tokens=False).startswith(apart)


def test_the_suffix_is_what_stands_behind_the_cursor(qwen: Model) -> None:
    typed = [*(LINES + "    x = add(1"[:n] for n in range(14)), LINES + "    x = add(\n        1"]
    suffixes = {parts(qwen, build(qwen.builder, text, ", 2)\n" + LINES))[1] for text in typed}
    [suffix] = suffixes
    assert qwen.tokenizer.decode(suffix).startswith(", 2)\n    value_0")


def test_the_middle_goes_on_from_the_anchor_to_the_cursor(qwen: Model) -> None:
    prefix, _, middle = parts(qwen, build(qwen.builder, LINES + "    x = add(", ", 2)\n"))
    decode = qwen.tokenizer.decode
    assert (decode(prefix) + decode(middle)).endswith("399, 159201)\n    x = add(")
    assert 2 <= decode(middle).count("\n") <= 12


edits = st.tuples(
    st.floats(0, 1), st.integers(0, 8), st.text(alphabet="abc (){}\n\té🥸", max_size=12)
)


@given(st.lists(edits, max_size=12), st.integers(64, 300))
@settings(max_examples=40, deadline=None)
def test_the_prompt_is_a_function_of_the_text(
    model: Model, history: list[tuple[float, int, str]], budget: int
) -> None:
    """Whatever was built before, it is the one that a new builder makes."""
    text, builder = LINES[:4000], model.builder
    for place, deleted, inserted in history:
        cursor = int(place * len(text))
        text = text[:cursor] + inserted + text[cursor + deleted :]
        cursor += len(inserted)
        fresh = model.fresh()
        options = {"context": "", "budget": budget, "suffix_share": 0.25}
        prompt = builder.build(text[:cursor], text[cursor:], **options)
        assert prompt == fresh.build(text[:cursor], text[cursor:], **options)
        builder.ahead(text[:cursor], text[cursor:], **options)


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


def test_a_format_whose_tokens_are_missing_is_refused(tokenizer_file: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    with pytest.raises(ValueError, match="<fim_prefix>"):
        PromptBuilder(tokenizer, "starcoder", frozenset())


names = st.text(alphabet="ab/<|>file_sep", max_size=12)


@given(texts, texts, st.lists(st.tuples(names, texts), max_size=4), st.integers(64, 300))
@settings(max_examples=40, deadline=None)
def test_within_the_budget_with_other_files_too(
    builder: PromptBuilder, prefix: str, suffix: str, files: list[tuple[str, str]], budget: int
) -> None:
    options = {"context": "", "budget": budget, "suffix_share": 0.25}
    repository = Repository("r", "here.py", tuple(files))
    prompt = builder.build(prefix, suffix, repository=repository, **options)
    assert 0 < len(prompt.ids) <= budget
    nothing = Repository("r", "here.py", ())
    assert builder.build(prefix, suffix, repository=nothing, **options) == builder.build(
        prefix, suffix, **options
    )


def test_typing_with_other_files_computes_a_few_tokens(builder: PromptBuilder) -> None:
    options = {"context": "", "budget": 2000, "suffix_share": 0.25}
    repository = Repository("r", "here.py", (("add.py", "def add(a, b):\n    return a + b\n"),))
    before: tuple[int, ...] = ()
    for count in range(len("    result = compute(first")):
        text = LINES + "    result = compute(first"[: count + 1]
        now = builder.build(text, "\n" + LINES, repository=repository, **options).ids
        assert not before or len(now) - common_prefix(before, now) <= 4
        before = now
    alone = builder.build(text, "\n" + LINES, **options).ids
    assert common_prefix(alone, now) < len(now) - 4
