"""The thread that owns the engine: it loads it, takes jobs, steps, and hands out text.

Between two steps it looks into its inbox, so a cancel or a newer keystroke takes effect within one
step. It talks to the event loop only through `publish`, which must be safe to call from here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from completion_ls.config import log_form
from completion_ls.daemon.aside import Aside
from completion_ls.daemon.audit import Output
from completion_ls.daemon.detokenize import Detokenizer
from completion_ls.daemon.foreground import Foreground
from completion_ls.daemon.load import Loaded, load
from completion_ls.daemon.pieces import Piece, cut, pieces
from completion_ls.daemon.repository import repository_of
from completion_ls.daemon.statistics import Served, Statistics, of_engine
from completion_ls.daemon.weighing import Weighing, weigh
from completion_ls.engines.contract import Event, Finish, Job, JobFailed, Lane, Sampling
from completion_ls.engines.remote.errors import ServerError
from completion_ls.wire.endpoint import DaemonConfig
from completion_ls.wire.messages import (
    Chunk,
    Complete,
    Done,
    Error,
    Loading,
    Message,
    Reach,
    Ready,
)

log = logging.getLogger(__name__)

_NO_MEMORY = "The engine ran out of memory; lower engine.kv_memory_mb or prompt.max_tokens."


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message for one peer, or for all (`peer` None)."""

    peer: Hashable | None
    message: Message


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The model cannot be loaded: the text says why. The thread has ended."""

    text: str


@dataclass(frozen=True, slots=True)
class EngineBroken:
    """The engine failed in a way that leaves its state unknown. The thread has ended."""

    text: str


Published = Outgoing | LoadFailed | EngineBroken


@dataclass(slots=True)
class TextJob:
    """A job as text, on its way through the engine. While it is `unawaited`, nobody waits for it:
    it is ahead of the user; `passes` and `seconds` in the engine are counted from when somebody does."""

    peer: Hashable
    request: Complete
    arrived: float
    job: Job
    text: Detokenizer
    unawaited: bool
    output: Output = field(default_factory=Output)
    unsent: list[Piece] = field(default_factory=list)
    """Without text yet: half characters."""
    generated: int = 0
    first_token_ms: float = 0.0
    has_text: bool = False
    passes: int = 0
    seconds: float = 0.0
    reused: int = 0
    computed: int = 0
    weighing: Weighing | None = None
    """Where lines are asked for that are weighed: `job` is then the one of them under way, and no text
    is made of its tokens."""

    def count(self, event: Event) -> tuple[int, int]:
        """The prompt tokens that were reused and computed since the last event."""
        reused, computed = event.reused - self.reused, event.computed - self.computed
        self.reused, self.computed = event.reused, event.computed
        return reused, computed


@dataclass(frozen=True, slots=True, eq=False)
class _Submit:
    """A job in the inbox. While the model loads, most are cancelled before their turn comes."""

    worker: Worker
    peer: Hashable
    request: Complete
    arrived: float

    def __call__(self, loaded: Loaded) -> None:
        self.worker._add(loaded, self.peer, self.request, self.arrived)

    def is_named(self, peer: Hashable, id: int) -> bool:
        return self.peer == peer and self.request.id == id

    def cancelled(self) -> Callable[[Loaded], None]:
        """What takes its place in the inbox, where it is cancelled before its turn: the text goes."""
        figures, is_awaited = self.worker.statistics, self.request.lane != "background"

        def count(_: Loaded) -> None:
            figures.jobs += 1
            figures.awaited += is_awaited
            figures.cancelled += 1

        return count


class Worker(threading.Thread):
    """Runs until `close`. Every public method may be called from any thread."""

    def __init__(self, config: DaemonConfig, publish: Callable[[Published], None]) -> None:
        super().__init__(name="engine", daemon=True)
        self.statistics = Statistics()
        self._config = config
        self._publish = publish
        self._inbox: deque[Callable[[Loaded], None]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._jobs: dict[int, TextJob] = {}
        self._by_name: dict[tuple[Hashable, int], int] = {}
        self._aside = Aside(config.daemon.audit)
        self._foreground = Foreground()
        self._last_id = 0
        self._passes = 0
        self._waited_s = 0.0
        """Seconds of steps in which a server has said nothing, since it said something."""

    @property
    def backlog(self) -> int:
        """What waits in the inbox."""
        return len(self._inbox)

    def submit(self, peer: Hashable, request: Complete) -> None:
        """Take a job; while the model loads it waits."""
        self._put(_Submit(self, peer, request, time.perf_counter()))

    def cancel(self, peer: Hashable, id: int, *, complete: bool = False) -> None:
        """Drop one job of a peer. `complete`: it gave all that was wanted of it."""
        with self._wake:
            for waiting in self._inbox:
                if isinstance(waiting, _Submit) and waiting.is_named(peer, id):
                    self._inbox.remove(waiting)
                    self._inbox.append(waiting.cancelled())
                    return
        self._put(lambda loaded: self._drop(loaded, peer, id, complete=complete))

    def promote(self, peer: Hashable, id: int) -> None:
        """Serve a background job as a keystroke from now on."""
        self._put(lambda loaded: self._promote(loaded, peer, id))

    def came_into_view(self, peer: Hashable) -> None:
        """The user is at this peer's window now, as one who asks by hand."""
        self._put(lambda loaded: self._note_user(loaded, peer, Lane.MANUAL, time.perf_counter()))

    def answered_without_pass(self, peer: Hashable) -> None:
        """Somebody types at this peer, and needed no engine for it."""
        self._put(lambda loaded: self._typed_without_pass(loaded, peer))

    def cancel_all(self, peer: Hashable) -> None:
        """Drop what a peer that has gone had asked for; the texts that wait go at once."""
        with self._wake:
            for index, waiting in enumerate(self._inbox):
                if isinstance(waiting, _Submit) and waiting.peer == peer:
                    self._inbox[index] = waiting.cancelled()
        self._put(lambda loaded: self._drop_all(loaded, peer))

    def snapshot(self, answer: Callable[[dict[str, Any]], None]) -> None:
        """Have `answer` called, on the engine thread, with figures about the engine."""
        self._put(lambda loaded: answer(self._figures(loaded)))

    def close(self) -> None:
        """End the thread after the step in progress."""
        with self._wake:
            self._closing = True
            self._wake.notify()

    def run(self) -> None:
        """Load, then serve."""
        try:
            loaded = load(self._config, self._loading, self._reached)
        except Exception as error:
            text = _sentence(error)
            log.error("cannot load: %s", text, exc_info=log.isEnabledFor(logging.DEBUG))
            self._publish(LoadFailed(text))
            return
        self._send(None, Ready(model=loaded.name, max_context=loaded.engine.max_context))
        try:
            self._serve(loaded)
        except Exception as error:
            log.error("the engine failed:\n%s", log_form.described(error))
            self._publish(EngineBroken(_broken(error)))
        finally:
            loaded.engine.close()

    def _serve(self, loaded: Loaded) -> None:
        while True:
            if not self._jobs:
                self._waited_s = 0.0
            with self._wake:
                self._wake.wait_for(
                    lambda: self._closing or self._inbox or self._jobs or self._aside.busy
                )
                if self._closing:
                    return
            while action := self._next_action():
                action(loaded)
            began = time.perf_counter()
            try:
                events = loaded.engine.step()
            except JobFailed as failure:
                self._account(loaded, [], time.perf_counter() - began)
                self._job_failed(failure)
                continue
            self._account(loaded, events, time.perf_counter() - began)
            for event in events:
                if self._aside.owns(event.job_id):
                    self._aside.advance(event)
                else:
                    self._advance(loaded, event)

    def _next_action(self) -> Callable[[Loaded], None] | None:
        with self._wake:  # a cancel, on another thread, may take the last one away
            return self._inbox.popleft() if self._inbox else None

    def _put(self, action: Callable[[Loaded], None]) -> None:
        with self._wake:
            self._inbox.append(action)
            self._wake.notify()

    def _send(self, peer: Hashable | None, message: Message) -> None:
        self._publish(Outgoing(peer, message))

    def _loading(self, text: str, fraction: float) -> None:
        self._send(None, Loading(text=text, fraction=min(1.0, max(0.0, fraction))))

    def _reached(self, trouble: str) -> None:
        self._send(None, Reach(ok=not trouble, text=trouble))

    def _add(self, loaded: Loaded, peer: Hashable, request: Complete, arrived: float) -> None:
        if (peer, request.id) in self._by_name:
            again = f"The id {request.id} is that of a job that is still running."
            self._send(peer, Error(code="job", text=again))
            return
        weighing = None
        self._note_user(loaded, peer, Lane[request.lane.upper()], arrived)
        try:
            if request.ways and not loaded.weighs:
                self._send(peer, _nothing(request))
                return
            if request.ways:
                budget = _budget(loaded, request)
                weighing = weigh(
                    loaded.prompts, loaded.tokenizer, request, budget, self._new_id, peer
                )
                if weighing is None:
                    self._send(peer, _nothing(request))
                    return
                job = weighing.job
                text = Detokenizer(loaded.tokenizer, job.prompt)
            else:
                job, text = self._job(loaded, peer, request)
            loaded.engine.add(job)
        except Exception as error:
            self.statistics.failed += 1
            self._send(peer, Error(id=request.id, code="job", text=_sentence(error)))
            return
        unawaited = job.lane is Lane.BACKGROUND
        self.statistics.jobs += 1
        self.statistics.awaited += not unawaited
        self._jobs[job.id] = TextJob(
            peer, request, arrived, job, text, unawaited, weighing=weighing
        )
        self._by_name[peer, request.id] = job.id

    def _note_user(self, loaded: Loaded, peer: Hashable, lane: Lane, now: float) -> None:
        """Somebody is at this peer, or waits there, on this lane: perhaps the user is there now."""
        if lane is Lane.KEY:
            front = self._foreground.front
            waited = any(job.peer == front and not job.unawaited for job in self._jobs.values())
            self._foreground.typed(peer, now, waited=waited)
        elif lane is Lane.MANUAL:
            self._foreground.came(peer, now)
        if self._foreground.front == peer:
            loaded.engine.favour(peer)

    def _typed_without_pass(self, loaded: Loaded, peer: Hashable) -> None:
        self.statistics.without_pass += 1
        self._note_user(loaded, peer, Lane.KEY, time.perf_counter())

    def _job(self, loaded: Loaded, peer: Hashable, request: Complete) -> tuple[Job, Detokenizer]:
        """What the engine is asked for, and what makes text of its tokens."""
        prompt = loaded.prompts.build(
            request.prefix,
            request.suffix,
            context=request.context,
            budget=_budget(loaded, request),
            suffix_share=request.suffix_share,
            repository=repository_of(request),
        )
        job = Job(
            id=self._new_id(),
            prompt=prompt.ids,
            max_new_tokens=request.max_tokens,
            stop_token_ids=loaded.prompts.stop_token_ids,
            sampling=Sampling(request.temperature, request.top_p, 0, request.seed),
            lane=Lane[request.lane.upper()],
            unfinished=prompt.unfinished,
            front=peer,
            document=request.document,
        )
        return job, Detokenizer(loaded.tokenizer, prompt.before, len(prompt.typed))

    def _drop(self, loaded: Loaded, peer: Hashable, name: int, *, complete: bool = False) -> None:
        id = self._by_name.get((peer, name))
        if id is not None:
            job = self._forget(id)
            loaded.engine.cancel(id)
            self.statistics.cancelled += not complete
            self.statistics.wasted_s += 0.0 if complete else job.seconds
            if complete and not job.weighing:
                self._work_aside(self._aside.answered, loaded.engine, job.job, job.output)

    def _promote(self, loaded: Loaded, peer: Hashable, name: int) -> None:
        id = self._by_name.get((peer, name))
        if id is not None:
            job = self._jobs[id]
            self._note_user(loaded, peer, Lane.KEY, time.perf_counter())
            loaded.engine.promote(id, Lane.KEY)
            if job.unawaited:
                job.unawaited, job.arrived = False, time.perf_counter()
                self.statistics.awaited += 1
                self.statistics.awaited_without_pass += job.has_text
                if job.has_text:
                    self._served(loaded, job)

    def _drop_all(self, loaded: Loaded, peer: Hashable) -> None:
        self._foreground.left(peer)
        for job in [job for job in self._jobs.values() if job.peer == peer]:
            self._drop(loaded, peer, job.request.id)
        self.statistics.by_front.pop(peer, None)

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _forget(self, id: int) -> TextJob:
        job = self._jobs.pop(id)
        del self._by_name[job.peer, job.request.id]
        return job

    def _job_failed(self, failure: JobFailed) -> None:
        is_server = isinstance(failure.cause, ServerError)
        self._waited_s = 0.0
        if not is_server:  # of which the engine has written its sentence
            log.error("job failed:\n%s", log_form.described(failure.cause))
        if self._aside.owns(failure.job_id):
            self._aside.drop(failure.job_id)
        elif is_server:
            self._fail(failure.job_id, str(failure.cause), "server")
        else:
            self._fail(failure.job_id, _failed(failure.cause))

    def _fail(self, id: int, text: str, code: Literal["job", "server"] = "job") -> None:
        job = self._forget(id)
        self.statistics.failed += 1
        self._send(job.peer, Error(id=job.request.id, code=code, text=text))

    def _account(self, loaded: Loaded, events: list[Event], seconds: float) -> None:
        """Count what a step took, for the jobs that it was done for: with the steps before it, where they
        waited for it."""
        figures = self.statistics
        figures.engine_s += seconds
        if not events:
            self._waited_s += seconds
            return
        seconds, self._waited_s = seconds + self._waited_s, 0.0
        passes, self._passes = self._passes, loaded.engine.passes
        for event in events:
            job = self._jobs.get(event.job_id)
            # Without a job of a peer it is one of our own.
            reused, computed = job.count(event) if job else self._aside.count(event)
            if job:
                figures.by_front[job.peer] += seconds / len(events)
            if job is None or job.unawaited:
                figures.background_s += seconds / len(events)
                figures.background_reused += reused
                figures.background_computed += computed
            else:
                job.seconds += seconds / len(events)
                job.passes += self._passes - passes
                if job.first_token_ms and not job.weighing:  # which reads more than it writes
                    figures.decoded += len(event.tokens)
                    figures.decode_s += seconds / len(events)

    def _advance(self, loaded: Loaded, event: Event) -> None:
        job = self._jobs[event.job_id]
        now_ms = (time.perf_counter() - job.arrived) * 1e3
        if not job.first_token_ms and (event.tokens or event.finish):
            job.first_token_ms = now_ms
            if not job.unawaited:
                self.statistics.recent.append(Served(event.reused, event.computed, now_ms))
        job.generated += len(event.tokens)
        if job.weighing:
            self._weigh(loaded, job, job.weighing, event, now_ms)
            return
        job.output += event
        new = pieces(event, job.text)
        finish = str(event.finish) if event.finish else ""
        if job.request.stop_at_line and any("\n" in piece.text for piece in new):
            new = cut(new)
            if event.finish is None:
                loaded.engine.cancel(event.job_id)
            finish = "line"
        job.unsent += new
        text = "".join(piece.text for piece in job.unsent)
        first_text = not job.has_text and bool(text.strip() or finish)  # blanks are not shown
        if first_text:
            job.has_text = True
            self.statistics.awaited_without_pass += not job.unawaited and not job.passes
        if text:
            self._send(job.peer, _chunk(job, job.unsent, event))
            job.unsent = []
        if finish:
            self._forget(event.job_id)
            self._send(job.peer, _done(job, finish, event, now_ms))
            self._work_aside(self._aside.answered, loaded.engine, job.job, job.output)
        if first_text and not job.unawaited:
            self._served(loaded, job)

    def _weigh(
        self, loaded: Loaded, job: TextJob, weighing: Weighing, event: Event, now_ms: float
    ) -> None:
        """Go on with the next job of a search, or tell what it has found."""
        if event.finish is Finish.NO_ROOM:  # without it nobody knows which line is best
            self._forget(event.job_id)
            self._send(job.peer, _done(job, event.finish, event, now_ms))
            return
        try:
            found = weighing.advance(loaded.engine, event)
        except Exception as error:
            loaded.engine.cancel(event.job_id)
            self._fail(event.job_id, _sentence(error))
            return
        if found is not None:
            self._forget(event.job_id)
            for way in found[: job.request.ways]:
                line = Piece(weighing.search.text(way), way.logprob)
                self._send(job.peer, _chunk(job, [line], event))
            self._send(job.peer, _done(job, "line", event, now_ms))
        elif weighing.job is not job.job:
            del self._jobs[event.job_id]
            job.job, job.reused, job.computed = weighing.job, 0, 0
            self._jobs[job.job.id] = job
            self._by_name[job.peer, job.request.id] = job.job.id

    def _served(self, loaded: Loaded, job: TextJob) -> None:
        """Somebody has first text: what comes next may be computed, where the user is."""
        if job.peer != self._foreground.front:
            return
        request, budget = job.request, _budget(loaded, job.request)
        self._work_aside(
            lambda id: self._aside.served(
                loaded.engine, loaded.prompts, request, budget, id, job.peer
            )
        )

    def _work_aside(self, work: Callable[..., None], *arguments: object) -> None:
        """Have a job of our own made, which must not be the end of those that somebody waits for."""
        try:
            work(*arguments, self._new_id())
        except Exception as error:
            log.warning("work aside failed: %s", type(error).__name__)

    def _figures(self, loaded: Loaded) -> dict[str, Any]:
        return {
            "model": loaded.name,
            "engine": self._config.engine.kind,
            "max_context": loaded.engine.max_context,
            "fim_format": loaded.prompts.format_name,
            **of_engine(loaded.engine.stats(), self._config.draft),
            **self.statistics.figures(),
            **self._aside.figures(),
            **loaded.more_figures(),
        }


