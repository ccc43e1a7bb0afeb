"""The engine daemon with a script in place of its engine: exact text, in parts, with pauses.

It is the real daemon (lock, endpoint, hello, messages) around a worker that reads what to say from a
file, so that a test may change it at any time. `Script.program` stands for the `completion-ls`
program: the server that it starts is the real one, and starts this daemon where it would start its
own, with whatever settings, and again when it was killed.

Run by path, with -P: the files beside this one have names of the standard library.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from completion_ls.daemon.statistics import Served, Statistics
from completion_ls.daemon.worker import LoadFailed, Outgoing, Published
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

CONTEXT = 8192
LOOK_S = 0.01


@dataclass(frozen=True)
class Speech:
    """What is said where the text before the cursor ends with `after` (from the start of a line on)
    and, behind it, a beginning of the parts: the rest of them, with `pause_s` between two. What is
    drawn at random is one of `others`, by the number of the draw. Each part is a token of this log
    probability."""

    after: str
    parts: Sequence[str]
    pause_s: float
    others: Sequence[str] = ()
    logprob: float = 0.0

    def drawn(self, draw: int) -> Speech:
        """What is said by this draw, from 1 on; 0 is none."""
        if not draw or not self.others:
            return self
        return Speech(self.after, [self.others[(draw - 1) % len(self.others)]], self.pause_s)

    def rest(self, prefix: str) -> tuple[int, list[str]] | None:
        """How many characters of the prefix agree, and the parts that are left; None without any."""
        text, lines = "".join(self.parts), "\n" + prefix
        for typed in range(len(text), -1, -1):
            if lines.endswith("\n" + self.after + text[:typed]):
                return len(self.after) + typed, self._behind(typed)
        return None

    def _behind(self, typed: int) -> list[str]:
        left = []
        for part in self.parts:
            if part[typed:]:
                left.append(part[typed:])
            typed = max(0, typed - len(part))
        return left


class Script:
    """What the daemons of a folder say, and what they were asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._speeches = folder / "speeches.json"
        self._heard = folder / "heard.jsonl"
        self._load_s = folder / "load_s"
        self._failure = folder / "failure"
        self._unreachable = folder / "unreachable"
        self._stumbles = folder / "stumbles"
        self._settles = folder / "settles"

    @classmethod
    def make(cls, folder: Path) -> Script:
        """An empty one, in a new folder."""
        script = cls(folder)
        folder.mkdir()
        script.clear()
        for name, role in ((script.program, "front"), (script.daemon_python, "daemon")):
            words = [sys.executable, "-P", __file__, role, str(folder)]
            name.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            name.chmod(0o755)
        return script

    @property
    def program(self) -> Path:
        """`completion-ls`, whose daemon follows the script."""
        return self.folder / "completion-ls"

    @property
    def daemon_python(self) -> Path:
        """What the front takes for the Python that runs its daemon."""
        return self.folder / "daemon-python"

    def say(
        self,
        after: str,
        *parts: str,
        pause_s: float = 0.3,
        others: Sequence[str] = (),
        logprob: float = 0.0,
    ) -> None:
        """From now on, say this as well."""
        self._write([*self.speeches(), Speech(after, parts, pause_s, others, logprob)])

    def clear(self) -> None:
        """Say nothing, and forget what was heard."""
        self._write([])
        self._heard.write_text("")
        self._load_s.write_text("0.1")
        self._failure.write_text("")
        self.reaches("")
        self.stumbles("")

    def reaches(self, unreachable: str = "", *, told_last: bool = False) -> None:
        """The server of daemons whose engine is `remote` can be reached from now on; or it cannot, for
        this reason, and what is asked of it fails: behind the news of it, or before that."""
        self._replace(self._unreachable, json.dumps([unreachable, told_last]))

    def settles_in(self, seconds: float) -> None:
        """A front that starts now waits so long where it would wait to see how a server gets on."""
        self._settles.write_text(str(seconds))

    def stumbles(self, why: str) -> None:
        """That server answers to each request with this error from now on; empty: it does no more."""
        self._replace(self._stumbles, why)

    def unreachable(self) -> tuple[str, bool]:
        """Why that server cannot be reached, empty where it can; whether that is told last."""
        why, told_last = json.loads(self._unreachable.read_text())
        return why, told_last

    def settles(self) -> float | None:
        """How long a front that starts now waits, where that is not left to it."""
        return float(self._settles.read_text()) if self._settles.exists() else None

    def stumble(self) -> str:
        """What that server answers; empty where it does what it is asked."""
        return self._stumbles.read_text()

    def loads_for(self, seconds: float) -> None:
        """The next daemon that starts is loading for so long."""
        self._load_s.write_text(str(seconds))

    def cannot_load(self, why: str) -> None:
        """No daemon that starts from now on gets ready; empty: they do again."""
        self._failure.write_text(why)

    def heard(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What daemons were told (`complete`, `weigh`, `cancel`, `promote`) and did (`load`, `done`), and
        how the program was called (`run`), in order; all of it, or one kind."""
        events = [json.loads(line) for line in self._heard.read_text().splitlines()]
        return [event for event in events if kind in (None, event["kind"])]

    def speeches(self) -> list[Speech]:
        """What is said now."""
        return [Speech(**one) for one in json.loads(self._speeches.read_text())]

    def load_s(self) -> float:
        """For how long a daemon that starts now is loading."""
        return float(self._load_s.read_text())

    def failure(self) -> str:
        """Why a daemon that starts now does not get ready; empty where it does."""
        return self._failure.read_text()

    def note(self, kind: str, **what: object) -> None:
        """Add to what was heard (in one write, so that several daemons may)."""
        with self._heard.open("a", buffering=1) as stream:
            stream.write(json.dumps({"kind": kind, "daemon": os.getpid(), **what}) + "\n")

    def answer(self, prefix: str, draw: int = 0) -> Speech:
        """What is said behind a prefix: by the speech that agrees with most of it."""
        speeches = [one.drawn(draw) for one in self.speeches()]
        found = [(rest, one) for one in speeches if (rest := one.rest(prefix))]
        if not found:
            return Speech("", [], 0)
        (_, parts), speech = max(found, key=lambda pair: pair[0][0])
        return Speech("", parts, speech.pause_s, logprob=speech.logprob)

    def _write(self, speeches: list[Speech]) -> None:
        self._replace(self._speeches, json.dumps([asdict(one) for one in speeches]))

    @staticmethod
    def _replace(file: Path, text: str) -> None:
        """At once: whoever reads it meanwhile sees the old text or the new one."""
        temporary = file.with_suffix(".new")
        temporary.write_text(text)
        temporary.replace(file)


class ScriptedWorker:
    """In the place of `daemon.worker.Worker`, on the event loop."""

    backlog = 0
    """Nothing waits: all is answered at once."""

    def __init__(
        self, script: Script, config: DaemonConfig, publish: Callable[[Published], None]
    ) -> None:
        self.statistics = Statistics()
        self._script = script
        self._model = config.model.name
        self._is_remote = config.engine.kind == "remote"
        self._unreachable = ""
        self._publish = publish
        self._ready = asyncio.Event()
        self._jobs: dict[tuple[Hashable, int], asyncio.Task[None]] = {}

    def start(self) -> None:
        self._loading = asyncio.create_task(self._load())
        if self._is_remote:
            self._looking = asyncio.create_task(self._look())

    def submit(self, peer: Hashable, request: Complete) -> None:
        line = request.prefix[request.prefix.rfind("\n") + 1 :]
        draw = _draw(request)
        self._script.note(
            "weigh" if request.ways else "complete",
            id=request.id,
            lane=request.lane,
            line=line,
            draw=draw,
            path=request.path,
            files=[[file.path, file.text] for file in request.files],
        )
        job = asyncio.create_task(self._answer(peer, request))
        self._jobs[peer, request.id] = job
        job.add_done_callback(lambda _: self._jobs.pop((peer, request.id), None))

    def cancel(self, peer: Hashable, id: int, *, complete: bool = False) -> None:
        if job := self._jobs.get((peer, id)):
            self._script.note("cancel", id=id, complete=complete)
            job.cancel()

    def promote(self, peer: Hashable, id: int) -> None:
        self._script.note("promote", id=id)

    def came_into_view(self, peer: Hashable) -> None:
        self._script.note("came_into_view")

    def answered_without_pass(self, peer: Hashable) -> None:
        self.statistics.without_pass += 1

    def cancel_all(self, peer: Hashable) -> None:
        for owner, id in list(self._jobs):
            if owner == peer:
                self.cancel(peer, id)

    def snapshot(self, answer: Callable[[dict[str, Any]], None]) -> None:
        own = {"model": self._model, "max_context": CONTEXT, "jobs_active": len(self._jobs)}
        answer(own | self.statistics.figures())

    def close(self) -> None:
        for job in self._jobs.values():
            job.cancel()

    def is_alive(self) -> bool:
        return True

    def join(self, timeout: float) -> None:
        pass

    async def _load(self) -> None:
        self._script.note("load", model=self._model)
        steps = 10
        for step in range(steps):
            self._send(None, Loading(text=f"Loading {self._model}", fraction=step / steps))
            await asyncio.sleep(self._script.load_s() / steps)
        if why := self._script.failure():
            self._publish(LoadFailed(why))
            return
        self._send(None, Ready(model=self._model, max_context=CONTEXT))
        self._ready.set()

    async def _look(self) -> None:
        """Say whether the server can be reached, and have what it was asked fail where it cannot."""
        while True:
            now, told_last = self._script.unreachable()
            if now != self._unreachable:
                self._unreachable = now
                news: list[tuple[Hashable | None, Message]] = [(None, Reach(ok=not now, text=now))]
                for (peer, id), job in list(self._jobs.items()) if now else []:
                    job.cancel()
                    news.append((peer, Error(id=id, code="server", text=now)))
                for peer, message in reversed(news) if told_last else news:
                    self._send(peer, message)
            await asyncio.sleep(LOOK_S)

    async def _answer(self, peer: Hashable, request: Complete) -> None:
        await self._ready.wait()
        if self._is_remote and (why := self._unreachable or self._script.stumble()):
            self._send(peer, Error(id=request.id, code="server", text=why))
            return
        if request.ways:  # as for a model with FIM
            self._send(peer, _done(request, 0))
            return
        speech = self._script.answer(request.prefix, _draw(request))
        for number, part in enumerate(speech.parts):
            if number:
                await asyncio.sleep(speech.pause_s)
            token = {"logprobs": [speech.logprob], "sizes": [len(part)]}
            self._send(peer, Chunk(id=request.id, text=part, reused=0, computed=1, **token))
            if request.stop_at_line and "\n" in part:
                break
        self.statistics.jobs += 1
        self.statistics.awaited += request.lane != "background"
        self.statistics.recent.append(Served(0, 1, 1.0))
        self.statistics.decoded += 10
        self.statistics.decode_s += 0.2
        self._script.note("done", id=request.id)
        self._send(peer, _done(request, len(speech.parts)))

    def _send(self, peer: Hashable | None, message: Message) -> None:
        self._publish(Outgoing(peer, message))


def _done(request: Complete, generated: int) -> Done:
    return Done(
        id=request.id,
        finish="stop",
        reused=0,
        computed=1,
        generated=generated,
        first_token_ms=1.0,
        total_ms=1.0,
    )


def _draw(request: Complete) -> int:
    """Which draw this asks for (with the default settings, whose seed is 0); 0 is none."""
    return request.seed if request.temperature else 0


def run(role: str, folder: str, *arguments: str) -> int:
    """Be the front or the daemon of a script's folder."""
    script = Script(Path(folder))
    if role == "front":
        from completion_ls.cli.main import main

        script.note("run", words=arguments)
        sys.executable = str(script.daemon_python)
        if (seconds := script.settles()) is not None:
            from completion_ls.lsp import fallback

            fallback.SETTLED_S, fallback.RETRY_S = seconds, max(seconds, 0.1)
        return main(arguments)
    from completion_ls.cli import daemon
    from completion_ls.daemon import server

    server.Worker = lambda *given: ScriptedWorker(script, *given)  # type: ignore[assignment,misc]
    return daemon.run("-")


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
