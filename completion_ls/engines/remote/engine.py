"""The engine whose tokens come from a server.

Jobs are kept, and the next one is chosen, on the thread that steps the engine. What goes over the network
goes on a thread of its own, with an event loop, one task a job; what comes is put into a queue, from which
`step` takes it. A server computes several jobs at once, so here it is decided which are asked for now.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from tokenizers import Tokenizer

from completion_ls.config import log_form
from completion_ls.config.settings import RemoteSettings
from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.contract import EngineStats, Event, Finish, Job, JobFailed, Lane
from completion_ls.engines.jobs import RunningJob, check_job, count_by_lane, first_of
from completion_ls.engines.remote.abilities import Abilities
from completion_ls.engines.remote.answer import Answer, Desk, Figures, NoRoom
from completion_ls.engines.remote.ask import Server
from completion_ls.engines.remote.breaker import FIRST_PAUSE_S, LAST_PAUSE_S, Breaker
from completion_ls.engines.remote.covering import Places
from completion_ls.engines.remote.errors import ServerError
from completion_ls.engines.remote.llama_cpp import LlamaCpp
from completion_ls.engines.remote.openai import OpenAi
from completion_ls.engines.remote.probe import client_of, probe
from completion_ls.engines.remote.slots import Slots
from completion_ls.engines.remote.texts import Marks, Texts

log = logging.getLogger(__name__)

WAIT_S = 0.002
"""So long `step` waits for news at most: a job that comes meanwhile waits as long."""
AT_ONCE = 8
"""Most jobs that are asked for at once, of a server that does not say how many it computes."""
CONTEXT = 8192
"""Where the server does not say what it holds."""
JOIN_S = 5.0


@dataclass(slots=True, eq=False)
class _Asked(RunningJob):
    """A job, and its answer where it is asked for now."""

    task: Future[None] | None = None
    told: list[int] = field(default_factory=list)
    """Of the output, what `step` has handed out, ..."""
    last: Event | None = None
    """... and the last event."""


class RemoteEngine:
    """An `Engine`. Its numbers of prompt tokens are those that the server tells, where it does; else every
    prompt counts as computed."""

    def __init__(
        self,
        network: Network,
        abilities: Abilities,
        tokenizer: Tokenizer,
        marks: Marks | None = None,
    ) -> None:
        """`network` is this engine's own, and closed with it; `marks` tell the parts of a prompt where the
        server is to make the FIM prompt of them."""
        self.abilities = abilities
        self._network = network
        self._tokenizer = tokenizer
        self._size = tokenizer.get_vocab_size(with_added_tokens=True)
        self._jobs: dict[int, _Asked] = {}
        self._favoured: Hashable = None
        self._news: queue.SimpleQueue[_News] = queue.SimpleQueue()
        self._figures = Figures()
        self._broken = ""
        self._reused = self._computed = self._generated = 0
        self._at_once = abilities.slots or AT_ONCE
        self._closed = False
        self._desk = self._make_desk(marks)

    @property
    def max_context(self) -> int:
        """See `Engine`."""
        return self.abilities.max_context or CONTEXT

    @property
    def passes(self) -> int:
        """Parts of answers that have come: each was a pass of the model at least."""
        return self._figures.passes

    @property
    def server_name(self) -> str:
        """Its host, with the port."""
        return self._network.client.name

    def add(self, job: Job) -> None:
        """See `Engine`. Raises ValueError also where tokens are given or other choices wanted: no server
        tells how probable they are in one request."""
        check_job(job, self.max_context, self._size, has_tokenizer=True)
        if job.given or job.others:
            raise ValueError("A server cannot be asked for tokens that are given, nor for others.")
        self._jobs[job.id] = _Asked(job, job.lane)
        self._start()

    def cancel(self, job_id: int) -> None:
        """See `Engine`. The connection is closed at once."""
        running = self._jobs.pop(job_id, None)
        if running and running.task:
            running.task.cancel()

    def promote(self, job_id: int, lane: Lane) -> None:
        """See `Engine`."""
        if running := self._jobs.get(job_id):
            running.lane = lane

    def favour(self, front: Hashable) -> None:
        """See `Engine`."""
        self._favoured = front

    def step(self) -> list[Event]:
        """See `Engine`: what has come, or nothing after a moment in which nothing came. Raises JobFailed
        where the server failed, and ServerError where it has another model now."""
        if self._broken:
            raise ServerError(self._broken)
        self._start()
        if not self._jobs:
            return []
        try:
            news = self._news.get(timeout=WAIT_S)
        except queue.Empty:
            return []
        return self._take(news)

    def stats(self) -> EngineStats:
        """See `Engine`."""
        jobs = self._jobs.values()
        asked = sum(running.task is not None for running in jobs)
        return EngineStats(
            passes=self.passes,
            prompt_tokens_reused=self._reused,
            prompt_tokens_computed=self._computed,
            tokens_generated=self._generated,
            jobs_active=len(jobs),
            sequences_cached=0,
            sequences_in_use=asked,
            kv_bytes=0,
            kv_bytes_limit=0,
            weight_bytes=0,
            drafting=(),
            lanes=count_by_lane((running.lane, running.begun) for running in jobs),
            kv_by_document={},
        )

    def figures(self) -> dict[str, Any]:
        """What there is to say of the server."""
        return {
            "drafting": {},  # which is the server's own affair
            "server": self._network.client.name,
            "server_software": self.abilities.software,
            "server_model": self.abilities.model,
            "server_by_tokens": self.abilities.by_tokens,
            "server_requests": self._figures.requests,
            "server_retries": self._network.client.retries,
            "server_words_covered": self._figures.words,
            "server_words_guessed": self._figures.words_guessed,
            "server_trouble": self._desk.breaker.trouble,
        }

    def close(self) -> None:
        """See `Engine`."""
        if self._closed:
            return
        self._closed = True
        for job_id in list(self._jobs):
            self.cancel(job_id)
        self._network.close()

    # which jobs are asked for

    def _start(self) -> None:
        """Ask for the jobs whose turn it is: those that somebody waits for, in the user's window first."""
        while waiting := [running for running in self._jobs.values() if running.task is None]:
            if self._closed:
                return
            awaited = [one for one in waiting if one.lane is not Lane.BACKGROUND] or waiting
            favoured = [one for one in awaited if one.job.front == self._favoured]
            running = first_of(favoured or awaited)
            if not self._makes_room(running):
                return
            running.task = self._network.submit(self._answered(running))

    def _makes_room(self, wanted: _Asked) -> bool:
        """Whether it can be asked for now: work ahead of the user gives way."""
        asked = [running for running in self._jobs.values() if running.task]
        aside = [running for running in asked if running.lane is Lane.BACKGROUND]
        if wanted.lane is not Lane.BACKGROUND:
            # It may be in the document's own slot, where this one would have to wait for its end.
            for running in aside:
                if self._desk.slots and running.job.document == wanted.job.document:
                    self._begin_anew(running)
                    return True
        if len(asked) < self._at_once:
            return True
        if wanted.lane is Lane.BACKGROUND or not aside:
            return False
        self._begin_anew(aside[-1])
        return True

    def _begin_anew(self, running: _Asked) -> None:
        """Have it wait for its turn again. What was handed out stays; news on the way do not count."""
        if running.task:
            running.task.cancel()
        again = _Asked(running.job, running.lane, output=list(running.told), told=running.told)
        if running.last is not None:
            again.last = running.last
            again.reused, again.computed = running.last.reused, running.last.computed
            again.first_tokens = running.first_tokens
        self._jobs[running.job.id] = again

    # news

    def _take(self, news: _News) -> list[Event]:
        running = self._jobs.get(news.running.job.id)
        if running is not news.running:
            return []  # of a job that was cancelled, or is begun anew
        if isinstance(news.what, ServerError):
            del self._jobs[running.job.id]
            raise JobFailed(running.job.id, news.what)
        if news.what.finish is Finish.NO_ROOM and running.lane is not Lane.BACKGROUND:
            self._begin_anew(running)  # somebody has come to wait for it meanwhile
            return []
        event, before = news.what, running.last
        running.last = event
        running.told += event.tokens
        self._reused += event.reused - (before.reused if before else 0)
        self._computed += event.computed - (before.computed if before else 0)
        self._generated += len(event.tokens)
        if event.finish is not None:
            del self._jobs[running.job.id]
        return [event]

    async def _answered(self, running: _Asked) -> None:
        def emit(event: Event) -> None:
            self._news.put(_News(running, event))

        what: Event | ServerError
        try:
            await Answer(running, self._desk, emit).run()
            return
        except NoRoom:
            what = running.event(finish=Finish.NO_ROOM)
        except ServerError as error:
            what = error
        except Exception as error:
            log.error("an answer was not understood:\n%s", log_form.described(error))
            what = ServerError(f"What the server said was not understood ({type(error).__name__}).")
        self._news.put(_News(running, what))

    # the server

    def _make_desk(self, marks: Marks | None) -> Desk:
        client, able = self._network.client, self.abilities
        vocabulary = Vocabulary(self._tokenizer)
        is_llama = able.dialect == "llama.cpp"
        server: Server = (
            LlamaCpp(client, vocabulary, able.model) if is_llama else OpenAi(client, able)
        )
        salt = secrets.token_bytes(16)

        def session(document: str) -> str:
            return hashlib.blake2b(document.encode(), key=salt, digest_size=12).hexdigest()

        return Desk(
            server=server,
            name=client.name,
            patience_s=client.patience_s,
            abilities=able,
            vocabulary=vocabulary,
            size=self._size,
            texts=Texts(self._tokenizer, vocabulary, marks),
            places=Places(),
            slots=Slots(able.slots) if able.slots else None,
            breaker=Breaker(self._network.reach, self._trial),
            figures=self._figures,
            session=session,
        )

    async def _trial(self) -> None:
        """Whether the server is there again, and the same."""
        found = await probe(self._network.client, self._network.settings.model, self._tokenizer)
        # Whether it has kept a prompt may depend on who else asks.
        if replace(found, reuses=self.abilities.reuses) != self.abilities:
            self._broken = (
                f"The server {self._network.client.name} has come back with another model or other "
                "settings; it is looked at anew."
            )


