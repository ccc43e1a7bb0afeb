"""What each token adds to a text, and how probable it was."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from completion_ls.daemon.detokenize import Detokenizer
from completion_ls.daemon.pieces import Piece, cut, pieces
from completion_ls.engines.contract import Event, Finish
from support.tokenizer_kinds import KINDS, tokenizer_of


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizer_of(next(iter(KINDS)))


def event(tokenizer: Tokenizer, text: str, *, last: bool = False, **more: float) -> Event:
    ids = tuple(tokenizer.encode(text, add_special_tokens=False).ids)
    finish = Finish.LENGTH if last else None
    return Event(1, ids, tuple(-0.5 for _ in ids), 0, 0, finish, **more)


def test_each_token_has_its_own_text(tokenizer: Tokenizer) -> None:
    text = "ab value(=_\n é"
    found = pieces(event(tokenizer, text), Detokenizer(tokenizer, ()))
    assert "".join(piece.text for piece in found) == text
    assert len(found) > 1
    assert {piece.logprob for piece in found} == {-0.5}


def test_the_tokens_of_an_unfinished_word_are_one_less_what_was_typed(tokenizer: Tokenizer) -> None:
    covering = event(tokenizer, "value(", typed_logprob=-0.25)
    found = pieces(covering, Detokenizer(tokenizer, (), skip=3))
    assert found == [Piece("ue(", -0.5 * len(covering.tokens) + 0.25)]
    sure = event(tokenizer, "value(", typed_logprob=-99.0)
    assert pieces(sure, Detokenizer(tokenizer, (), skip=3)) == [Piece("ue(", 0.0)]


def test_half_a_character_at_the_end_is_some_tokens(tokenizer: Tokenizer) -> None:
    whole = event(tokenizer, "a🥸")
    half = Event(1, whole.tokens[:-1], whole.logprobs[:-1], 0, 0)
    text = Detokenizer(tokenizer, ())
    assert "".join(piece.text for piece in pieces(half, text)) == "a"
    (tail,) = pieces(Event(1, (), (), 0, 0, Finish.STOP), text)
    assert tail == Piece("�", 0.0)
    ended = Event(1, whole.tokens[:-1], whole.logprobs[:-1], 0, 0, Finish.LENGTH)
    found = pieces(ended, Detokenizer(tokenizer, ()))
    assert "".join(piece.text for piece in found) == "a�"
    assert len(found) == len(ended.tokens)


def test_what_stands_behind_the_first_line_end_is_cut_off() -> None:
    found = [Piece("a", -1.0), Piece(";\n\n  b", -2.0), Piece("\n", -3.0)]
    assert cut(found) == [Piece("a", -1.0), Piece(";\n", -2.0)]
