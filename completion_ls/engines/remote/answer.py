"""One job's answer: what the server is asked for it, one request after the other, and the events that come
of it.

Mostly it is one request. A word that is covered may need another one first (covering.py), and so may one
that is healed (healing.py); what was asked for the word is gone on with where it has gone the right way.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace

from completion_ls.decode.covering import Covered
from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.contract import Event, Finish, Job, Lane
from completion_ls.engines.jobs import RunningJob
from completion_ls.engines.remote.abilities import Abilities
from completion_ls.engines.remote.ask import GREEDY, Ask, End, News, Part, Read, Server
from completion_ls.engines.remote.breaker import Breaker
from completion_ls.engines.remote.covering import MORE, TOP, Places, Told, Unknown, WordChoice
from completion_ls.engines.remote.errors import ServerError
from completion_ls.engines.remote.healing import Healed, Healing
from completion_ls.engines.remote.slots import Held, Slots
from completion_ls.engines.remote.texts import Texts

TAKEN = 64
"""So many tokens less than there should be in a slot are no mistake: somebody else has used it."""


TOO_MANY = 16
"""So many tokens more than were asked for, and the answer is taken to be over."""
LONGEST = 256
"""Characters of a token that was asked for, at most: there are no longer ones but of blanks."""


class NoRoom(Exception):
    """Work ahead of the user would cost what is being typed."""


@dataclass(slots=True)
class Figures:
    """What was asked of the server, in all."""

    requests: int = 0
    passes: int = 0
    words: int = 0
    """Unfinished words that were covered, ..."""
    words_guessed: int = 0
    """... of which a local engine might have chosen otherwise, for all that the server has told."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What the answers of an engine share."""

    server: Server
    name: str
    """The server's host, with the port."""
    patience_s: float
    """So long is waited for something new."""
    abilities: Abilities
    vocabulary: Vocabulary
    size: int
    """Tokens of the vocabulary."""
    texts: Texts
    places: Places
    slots: Slots | None
    breaker: Breaker
    figures: Figures
    session: Callable[[str], str]
    """What to call a document's requests."""


@dataclass(frozen=True, slots=True)
class _Item:
    """A token of an answer, or what of our tokens a part of a text is read as."""

    text: bytes
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: Mapping[int, float] | Mapping[str, float] | None


class _Stream:
    """An answer that is being read."""

    def __init__(self, before: tuple[int, ...], news: AsyncGenerator[_Item | End, None]) -> None:
        """`before` are the tokens that it stands behind."""
        self.before = before
        self.finish: Finish | None = None
        self.read: list[_Item] = []
        self._news = news

    @property
    def tokens(self) -> tuple[int, ...]:
        """What has come."""
        return tuple(token for item in self.read for token in item.tokens)

    async def next(self) -> _Item | None:
        """What comes next; None at the end. Raises ServerError."""
        if self.finish is not None:
            return None
        item = await anext(self._news)
        if isinstance(item, End):
            self.finish = item.finish
            return None
        self.read.append(item)
        return item

    async def close(self) -> None:
        """Nobody wants the rest."""
        await self._news.aclose()