@dataclass(frozen=True, slots=True, eq=False)
class _News:
    """What has come of a job."""

    running: _Asked
    what: Event | ServerError


class Network:
    """The thread with the event loop, and the client on it."""

    def __init__(self, settings: RemoteSettings, reach: Callable[[str], None]) -> None:
        """`reach` hears, on that thread, why the server cannot be reached, and "" when it can again.
        Raises ServerError where the settings are no address that may be used."""
        self.settings = settings
        self.reach = reach
        self.client = client_of(settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Wait for the end of a coroutine on the thread."""
        return self.submit(coroutine).result()

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Begin a coroutine on the thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Hang up, and end the thread."""
        try:
            self.submit(self._hang_up()).result(JOIN_S)
        except TimeoutError:
            log.warning("the connection to the server is slow to close")
        finally:
            self._stop()

    async def _hang_up(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.client.close()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_S)
        if not self._thread.is_alive():
            self._loop.close()


def connect(
    settings: RemoteSettings, tokenizer: Tokenizer, reach: Callable[[str], None]
) -> tuple[Network, Abilities]:
    """A way to the server, and what it can, once it is there: until then `reach` hears why it is not.
    Raises ServerError where the settings are no address that may be used."""
    network = Network(settings, reach)
    pause, was_said = FIRST_PAUSE_S, ""
    while True:
        try:
            abilities = network.run(probe(network.client, settings.model, tokenizer))
        except ServerError as error:
            if str(error) != was_said:
                reach(was_said := str(error))
            time.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_S)
            continue
        except BaseException:
            network.close()
            raise
        if was_said:
            reach("")
        return network, abilities
