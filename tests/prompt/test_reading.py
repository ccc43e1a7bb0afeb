"""Texts are read as the tokenizer reads them, whatever its kind, also piece by piece."""

from __future__ import annotations

import unicodedata
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from completion_ls.daemon.detokenize import Detokenizer
from completion_ls.decode.vocabulary import Spelling, Vocabulary, inner_tokenizer
from completion_ls.prompt.build import Prompt, PromptBuilder
from completion_ls.prompt.reading import Reader
from support.tokenizer_kinds import KINDS, tokenizer_of

FRAGMENTS = [
    *("def add(a, b):\n", "    return a + b\n", "        ", " ", "  ", "\n", "\n\n", "\t", "\r\n"),
    *("value", " values", "va", "12345", " 7", "_", "self.", "(", "):\n", " == ", "'s", '"""', "x"),
    *(
        "é",
        "e\u0301",
        "déjà",
        "日本語",
        "ー",
        "🥸",
        "👩‍👩‍👧",
        " ß",
        "<tool>",
        "<|endoftext|>",
        "<s>",
        "</",
    ),
]
texts = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=24).map("".join)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@cache
def builder_of(kind: str) -> PromptBuilder:
    return PromptBuilder(tokenizer_of(kind), "plain", frozenset())


@cache
def vocabulary_of(kind: str) -> Vocabulary:
    return Vocabulary(tokenizer_of(kind))


def prompt_of(kind: str, text: str) -> Prompt:
    return builder_of(kind).build(text, "", context="", budget=4000, suffix_share=0)


def spelled(tokenizer: Tokenizer, ids: list[int] | tuple[int, ...]) -> bytes:
    return b"".join(map(Spelling(tokenizer), ids))


def own(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def as_read(kind: str, text: str) -> str:
    """The text as this kind of tokenizer spells it."""
    if kind == "qwen2":
        text = unicodedata.normalize("NFC", text)
    if kind == "llama2":
        return " " + text
    first = kind in ("gpt2-blank-first", "metaspace-always", "metaspace-first", "mistral")
    return " " + text if first and not text.startswith(" ") else text


@given(texts)
@settings(max_examples=40, deadline=None)
def test_a_prompt_spells_the_text_before_the_cursor(kind: str, text: str) -> None:
    prompt = prompt_of(kind, text)
    tokenizer = tokenizer_of(kind)
    word = prompt.unfinished
    before = prompt.ids[: len(prompt.ids) - word.tokens] if word else prompt.ids
    end = word.text if word else b""
    assert spelled(tokenizer, before) + end == as_read(kind, text).encode()
    if word:
        trunk = prompt.ids[len(before) :]
        assert word.text.startswith(spelled(tokenizer, trunk))
        word.text.decode()


@given(texts)
@settings(max_examples=40, deadline=None)
def test_texts_are_read_as_the_tokenizer_reads_them_whole(kind: str, text: str) -> None:
    """Also line after line, where the reading of the lines before is known."""
    tokenizer, reader = tokenizer_of(kind), Reader(tokenizer_of(kind))
    ends = [n for n, character in enumerate(text) if character == "\n"] + [len(text)]
    for part in (text[:end] for end in ends if end):
        reading = reader.open(reader.begun(part))
        assert reading.before + reading.word == own(tokenizer, part)
        assert reading.spelled == spelled(tokenizer, reading.word)


@given(texts, texts)
@settings(max_examples=40, deadline=None)
def test_the_output_goes_on_behind_the_cursor(kind: str, text: str, rest: str) -> None:
    tokenizer = tokenizer_of(kind)
    prompt = prompt_of(kind, text)
    word = prompt.unfinished
    before = prompt.ids[: len(prompt.ids) - word.tokens] if word else prompt.ids
    typed = word.text.decode() if word else ""
    output = own(inner_tokenizer(tokenizer), typed + rest)
    detokenizer = Detokenizer(tokenizer, before, len(typed))
    found = "".join(detokenizer.add([id]) for id in output) + detokenizer.add([], last=True)
    expected = typed + rest
    if kind == "qwen2":
        expected = unicodedata.normalize("NFC", expected)
    assert found == expected[len(typed) :]


@given(texts, st.data())
@settings(max_examples=40, deadline=None)
def test_the_tokenizers_own_words_are_canonical(kind: str, text: str, data: st.DataObject) -> None:
    tokenizer, reader = tokenizer_of(kind), Reader(tokenizer_of(kind))
    cursor = data.draw(st.integers(1, len(text)))
    reading = reader.open(reader.begun(text[:cursor]))
    assert vocabulary_of(kind).is_canonical(tuple(reading.word))
    whole = own(tokenizer, text)
    if reading.before and whole[: len(reading.before)] == reading.before:
        assert vocabulary_of(kind).is_canonical(tuple(whole[len(reading.before) :]))