def _chunk(job: TextJob, found: Sequence[Piece], event: Event) -> Chunk:
    return Chunk(
        id=job.request.id,
        text="".join(piece.text for piece in found),
        reused=event.reused,
        computed=event.computed,
        logprobs=[piece.logprob for piece in found],
        sizes=[len(piece.text) for piece in found],
    )


def _done(job: TextJob, finish: str, event: Event, now_ms: float) -> Done:
    return Done(
        id=job.request.id,
        finish=finish,  # type: ignore[arg-type]
        reused=event.reused,
        computed=event.computed,
        generated=job.generated,
        first_token_ms=job.first_token_ms,
        total_ms=now_ms,
    )


def _nothing(request: Complete) -> Done:
    """There are no ways."""
    return Done(
        id=request.id,
        finish="stop",
        reused=0,
        computed=0,
        generated=0,
        first_token_ms=0.0,
        total_ms=0.0,
    )


def _budget(loaded: Loaded, request: Complete) -> int:
    """Most tokens of the prompt: the output needs room, too."""
    return min(request.prompt_tokens, loaded.engine.max_context - request.max_tokens)


def _broken(error: Exception) -> str:
    if isinstance(error, ServerError):
        return str(error)
    if _is_out_of_memory(error):
        return _NO_MEMORY
    return (
        f"The engine failed ({type(error).__name__}; the daemon's log says where). The next request "
        "starts it again."
    )


def _failed(error: Exception) -> str:
    if _is_out_of_memory(error):
        return _NO_MEMORY
    return (
        f"The engine could not compute a completion ({type(error).__name__}; the daemon's log says "
        "where). The next one is tried as ever."
    )


def _sentence(error: BaseException) -> str:
    return _NO_MEMORY if _is_out_of_memory(error) else str(error) or type(error).__name__


def _is_out_of_memory(error: BaseException) -> bool:
    # torch raises a RuntimeError on the CPU, and one class of its own on a card.
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
    )
