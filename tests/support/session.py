"""A user in one document, on an engine that says what a test tells it, when it tells it."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from completion_ls.config.settings import CompletionSettings, Settings
from completion_ls.lsp import suggester
from completion_ls.lsp.situation import Shown, Situation
from completion_ls.wire.client import Answer, EngineClient, EngineFailed
from completion_ls.wire.endpoint import DaemonConfig
from completion_ls.wire.messages import Chunk, Complete, Done, Ready

URI = "file:///a.py"
AREA = "def area(width, height):\n    "
BODY = "return width * height"


class ScriptedEngine(EngineClient):
    """The client of a daemon that is not there: requests are noted, answers are given by hand."""

    def __init__(self) -> None:
        super().__init__(DaemonConfig.of(Settings()))
        self.ready = Ready(model="scripted", max_context=8192)
        self.requests: list[Complete] = []
        self.answers: list[Answer] = []
        self.cancels: list[tuple[int, bool]] = []
        self.promoted: list[int] = []
        self.without_pass = 0

    async def complete(self, request: Complete) -> Answer:
        answer = Answer(len(self.answers))
        self.requests.append(request)
        self.answers.append(answer)
        self._answers[answer.id] = answer
        return answer

    def cancel(self, answer: Answer, *, complete: bool = False) -> None:
        if answer.id in self._answers:
            self.cancels.append((answer.id, complete))
        super().cancel(answer, complete=complete)

    def promote(self, answer: Answer) -> None:
        self.promoted.append(answer.id)

    def answered_without_pass(self) -> None:
        self.without_pass += 1

    def say(self, job: int, *tokens: str, logprob: float = 0.0) -> None:
        """Tokens in one chunk, each with this log probability."""
        chunk = Chunk(
            id=job,
            text="".join(tokens),
            reused=0,
            computed=0,
            logprobs=[logprob for _ in tokens],
            sizes=[len(token) for token in tokens],
        )
        self.answers[job].chunks.put_nowait(chunk)

    def finish(
        self,
        job: int,
        *tokens: str,
        why: Literal["stop", "length"] = "stop",
        logprob: float = 0.0,
    ) -> None:
        self.say(job, *tokens, logprob=logprob)
        self._answers.pop(job, None)
        self.answers[job].chunks.put_nowait(
            Done(
                id=job,
                finish=why,
                reused=0,
                computed=0,
                generated=1,
                first_token_ms=0,
                total_ms=0,
            )
        )

    def fail(self, job: int) -> None:
        self._answers.pop(job, None)
        self.answers[job].chunks.put_nowait(EngineFailed("It failed."))

    @property
    def lanes(self) -> list[str]:
        return [request.lane for request in self.requests]


class Session:
    """A user in one document: types, and asks."""

    def __init__(self, **completion: object) -> None:
        self.engine = ScriptedEngine()
        settings = Settings(completion=CompletionSettings.model_validate(completion))
        self.suggester = suggester.Suggester(self.engine, settings)
        self.partials: list[Shown] = []

    def ask(self, now: Situation) -> asyncio.Task[Shown | None]:
        return asyncio.create_task(self.suggester.suggest(now, self.partials.append))

    async def answer(self, now: Situation, text: str) -> str | None:
        """Ask for a new suggestion, have the engine give this text, and return what is shown."""
        task, job = self.ask(now), len(self.engine.answers)
        await settle()
        self.engine.finish(job, text)
        return text_of(await task)

    async def known(self, now: Situation) -> str | None:
        """What is shown at a place that needs no job."""
        jobs, without_pass = self.foreground, self.engine.without_pass
        shown = await asyncio.wait_for(self.ask(now), 10)
        assert self.foreground == jobs
        assert self.engine.without_pass == without_pass + 1
        return text_of(shown)

    @property
    def foreground(self) -> int:
        return sum(lane != "background" for lane in self.engine.lanes)


def at(before: str, after: str = "", uri: str = URI, **more: Any) -> Situation:
    return Situation(
        uri=uri,
        line=before.count("\n"),
        column=len(before) - (before.rfind("\n") + 1),
        before=before,
        after=after,
        limit=10_000,
        **more,
    )


def text_of(shown: Shown | None) -> str | None:
    return shown.text if shown else None


async def settle() -> None:
    """Let everything that can happen now happen."""
    for _ in range(20):
        await asyncio.sleep(0)
