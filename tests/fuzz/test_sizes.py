"""Twice as much of what is large takes about twice as long: counted in calls of functions, not in time."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from lsprotocol import types

from completion_ls.config import sources
from completion_ls.lsp.channel import Malformed, read_frame
from completion_ls.lsp.documents import Document
from completion_ls.wire import codec
from completion_ls.wire.messages import Cancel

Work = Callable[[], object]


def calls(work: Work) -> int:
    """Calls of functions, Python's own included."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def settings(size: int) -> Work:
    """An editor sends so many settings that there are not."""
    found = {f"x{number}": {} for number in range(size)}
    return lambda: sources.resolve([("initializationOptions", found)])


def frames(size: int) -> Work:
    """So many small frames in one piece."""
    data = codec.encode(Cancel(id=1)) * size

    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        while (body := await codec.read_body(reader)) is not None:
            codec.decode(body, codec.front_messages)

    return lambda: asyncio.run(read())


def no_frames(size: int) -> Work:
    """So many lines that are no header."""
    stream = io.BytesIO(b"Content-Length: x\r\n" * size)

    def read() -> None:
        while True:
            try:
                if read_frame(stream) is None:
                    return
            except Malformed:
                continue

    return read


def surrogates(size: int) -> Work:
    """A position behind so many characters of two code units."""
    document = Document("file:///a", source="🥸" * size)
    return lambda: document.position(document.locate(types.Position(0, 2 * size)))


@pytest.mark.parametrize("kind", [settings, frames, no_frames, surrogates])
def test_twice_as_much_is_twice_the_work(kind: Callable[[int], Work]) -> None:
    once, twice = calls(kind(500)), calls(kind(1000))
    assert twice < 2.2 * once + 50


@pytest.mark.parametrize("line", ["a\n", "(" * 50 + "\r\n"])
def test_an_edit_costs_what_it_touches(line: str) -> None:
    def edits(lines: int) -> int:
        document = Document("file:///a", source=line * lines)
        assert document.end.line == lines
        at = types.Position(lines // 2, 1)
        change = types.TextDocumentContentChangePartial(types.Range(at, at), "x\ny")
        return calls(lambda: document.apply_change(change))

    assert edits(100_000) == edits(1000)


def test_a_damaged_model_is_not_read_whole(tmp_path: Path) -> None:
    """A file of zeros: nothing of it is a header."""
    from completion_ls.models.local import _whole_safetensors

    file = tmp_path / "model.safetensors"
    with file.open("wb") as stream:
        stream.write((10**11).to_bytes(8, "little"))
        stream.truncate(2 * 10**11)
    assert not _whole_safetensors(file)
