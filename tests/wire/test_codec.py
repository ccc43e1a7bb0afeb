"""Frames and messages, good and bad."""

from __future__ import annotations

import asyncio

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_ls.wire import codec
from completion_ls.wire.messages import Cancel, Chunk, Complete, Hello, Message

texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
messages = st.one_of(
    st.builds(Hello, protocol=st.integers(0, 9), version=texts, token=texts),
    st.builds(
        Complete,
        id=st.integers(0, 2**40),
        document=texts,
        prefix=texts,
        suffix=texts,
        max_tokens=st.integers(1, 4096),
        temperature=st.floats(0, 5),
    ),
    st.builds(Cancel, id=st.integers(0, 2**40)),
)


def reader_of(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return reader


@given(st.lists(messages, max_size=5))
def test_what_is_encoded_is_read_again(sent: list[Message]) -> None:
    async def read() -> list[Message]:
        reader = reader_of(b"".join(codec.encode(message) for message in sent))
        found: list[Message] = []
        while (body := await codec.read_body(reader)) is not None:
            found.append(codec.decode(body, codec.front_messages))
        return found

    assert asyncio.run(read()) == sent


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_one_of_two_errors(data: bytes) -> None:
    async def read() -> None:
        reader = reader_of(data)
        while (body := await codec.read_body(reader)) is not None:
            try:
                codec.decode(body, codec.front_messages)
            except codec.MessageError:
                continue

    try:
        asyncio.run(read())
    except codec.FrameError:
        return


@given(st.recursive(st.none() | st.integers(-9, 9) | st.text(), st.lists, max_leaves=20))
def test_any_msgpack_value_is_refused_in_words(value: object) -> None:
    with pytest.raises((codec.FrameError, codec.MessageError), match=r"\w+ \w+"):
        codec.decode(msgpack.packb(value), codec.front_messages)


async def test_a_frame_that_announces_too_much_is_not_read() -> None:
    with pytest.raises(codec.FrameError, match="4294967295"):
        await codec.read_body(reader_of(b"\xff\xff\xff\xff" + b"x" * 100))


@pytest.mark.parametrize("cut", [2, 6])
async def test_half_a_frame(cut: int) -> None:
    with pytest.raises(codec.FrameError, match="inside a frame"):
        await codec.read_body(reader_of(codec.encode(Cancel(id=1))[:cut]))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(codec.FrameError):
        codec.unpack(b"\x91" * 100_000)


def test_unknown_fields_are_ignored() -> None:
    body = msgpack.packb({"type": "cancel", "id": 3, "colour": "red"})
    assert codec.decode(body, codec.front_messages) == Cancel(id=3)


def test_an_unknown_type_is_told_from_a_bad_field() -> None:
    with pytest.raises(codec.MessageError) as unknown:
        codec.decode(msgpack.packb({"type": "dance", "id": 4}), codec.front_messages)
    assert unknown.value.unknown_type
    assert unknown.value.id == 4
    with pytest.raises(codec.MessageError, match="id") as bad:
        codec.decode(msgpack.packb({"type": "cancel", "id": "x"}), codec.front_messages)
    assert not bad.value.unknown_type


def test_a_message_over_the_limit_is_not_sent() -> None:
    with pytest.raises(codec.MessageError, match="bytes"):
        codec.encode(Chunk(id=1, text="x" * codec.MAX_FRAME, reused=0, computed=0))


def test_a_chunk_with_probabilities_comes_through() -> None:
    chunk = Chunk(id=1, text="a", reused=0, computed=1, logprobs=[-0.5, -2.25])
    assert codec.decode(codec.encode(chunk)[4:], codec.daemon_messages) == chunk
