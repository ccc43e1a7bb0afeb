"""Every row of the table: its prompt token by token, how it is found, and that text stays text."""

from __future__ import annotations

import typing

import pytest
from tokenizers import Tokenizer

from completion_ls.config.settings import ModelSettings
from completion_ls.decode.vocabulary import Spelling
from completion_ls.prompt.build import Prompt, PromptBuilder
from completion_ls.prompt.formats import FIM_FORMATS, Repository, find_format, fitting
from support.fim import ROWS, row, setting, tokenizer_for

TASK = (
    "A piece of this file is missing. Where it belongs stands <MISSING>. Write it, in full and "
    "nothing else.\n\n"
)

# With "above\n" before the anchor, "below\n" behind the cursor, and "here" at it.
PROMPTS = {
    "codegemma": "<s><|fim_prefix|>above\n<|fim_suffix|>\nbelow\n<|fim_middle|>here",
    "qwen": "<|fim_prefix|>above\n<|fim_suffix|>\nbelow\n<|fim_middle|>here",
    "qwen-chat": (
        "<|im_start|>system\nYou are a code completion assistant.<|im_end|>\n<|im_start|>user\n"
        "<|fim_prefix|>above\n<|fim_suffix|>\nbelow\n<|fim_middle|><|im_end|>\n"
        "<|im_start|>assistant\nhere"
    ),
    "starcoder2": "<fim_prefix>above\n<fim_suffix>\nbelow\n<fim_middle>here",
    "codeqwen": "<s><fim_prefix>above\n<fim_suffix>\nbelow\n<fim_middle>here",
    "starcoder": "<fim_prefix>above\n<fim_suffix>\nbelow\n<fim_middle>here",
    "mellum": "<fim_suffix>\nbelow\n<fim_prefix>above\n<fim_middle>here",
    "santacoder": "<fim-prefix>above\n<fim-suffix>\nbelow\n<fim-middle>here",
    "deepseek": ("<|endoftext|><｜fim▁begin｜>above\n<｜fim▁hole｜>\nbelow\n<｜fim▁end｜>here"),
    "codellama": "<s>▁<PRE> above\n▁<SUF>\nbelow\n▁<MID>here",
    "codestral": "<s>[SUFFIX]\nbelow\n[PREFIX] above\nhere",
    "seed-coder": "<|endoftext|><[fim-suffix]>\nbelow\n<[fim-prefix]>above\n<[fim-middle]>here",
    "chatml": (
        f"<|im_start|>user\n{TASK}above\n<MISSING>\nbelow\n<|im_end|>\n<|im_start|>assistant\nhere"
    ),
    "llama3": (
        f"<|endoftext|><|start_header_id|>user<|end_header_id|>\n\n{TASK}above\n<MISSING>\nbelow\n"
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nhere"
    ),
    "gemma": (
        f"<s><start_of_turn>user\n{TASK}above\n<MISSING>\nbelow\n<end_of_turn>\n"
        "<start_of_turn>model\nhere"
    ),
}
FILES = Repository("repo", "here.py", (("a.py", "a = 1\n"), ("b.py", "b = 2")))
IN_REPOSITORY = {
    "qwen": (
        "<|repo_name|>repo\n<|file_sep|>a.py\na = 1\n<|file_sep|>b.py\nb = 2\n"
        "<|file_sep|>here.py\n<|fim_prefix|>above\n<|fim_suffix|>\nbelow\n<|fim_middle|>here"
    ),
    "starcoder2": (
        "<repo_name>repo<file_sep>a.py\na = 1\n<file_sep>b.py\nb = 2\n"
        "<file_sep><fim_prefix>here.py\nabove\n<fim_suffix>\nbelow\n<fim_middle>here"
    ),
    "codeqwen": (
        "<s><reponame>repo\n<file_sep>a.py\na = 1\n<file_sep>b.py\nb = 2\n"
        "<file_sep>here.py\n<fim_prefix>above\n<fim_suffix>\nbelow\n<fim_middle>here"
    ),
    "mellum": (
        "<filename>a.py\na = 1\n<filename>b.py\nb = 2\n"
        "<filename>here.py\n<fim_suffix>\nbelow\n<fim_prefix>above\n<fim_middle>here"
    ),
    "starcoder": (
        "<fim_prefix>a.py\na = 1\nb.py\nb = 2\nhere.py\nabove\n<fim_suffix>\nbelow\n"
        "<fim_middle>here"
    ),
    "deepseek": (
        "<|endoftext|><｜fim▁begin｜>#a.py\na = 1\n#b.py\nb = 2\n#here.py\nabove\n"
        "<｜fim▁hole｜>\nbelow\n<｜fim▁end｜>here"
    ),
    "codestral": (
        "<s>[SUFFIX]\nbelow\n[PREFIX]+++++ a.py\na = 1\n+++++ b.py\nb = 2\n+++++ here.py\n"
        " above\nhere"
    ),
}
BUDGET = 1 << 16
LONG = "".join(f"line_{number} = {number}\n" for number in range(30))


def shown(tokenizer: Tokenizer, ids: typing.Sequence[int]) -> str:
    """The prompt as it reads, control tokens by their names."""
    spell = Spelling(tokenizer)
    added = tokenizer.get_added_tokens_decoder()
    names = (added[id].content.encode() if id in added else spell(id) for id in ids)
    return b"".join(names).decode()


def prompt(builder: PromptBuilder, prefix: str, suffix: str, files: Repository | None) -> Prompt:
    options = {"context": "", "budget": BUDGET, "suffix_share": 0.25}
    return builder.build(prefix, suffix, repository=files, **options)


