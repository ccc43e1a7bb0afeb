"""What a server, or what stands between, does wrong, each for one answer (`http.Server.fail`, `.fault`).
That nobody listens is `http.Server.refusing`. `after` counts events of a stream, or of what is no stream
half its body."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from email.utils import formatdate
from itertools import chain, islice
from typing import Any

from support.remote.http import JSON, Answer, Wire, honest

DONE = b"[DONE]"
PAGE = b"<!DOCTYPE html>\n<html><title>502 Bad Gateway</title><h1>Bad Gateway</h1></html>\n"

NOT_JSON = '{"id": "cmpl-1", "choices": [{'
A_LIST = "[1, 2, 3]"
NULL_CHOICES = '{"id": "cmpl-1", "object": "text_completion", "choices": null}'
NO_TEXT = '{"id": "cmpl-1", "object": "text_completion", "choices": [{"index": 0}]}'
OTHER_TYPES = '{"id": 7, "choices": [{"index": "zero", "text": 12, "token_ids": "none"}]}'


@dataclass(frozen=True)
class Silent:
    """The request is taken, and nothing is ever said."""

    async def play(self, wire: Wire, answer: Answer) -> None:
        await wire.until_gone()


@dataclass(frozen=True)
class SlowStart:
    """So many seconds pass before the first byte."""

    seconds: float

    async def play(self, wire: Wire, answer: Answer) -> None:
        await wire.sleep(self.seconds)
        await honest(wire, answer)


@dataclass(frozen=True)
class SlowEvents:
    """So many seconds pass before each part of the body."""

    seconds: float

    async def play(self, wire: Wire, answer: Answer) -> None:
        await wire.head(answer)
        for part in answer.parts:
            await wire.sleep(self.seconds)
            await wire.data(part)
        await wire.end()


@dataclass(frozen=True)
class Hangs:
    """After some events nothing more comes, and the connection stays open."""

    after: int = 1

    async def play(self, wire: Wire, answer: Answer) -> None:
        await wire.head(answer)
        for part in islice(answer.parts, self.after):
            await wire.data(part)
        await wire.until_gone()


@dataclass(frozen=True)
class Cut:
    """The connection ends after some events: by RST (`reset`) or FIN, between events or within a line."""

    after: int = 1
    reset: bool = False
    within_line: bool = False

    async def play(self, wire: Wire, answer: Answer) -> None:
        await wire.head(answer)
        parts = iter(answer.parts)
        for part in islice(parts, self.after if answer.streams else 0):
            await wire.data(part)
        if self.within_line or not answer.streams:
            part = next(parts, b"data: ")
            await wire.data(part[: len(part) // 2])
        wire.drop(self.reset)


@dataclass(frozen=True)
class Status:
    """An error by status, in the dialect's own form. `retry_after`: seconds, or a date as HTTP writes it."""

    code: int
    retry_after: str = ""

    async def play(self, wire: Wire, answer: Answer) -> None:
        said = wire.dialect.error(self.code, "Not now.")
        headers = {"retry-after": self.retry_after} if self.retry_after else {}
        await honest(wire, Answer(self.code, [json.dumps(said).encode()], headers=headers))


def date_in(seconds: float, now: float) -> str:
    """A value for `retry_after`; `now` in seconds since the epoch."""
    return formatdate(now + seconds, usegmt=True)


@dataclass(frozen=True)
class Page:
    """A page for people, as a proxy sends where nobody is behind it; by default with an error's status."""

    code: int = 502

    async def play(self, wire: Wire, answer: Answer) -> None:
        await honest(wire, Answer(self.code, [PAGE], "text/html; charset=utf-8"))


@dataclass(frozen=True)
class Redirect:
    """The answer is elsewhere."""

    to: str
    code: int = 302

    async def play(self, wire: Wire, answer: Answer) -> None:
        await honest(wire, Answer(self.code, [b""], "text/plain", {"location": self.to}))


@dataclass(frozen=True)
class Event:
    """One event holds `data` instead of its own; the stream goes on behind it."""

    data: str
    after: int = 1

    async def play(self, wire: Wire, answer: Answer) -> None:
        wrong = b"data: " + self.data.encode() + b"\n\n"
        parts = iter(answer.parts)
        before, _ = list(islice(parts, self.after)), next(parts, None)
        await honest(wire, replace(answer, parts=chain(before, [wrong], parts)))