class Answer:
    """The answer of one job, on the network's event loop."""

    _ended = False

    def __init__(self, running: RunningJob, desk: Desk, emit: Callable[[Event], None]) -> None:
        """`running` may have output already, of an answer that had to give way."""
        self._running = running
        self._job: Job = running.job
        self._desk = desk
        self._emit = emit
        self._counted = running.begun
        self._base = running.job.prompt[: running.base]
        self._stops = desk.texts.control(sorted(running.job.stop_token_ids))
        self._stream: _Stream | None = None
        """What is being read, and may be gone on with."""

    async def run(self) -> None:
        """Raises ServerError, and NoRoom where nothing was asked."""
        try:
            if self._job.unfinished and not self._running.output:
                if self._desk.abilities.by_tokens:
                    await self._cover()
                else:
                    await self._heal()
            await self._go_on()
        finally:
            await self._hang_up()

    async def _hang_up(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    # the unfinished word

    async def _cover(self) -> None:
        """Choose the word's tokens; what is being read then goes on behind them, if anything is."""
        choice = WordChoice(self._job, self._desk.places, self._desk.vocabulary, self._desk.size)
        while True:
            try:
                found = choice.choose()
                break
            except Unknown as unknown:
                await self._learn(choice, unknown)
        self._desk.figures.words += 1
        self._desk.figures.words_guessed += not choice.is_exact
        self._tell_word(found)
        if (stream := self._stream) is None or self._ended:
            return
        while len(stream.tokens) < len(found.tokens) and _agree(stream.tokens, found.tokens):
            if await self._next_told(stream) is None:
                break
        if stream.tokens != found.tokens:
            await self._hang_up()

    async def _learn(self, choice: WordChoice, unknown: Unknown) -> None:
        """Ask for what the choice depends on."""
        most = min(self._desk.abilities.logprobs, MORE)
        for branch in unknown.branches:
            place = (*choice.before, *branch)
            stream = self._stream
            if stream and not unknown.more and _agree(stream.tokens, branch):
                # It is on this way itself.
                while len(stream.tokens) < len(branch) + 1 and _agree(stream.tokens, branch):
                    if await self._next_told(stream) is None:
                        break
                if self._desk.places.get(place):
                    continue
            is_root = not branch and stream is None and not unknown.more
            if is_root and self._job.sampling.temperature == 0 and not self._running.banned:
                # The most probable token begins with the word, more often than not.
                self._stream = self._open(place, self._job.max_new_tokens, min(TOP, most))
                await self._next_told(self._stream)
                if self._desk.places.get(place):
                    continue
            if self._desk.slots is not None:
                await self._hang_up()  # in a slot, the next request would wait for its end
            await self._look(place, most if unknown.more else min(TOP, most))

    async def _look(self, place: tuple[int, ...], number: int) -> None:
        """Ask for what may stand at a place, by the most probable token: one that was drawn would be told of
        beside the most probable ones, and look as if none that was left out were more probable."""
        desk = self._desk
        ask, slot = await self._ask(place, 1, number)
        ask = replace(ask, sampling=GREEDY)
        if desk.slots and slot is not None:
            desk.slots.put(slot, self._owner, place)
        desk.figures.requests += 1
        try:
            with self._using(slot):
                async with self._patience(desk.patience_s):
                    found = await desk.server.look(ask)
        except ServerError as error:
            desk.breaker.failed(error)
            raise
        desk.breaker.succeeded()
        desk.figures.passes += 1
        self._count(found.read or Read(len(place), 0))
        most = min(desk.abilities.logprobs, MORE)
        desk.places.put(place, Told(found.top, is_all=number >= most))

    async def _next_told(self, stream: _Stream) -> _Item | None:
        """The next token, and what it tells of its place."""
        place = (*stream.before, *stream.tokens)
        item = await stream.next()
        if item and item.top and len(item.tokens) == 1:
            most = min(self._desk.abilities.logprobs, MORE)
            top = {int(token): value for token, value in item.top.items()}
            self._desk.places.put(place, Told(top, is_all=len(top) >= most))
        return item

    def _tell_word(self, found: Covered) -> None:
        kept = self._running.kept(found)
        self._running.output += kept
        event = self._running.covered(found, kept)
        self._ended = event.finish is not None
        self._emit(event)

    async def _heal(self) -> None:
        """As `_cover`, by texts."""
        word, desk = self._job.unfinished, self._desk
        assert word is not None
        half = desk.texts.render(self._base).half
        healing = Healing(half + word.text)
        stream = self._stream = self._open(self._base, self._job.max_new_tokens, TOP)
        state = Healed.OPEN
        while state is Healed.OPEN:
            item = await stream.next()
            state = healing.add(item.text) if item else Healed.NO
        if state is Healed.YES:
            text = bytes(healing.come[len(half) :]).decode(errors="ignore")
            tokens = desk.vocabulary.read(text)
            logprobs = [sum(item.logprobs) for item in stream.read]
            typed = sum(logprobs[:-1]) + _typed_logprob(stream.read, healing.typed)
            self._tell_word(_spread(tokens, sum(logprobs), min(0.0, typed)))
            return
        await self._hang_up()
        tokens = desk.vocabulary.read(word.text.decode(errors="ignore"))
        self._tell_word(_spread(tokens, 0.0, 0.0))

    # what follows

    async def _go_on(self) -> None:
        running, job = self._running, self._job
        while not self._ended:
            left = job.max_new_tokens - running.produced
            if running.banned:
                left = min(left, job.min_new_tokens - running.produced)
            # What the word has left may have come to its own limit: that says nothing of what follows.
            is_new = self._stream is None
            stream = self._stream or self._open((*self._base, *running.output), left, 1)
            self._stream, before = stream, running.produced
            while not self._ended and (item := await stream.next()):
                self._tell(item)
            await self._hang_up()
            if self._ended:
                return
            has_nothing = is_new and running.produced == before
            is_over = has_nothing or not self._desk.abilities.by_tokens
            if stream.finish is Finish.STOP or is_over or running.full:
                self._end(stream.finish or Finish.STOP)

    def _tell(self, item: _Item) -> None:
        """Emit what has come, as far as it was asked for and up to what ends it."""
        running, stops = self._running, self._job.stop_token_ids
        room = self._job.max_new_tokens - running.produced
        if room <= 0:
            self._end(Finish.LENGTH)
            return
        tokens, logprobs = item.tokens[:room], item.logprobs[:room]
        for number, token in enumerate(tokens):
            if token in stops:
                running.output += tokens[:number]
                self._emit_event(tokens[:number], logprobs[:number], Finish.STOP, logprobs[number])
                return
        if not self._desk.abilities.by_tokens and (end := self._control_at(item.text)) is not None:
            tokens = self._desk.vocabulary.read(item.text[:end].decode(errors="ignore"))
            logprobs = _first_has_all(tokens, sum(item.logprobs))
            running.output += tokens
            self._emit_event(tokens, logprobs, Finish.STOP)
            return
        running.output += tokens
        # Some servers say at the very end how much of the prompt they had.
        is_counted = self._counted or not self._desk.abilities.counts_reuse
        self._emit_event(tokens, logprobs, running.full if is_counted else None)

    def _control_at(self, text: bytes) -> int | None:
        """Where the name of a token that ends an answer stands in a text; None where there is none."""
        places = [text.find(stop.encode()) for stop in self._stops]
        return min((place for place in places if place >= 0), default=None)

    def _end(self, finish: Finish) -> None:
        self._emit_event((), (), finish)

    def _emit_event(
        self,
        tokens: tuple[int, ...],
        logprobs: tuple[float, ...],
        finish: Finish | None,
        stop_logprob: float | None = None,
    ) -> None:
        self._ended = finish is not None
        self._emit(self._running.event(tokens, logprobs, finish, stop_logprob))

    # requests

    def _open(self, before: tuple[int, ...], most_tokens: int, top: int) -> _Stream:
        return _Stream(before, self._items(before, most_tokens, top))

    async def _items(
        self, before: tuple[int, ...], most_tokens: int, top: int
    ) -> AsyncGenerator[_Item | End, None]:
        desk = self._desk
        by_tokens = desk.abilities.by_tokens
        ask, slot = await self._ask(before, most_tokens, top)
        key = _held(ask)
        expected = desk.slots.expected(slot, key) if desk.slots and slot is not None else 0
        if desk.slots and slot is not None:
            desk.slots.put(slot, self._owner, key)
        come: list[int] = []
        parts = 0
        with self._using(slot):
            async with aclosing(self._news(ask)) as news:
                async for one in news:
                    parts += isinstance(one, Part)
                    if max(parts, len(come) if by_tokens else 0) > most_tokens + TOO_MANY:
                        yield End(Finish.LENGTH)
                        return
                    match one:
                        case Read(reused=reused):
                            self._count(one)
                            taken = by_tokens and reused + TAKEN < expected
                            if desk.slots and slot is not None and taken:
                                desk.slots.was_taken(slot)
                                slot = None
                                await self._check_model()
                        case Part():
                            for item in self._of(one):
                                come += item.tokens
                                if desk.slots and slot is not None and by_tokens:
                                    desk.slots.put(slot, self._owner, before, tuple(come[:-1]))
                                yield item
                        case End():
                            yield one

    async def _check_model(self) -> None:
        """Somebody else uses the server, or it was started anew, perhaps with another model."""
        try:
            await self._desk.server.check_model()
        except ServerError as error:
            self._desk.breaker.failed(error)
            raise

    def _using(self, slot: int | None) -> AbstractContextManager[None]:
        slots = self._desk.slots
        return slots.using(slot) if slots and slot is not None else nullcontext()

    async def _ask(
        self, before: tuple[int, ...], most_tokens: int, top: int
    ) -> tuple[Ask, int | None]:
        """What is asked for, and the slot that it goes into. Raises ServerError where nothing is asked."""
        desk, job = self._desk, self._job
        desk.breaker.check()
        ask = Ask(
            before if desk.abilities.by_tokens else desk.texts.render(before).prompt,
            most_tokens,
            job.sampling,
            top if desk.abilities.logprobs else 0,
            job.stop_token_ids,
            self._running.banned,
            None,
            desk.session(job.document),
            job.fresh,
        )
        slot = await self._slot(_held(ask))
        return replace(ask, slot=slot), slot

    async def _news(self, ask: Ask) -> AsyncGenerator[News, None]:
        """What the server says; the breaker and the figures hear of it."""
        desk = self._desk
        desk.figures.requests += 1
        now = asyncio.get_running_loop().time
        has_come, began = False, now()
        try:
            async with aclosing(desk.server.stream(ask)) as news:
                until, one = now() + desk.patience_s, None
                while not isinstance(one, End):
                    async with self._patience(until - now()):
                        one = await anext(news)
                    if isinstance(one, Part):
                        desk.breaker.heard()
                        has_come = True
                        desk.figures.passes += 1
                        if not self._counted and not desk.abilities.counts_reuse:
                            self._count(Read(len(self._job.prompt), 0))
                    yield one
                    if isinstance(one, Part):
                        until = now() + desk.patience_s
        except ServerError as error:
            desk.breaker.failed(error)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            if has_come:  # nobody wants the rest, and what came was well
                desk.breaker.succeeded()
            else:
                silence = self._silence(lasts=True)
                desk.breaker.given_up(now() - began, desk.patience_s, silence)
            raise
        desk.breaker.succeeded()

    @asynccontextmanager
    async def _patience(self, seconds: float) -> AsyncGenerator[None, None]:
        """Raise ServerError where it takes longer."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise self._silence() from None

    def _silence(self, *, lasts: bool = False) -> ServerError:
        text = f"The server {self._desk.name} has said nothing new for {self._desk.patience_s:g} s."
        return ServerError(text, lasts=lasts)

    def _of(self, part: Part) -> list[_Item]:
        vocabulary = self._desk.vocabulary
        if part.tokens and self._desk.abilities.by_tokens:
            logprobs = part.logprobs or (0.0,) * len(part.tokens)
            tops = part.tops or (None,) * len(part.tokens)
            return [
                _Item(vocabulary.bytes_of(token), (token,), (logprob,), top)
                for token, logprob, top in zip(part.tokens, logprobs, tops, strict=True)
            ]
        text = part.text[: LONGEST * self._job.max_new_tokens]
        tokens = vocabulary.read(text)
        top = part.tops[0] if len(part.tops) == 1 else None
        logprobs = _first_has_all(tokens, sum(part.logprobs))
        return [_Item(text.encode(), tokens, logprobs, top)] if text else []

    def _count(self, read: Read) -> None:
        """Of several requests for a word all count, of those that go on behind the prompt none."""
        if not self._counted:
            self._running.reused += read.reused
        if not self._counted or self._job.unfinished:
            self._running.computed += read.computed
        self._counted = True

    @property
    def _owner(self) -> str:
        return "" if self._running.lane is Lane.BACKGROUND else self._job.document

    async def _slot(self, key: Held) -> int | None:
        slots = self._desk.slots
        if slots is None or self._job.fresh:
            return None
        if self._running.lane is Lane.BACKGROUND:
            if (slot := slots.ahead(key)) is None:
                raise NoRoom
            return slot
        if (slot := slots.of(self._job.document, key)) is not None:
            return slot
        try:
            idle = await self._desk.server.idle_slots()
        except ServerError:
            idle = []  # what is wrong there, the request itself will tell
        return slots.another(idle)


def _held(ask: Ask) -> Held:
    """What a slot holds of a prompt."""
    return ask.prompt if isinstance(ask.prompt, tuple) else tuple(map(ord, str(ask.prompt)))


def _agree(tokens: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether one of them begins with the other."""
    return tokens[: len(others)] == others[: len(tokens)]


def _first_has_all(tokens: tuple[int, ...], logprob: float) -> tuple[float, ...]:
    return (logprob, *[0.0] * (len(tokens) - 1)) if tokens else ()


def _spread(tokens: tuple[int, ...], logprob: float, typed_logprob: float) -> Covered:
    return Covered(tokens, _first_has_all(tokens, logprob), typed_logprob)


def _typed_logprob(read: list[_Item], typed: bytes) -> float:
    """How probable the last item made what was typed, by all ways that the server told of; where it told
    of one only, as probable as that."""
    last = read[-1]
    rest = typed[sum(len(item.text) for item in read[:-1]) :].decode(errors="ignore")
    agree = [
        math.exp(value)
        for text, value in (last.top or {}).items()
        if isinstance(text, str) and text.startswith(rest)
    ]
    return math.log(min(1.0, sum(agree))) if agree else sum(last.logprobs)