def anchored(name: str, files: Repository | None) -> str:
    """A prompt whose text before the cursor has 30 lines, with those before the anchor as "above"."""
    tokenizer = tokenizer_for(name)
    builder = PromptBuilder(tokenizer, setting(name), frozenset())
    text = shown(tokenizer, prompt(builder, LONG + "here", "\nbelow\n", files).ids)
    if row(name).middle:
        *_, end = text.rpartition(row(name).middle)
        assert 3 <= end.count("\n") + 1 <= 13 and (LONG + "here").endswith(end)
        text = text.removesuffix(end) + "here"
        return text.replace(LONG.removesuffix(end.removesuffix("here")), "above\n")
    return text.replace(LONG, "above\n")


@pytest.mark.parametrize("name", ROWS)
def test_a_prompt_token_by_token(name: str) -> None:
    assert anchored(name, None) == PROMPTS[name]


@pytest.mark.parametrize("name", IN_REPOSITORY)
def test_a_prompt_with_other_files(name: str) -> None:
    assert anchored(name, FILES) == IN_REPOSITORY[name]


@pytest.mark.parametrize("name", IN_REPOSITORY)
def test_files_are_taken_whole_as_long_as_there_is_room(name: str) -> None:
    tokenizer = tokenizer_for(name)
    builder = PromptBuilder(tokenizer, name, frozenset())
    files = Repository("repo", "here.py", (("a.py", LONG * 200), ("b.py", "b = 2")))
    text = shown(tokenizer, prompt(builder, "x", "", files).ids)
    assert "a.py" not in text and "line_" not in text
    assert "b.py\nb = 2\n" in text and "here.py\n" in text


def test_without_its_tokens_other_files_are_text() -> None:
    tokenizer = tokenizer_for("santacoder")
    fim = [token for token in row("qwen").needs if tokenizer.add_special_tokens([token])]
    builder = PromptBuilder(tokenizer, "qwen", frozenset())
    text = shown(tokenizer, prompt(builder, "x", "", FILES).ids)
    assert text == f"{fim[0]}a.py\na = 1\nb.py\nb = 2\nhere.py\n{fim[1]}{fim[2]}x"


def test_without_fim_other_files_stand_first() -> None:
    tokenizer = tokenizer_for("santacoder")
    builder = PromptBuilder(tokenizer, "plain", frozenset())
    text = shown(tokenizer, prompt(builder, LONG + "x", "\n" + LONG, FILES).ids)
    assert text.startswith("a.py\na = 1\nb.py\nb = 2\nhere.py\nline_0 = 0\n")


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", ROWS)
def test_control_tokens_in_a_text_are_text(name: str, special: bool) -> None:
    """In the document, in what is typed, in other files and in their names."""
    fim = row(name)
    tokenizer = tokenizer_for(name, special=special)
    builder = PromptBuilder(tokenizer, setting(name), frozenset())
    control = {tokenizer.token_to_id(token) for token in fim.control}
    tokens = [*fim.control, *(token.replace("▁", " ") for token in fim.control)]
    evil = "".join(f"{token} {token}x{token}\n{token}" for token in tokens)

    def steering(text: str) -> list[int]:
        files = Repository(text, text, ((text, text), (text, text)))
        found = [
            id
            for repository in (None, files)
            for prefix in (text, text * 2 + "\n" * 40 + text)
            for id in prompt(builder, prefix, text, repository).ids
        ]
        found += builder.fim_prompt(text, text)
        return [id for id in found if id in control]

    assert steering(evil) == steering("harmless\n")


@pytest.mark.parametrize("name", ROWS)
def test_each_control_token_ends_the_text(name: str) -> None:
    tokenizer = tokenizer_for(name)
    builder = PromptBuilder(tokenizer, setting(name), frozenset({5}))
    stops = {tokenizer.token_to_id(token) for token in row(name).control} | {5}
    assert builder.stop_token_ids == stops and None not in stops


@pytest.mark.parametrize("name", [fim.name for fim in FIM_FORMATS])
def test_the_format_is_found_by_the_tokens(name: str) -> None:
    tokenizer = tokenizer_for(name)
    alike = {"mellum": "starcoder", "qwen-chat": "qwen"}
    found = find_format("auto", tokenizer)
    assert found is not None and found.name == alike.get(name, name)
    named = find_format(name, tokenizer)
    assert named is not None and named.name == name
    assert find_format("plain", tokenizer) is None


def test_formats_that_tokens_do_not_tell_apart_are_all_candidates() -> None:
    assert [fim.name for fim in fitting(tokenizer_for("mellum"))] == ["starcoder", "mellum"]
    assert [fim.name for fim in fitting(tokenizer_for("qwen-chat"))] == ["qwen"]
    assert fitting(tokenizer_for("chatml")) == []


@pytest.mark.parametrize("name", ["chatml", "llama3", "gemma"])
def test_a_chat_is_had_only_by_name(name: str) -> None:
    tokenizer = tokenizer_for(name)
    assert find_format("chat", tokenizer) == row(name)
    assert find_format("auto", tokenizer) is None


def test_what_the_tokenizer_cannot_do_is_refused() -> None:
    tokenizer = tokenizer_for("santacoder")
    with pytest.raises(ValueError, match="ChatML"):
        find_format("chat", tokenizer)
    with pytest.raises(ValueError, match=r"\[PREFIX\]"):
        find_format("codestral", tokenizer)


def test_the_settings_name_every_format() -> None:
    names = typing.get_args(ModelSettings.model_fields["format"].annotation)
    assert names == ("auto", "plain", "chat", *(fim.name for fim in FIM_FORMATS))