@dataclass(frozen=True)
class ErrorInStream:
    """The dialect's error stands in the stream, after some events, and ends it as the dialect does."""

    after: int = 1
    message: str = "The engine has died."

    async def play(self, wire: Wire, answer: Answer) -> None:
        ends = wire.dialect.error_events(self.message)
        await honest(wire, replace(answer, parts=chain(islice(answer.parts, self.after), ends)))


@dataclass(frozen=True)
class NoDone:
    """The stream ends well, but the event that says so is missing."""

    async def play(self, wire: Wire, answer: Answer) -> None:
        await honest(wire, replace(answer, parts=_without_done(answer.parts)))


def _without_done(parts: Iterable[bytes]) -> Iterator[bytes]:
    return (part for part in parts if DONE not in part)


@dataclass(frozen=True)
class EndlessLine:
    """One event that never ends: letters and no line end, until the client goes."""

    async def play(self, wire: Wire, answer: Answer) -> None:
        await wire.head(replace(answer, parts=[], streams=True))
        await wire.data(b'data: {"id": "')
        while True:
            await wire.data(b"a" * (1 << 14))


@dataclass(frozen=True)
class OtherType:
    """The answer is as it should be, but for what it says it is."""

    content_type: str = "text/html"

    async def play(self, wire: Wire, answer: Answer) -> None:
        await honest(wire, replace(answer, content_type=self.content_type))


@dataclass(frozen=True)
class NotAStream:
    """Who asked for a stream gets one JSON object of the status 200."""

    body: str = '{"choices": []}'

    async def play(self, wire: Wire, answer: Answer) -> None:
        await honest(wire, Answer(200, [self.body.encode()], JSON))


@dataclass(frozen=True)
class Twisted:
    """What `twist` makes of each event, or of the one object that the answer is. Numbers may be such as only
    Python's JSON has."""

    twist: Callable[[Any], Any]

    async def play(self, wire: Wire, answer: Answer) -> None:
        await honest(wire, replace(answer, parts=map(self._twisted, answer.parts)))

    def _twisted(self, part: bytes) -> bytes:
        begin, end = (b"data: ", b"\n\n") if part.startswith(b"data: ") else (b"", b"")
        said = part.removeprefix(begin).strip()
        if said == DONE:
            return part
        return begin + json.dumps(self.twist(json.loads(said))).encode() + end


@dataclass(frozen=True)
class Drips:
    """Each byte of the body comes alone, so many seconds after the one before."""

    seconds: float

    async def play(self, wire: Wire, answer: Answer) -> None:
        await wire.head(replace(answer, streams=True))
        for part in answer.parts:
            for byte in part:
                await wire.sleep(self.seconds)
                await wire.data(bytes([byte]))
        await wire.end()


@dataclass(frozen=True)
class Endless:
    """After some events these bytes come again and again, until the client goes."""

    part: bytes
    after: int = 1
    pause_s: float = 0.01
    code: int = 200

    async def play(self, wire: Wire, answer: Answer) -> None:
        await wire.head(replace(answer, status=self.code, streams=True))
        for part in islice(answer.parts, self.after):
            await wire.data(part)
        while True:
            await wire.sleep(self.pause_s)
            await wire.data(self.part)


@dataclass(frozen=True)
class Repeats:
    """The first event comes again and again, as if there were no limit."""

    async def play(self, wire: Wire, answer: Answer) -> None:
        first = next(iter(answer.parts))
        await Endless(first, after=0, pause_s=0.001).play(wire, answer)


@dataclass(frozen=True)
class Packed:
    """The body is packed, which nobody has asked for: as often as `layers`."""

    layers: int = 1

    async def play(self, wire: Wire, answer: Answer) -> None:
        body = b"".join(answer.parts) or b"\n" * (1 << 20)
        for _ in range(self.layers):
            body = gzip.compress(body)
        packed = {"content-encoding": ", ".join(["gzip"] * self.layers)}
        await honest(wire, replace(answer, parts=[body], headers=packed))
