"""Tokens become text: no blank is lost or put in, and no half character comes out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_ls.daemon.detokenize import Detokenizer
from completion_ls.decode.vocabulary import inner_tokenizer
from support.tokenizer_kinds import KINDS, tokenizer_of

texts = st.text(alphabet="ab value(=_\n\t é日本語🥸", min_size=1, max_size=40)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@given(texts, st.data())
@settings(max_examples=40, deadline=None)
def test_wherever_a_text_is_cut_the_rest_of_it_comes_out(
    kind: str, text: str, data: st.DataObject
) -> None:
    """Also inside a character: its bytes come with the token that ends it."""
    tokenizer = tokenizer_of(kind)
    ids = inner_tokenizer(tokenizer).encode(text, add_special_tokens=False).ids
    cut = data.draw(st.integers(0, len(ids)))
    before = Detokenizer(tokenizer, ()).add(ids[:cut])
    detokenizer = Detokenizer(tokenizer, ids[:cut])
    pieces = [detokenizer.add([id]) for id in ids[cut:]]
    assert "�" not in "".join(pieces)
    assert before + "".join(pieces) == text
    assert detokenizer.add([], last=True) == ""


@given(texts, st.integers(0, 12))
@settings(max_examples=40, deadline=None)
def test_what_was_typed_is_left_out(kind: str, text: str, skip: int) -> None:
    tokenizer = tokenizer_of(kind)
    ids = inner_tokenizer(tokenizer).encode(text, add_special_tokens=False).ids
    detokenizer = Detokenizer(tokenizer, (), skip)
    assert "".join(detokenizer.add([id]) for id in ids) == text[skip:]


def test_special_tokens_are_no_text(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    special = [id for id, t in tokenizer.get_added_tokens_decoder().items() if t.special]
    assert Detokenizer(tokenizer, special).add(special, last=True) == ""
