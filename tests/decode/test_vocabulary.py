"""The bytes of tokens, and what the tokenizer itself would make of them, for every kind."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from completion_ls.decode.vocabulary import Vocabulary, inner_tokenizer
from support.tokenizer_kinds import KINDS, tokenizer_of

texts = st.text(alphabet="ab valuedf(=_\n\t 12é日🥸", max_size=40)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@cache
def vocabulary_of(kind: str) -> Vocabulary:
    return Vocabulary(tokenizer_of(kind))


@given(texts)
@settings(max_examples=40, deadline=None)
def test_in_the_middle_of_a_document_nothing_is_put_in_front(kind: str, text: str) -> None:
    ids = inner_tokenizer(tokenizer_of(kind)).encode(text, add_special_tokens=False).ids
    assert b"".join(map(vocabulary_of(kind).bytes_of, ids)) == text.encode()
    assert vocabulary_of(kind).is_canonical(tuple(ids))


def test_a_word_with_its_blank_is_one_token(kind: str) -> None:
    vocabulary = vocabulary_of(kind)
    if kind == "unsplit":
        pytest.skip("its tokens reach over blanks")
    spelled = {vocabulary.bytes_of(int(id)): int(id) for id in vocabulary.beyond(b"")}
    assert vocabulary.is_canonical((spelled[b" value"],))
    assert not vocabulary.is_canonical((spelled[b" "], spelled[b"value"]))


def test_half_a_character_at_the_end_is_no_objection_but_one_inside_is(kind: str) -> None:
    vocabulary = vocabulary_of(kind)
    ids = inner_tokenizer(tokenizer_of(kind)).encode("value🥸", add_special_tokens=False).ids
    assert len(ids) > 2, "the character is more than one token"
    assert vocabulary.is_canonical(tuple(ids[:-1]))
    assert not vocabulary.is_canonical((*ids[:-1], ids[0]))


def test_tokens_that_steer_the_model_stand_for_nothing(kind: str) -> None:
    tokenizer = KINDS[kind]()
    tokenizer.add_tokens([AddedToken("<|fim_pad|>", special=False), AddedToken("<html>")])
    vocabulary = Vocabulary(tokenizer)
    assert vocabulary.bytes_of(tokenizer.token_to_id("<|fim_pad|>")) == b""
    assert vocabulary.bytes_of(tokenizer.token_to_id("<html>")) == b"<html>"
    assert vocabulary.bytes_of(tokenizer.get_vocab_size() + 5) == b""
