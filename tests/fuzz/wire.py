"""Frames between a front and its daemon: any bytes, and good frames that were damaged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, get_args, get_origin

import msgpack
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from completion_ls.wire import codec, messages
from completion_ls.wire.messages import PROTOCOL, Complete, Done, Hello, Message, Ready, Welcome
from fuzz.bytes import damaged
from fuzz.mixed import mixed
from fuzz.peers import House, Visitor
from fuzz.property import Property

FRONT = get_args(get_args(messages.FrontMessage)[0])
DAEMON = get_args(get_args(messages.DaemonMessage)[0])
WHOLE = st.integers(-3, 5) | st.sampled_from([2**31, 2**32, 2**63, 2**64 - 1, -(2**63), 4096])
REAL = st.floats() | st.sampled_from([0.0, 0.5, 1.0, -1.0])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
DEEP: Any = [{"a": [[], {}]}, 0.5]
JUNK: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(
        [None, True, [], {}, DEEP, {"type": "cancel", "id": 1}, b"\xff", "", "9" * 500]
    ),
    *(WHOLE, REAL, TEXT, st.lists(WHOLE, max_size=3), st.dictionaries(TEXT, WHOLE, max_size=2)),
)


def _value(kind: Any) -> st.SearchStrategy[Any]:
    """A value of a field's type, or nearly."""
    if get_origin(kind) is list:
        return st.lists(_value(get_args(kind)[0]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, Message):
        return _fields(kind)
    if get_origin(kind) is not None and not isinstance(kind, type):
        choices = get_args(kind)
        if all(isinstance(one, str) for one in choices):
            return st.sampled_from(choices)
    return {bool: st.booleans(), int: WHOLE, float: REAL, str: TEXT}.get(kind, JUNK)


def _within(field: FieldInfo) -> st.SearchStrategy[Any]:
    """A number that the field can have, mostly."""
    limits: dict[str, Any] = {"max_value": 2**32}
    for limit in field.metadata:
        for name in ("ge", "gt", "le"):
            if hasattr(limit, name):
                limits["max_value" if name == "le" else "min_value"] = getattr(limit, name)
    draw: Any = st.integers if field.annotation is int else st.floats
    return mixed((6, draw(**limits)), (1, _value(field.annotation)))


def _fields(kind: type[Message]) -> st.SearchStrategy[dict[str, Any]]:
    def of(name: str, field: FieldInfo) -> st.SearchStrategy[Any]:
        if name == "type":
            return st.just(field.default)
        if name == "protocol":
            return st.just(PROTOCOL) | WHOLE
        return _within(field) if field.metadata else _value(field.annotation)

    wanted = {name: of(name, field) for name, field in kind.model_fields.items()}
    needed = {name for name, field in kind.model_fields.items() if field.is_required()} | {"type"}
    return st.fixed_dictionaries(
        {name: wanted[name] for name in wanted if name in needed},
        optional={name: wanted[name] for name in wanted if name not in needed},
    )


@st.composite
def bodies(draw: st.DrawFn, kinds: Sequence[type[Message]]) -> bytes:
    """A message, now and then with a value that it cannot have."""
    value = draw(mixed(*[(1, _fields(kind)) for kind in kinds]))
    if draw(st.integers(0, 3)) == 0:
        value[draw(st.sampled_from(sorted(value)) | TEXT)] = draw(JUNK)
    return msgpack.packb(value)


def _framed(body: bytes) -> bytes:
    return codec.HEADER.pack(len(body)) + body


def streams(kinds: Sequence[type[Message]]) -> st.SearchStrategy[bytes]:
    """What one side sends: messages, the last one perhaps of a wrong length, or damaged ones."""
    whole = st.lists(bodies(kinds).map(_framed), min_size=1, max_size=6).map(b"".join)
    lengths = st.integers(0, 9) | st.sampled_from([codec.MAX_FRAME, codec.MAX_FRAME + 1, 2**32 - 1])
    wrong = st.builds(
        lambda before, length, body: before + codec.HEADER.pack(length) + body,
        *(whole, lengths, bodies(kinds)),
    )
    return mixed((3, whole), (1, wrong), (2, damaged(whole)), (1, st.binary(max_size=60)))


def _read_all(data: bytes, known: TypeAdapter[Any]) -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        while (body := await codec.read_body(reader)) is not None:
            try:
                message = codec.decode(body, known)
            except codec.MessageError as error:
                # It is told to the other side.
                answer = messages.Error(id=error.id, code="bad_message", text=str(error))
                assert len(codec.encode(answer)) < len(body) + 10_000
            else:
                assert codec.decode(codec.encode(message)[codec.HEADER.size :], known) is not None

    try:
        asyncio.run(read())
    except codec.FrameError as error:
        assert " " in str(error)


def a_front_reads_anything(data: bytes) -> None:
    """A message, or one of the two errors of frames."""
    _read_all(data, codec.daemon_messages)


def a_daemon_reads_anything(data: bytes) -> None:
    """A message, or one of the two errors of frames."""
    _read_all(data, codec.front_messages)


HELLO = codec.encode(Hello(protocol=PROTOCOL, version="x"))


def a_daemon_serves_on(streams: Sequence[bytes]) -> None:
    """Whatever some peers send, another one that is there has its answer, and so has one that comes
    afterwards."""
    asyncio.run(_visits(streams))


async def _visits(streams: Sequence[bytes]) -> None:
    house = House()
    regular = house.visitor()
    await _is_served(house, regular, 1)
    strangers = [house.visitor() for _ in streams]
    for stranger, data in zip(strangers, streams, strict=True):
        stranger.say(data)
        await house.work(4)
    await _is_served(house, regular, 2)
    for stranger in strangers:
        stranger.hang_up()
    await house.work(4)
    assert all(stranger.is_gone for stranger in strangers)
    for stranger in strangers:
        stranger.heard()  # every frame of it is a message
    late = house.visitor()
    await _is_served(house, late, 1)
    for one in (regular, late):
        one.hang_up()
    await house.work(400, until=house.is_quiet)
    assert house.is_quiet() and not house.peers


async def _is_served(house: House, visitor: Visitor, id: int) -> None:
    if id == 1:
        visitor.say(HELLO)
    request = Complete(id=id, document="a", prefix="def f(x):\n    ", suffix="")
    visitor.say(codec.encode(request))

    def is_answered() -> bool:
        return any(isinstance(one, Done) and one.id == id for one in visitor.heard())

    await house.work(400, until=is_answered)
    kinds = [type(message) for message in visitor.heard()]
    assert kinds[:2] == [Welcome, Ready] and Done in kinds, kinds
    assert is_answered()


def _with_hello(data: bytes) -> bytes:
    return HELLO + data


asked = streams((Complete, Complete, *FRONT))
visits = st.lists(mixed((4, asked.map(_with_hello)), (1, asked)), max_size=3)


def _property(
    name: str, inputs: st.SearchStrategy[Any], check: Callable[[Any], None], **more: Any
) -> Property:
    return Property("wire", name, inputs, check, **more)


WIRE = (
    _property("front-reads", streams(DAEMON), a_front_reads_anything, budget=150),
    _property("daemon-reads", streams(FRONT), a_daemon_reads_anything, budget=150),
    _property("daemon-serves", visits, a_daemon_serves_on, budget=100),
)
