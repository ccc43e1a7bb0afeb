"""From a situation to a suggestion: the request to the engine, and the text that comes back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from completion_ls.config.settings import Settings
from completion_ls.context.surroundings import NOTHING, Surroundings
from completion_ls.lsp import confidence, rules
from completion_ls.lsp.documents import clean
from completion_ls.lsp.known import Known
from completion_ls.lsp.situation import Shown, Situation
from completion_ls.lsp.suggestion import Lane, Line, Suggestion
from completion_ls.models.reliability import least_logprob
from completion_ls.wire.client import EngineClient, EngineFailed
from completion_ls.wire.messages import Complete, File

log = logging.getLogger(__name__)

DRAW_TEMPERATURE = 0.8
DRAW_TOP_P = 0.95
"""Where the settings have less, or no, chance in them: so that other texts than the first come."""
WAYS = 4
"""So many weighed lines are asked for: one more than are offered, since one may be there already."""
WEIGHING_S = 2.0
"""Who asks by hand waits no longer than this for lines to be weighed."""


class Generator:
    """Begins suggestions and gives them up; those that are finished become known."""

    def __init__(
        self,
        engine: EngineClient,
        settings: Settings,
        others: Callable[[str], Surroundings] = lambda uri: NOTHING,
    ) -> None:
        """`others` gives what a document has of other files. It is no part of a situation: what is
        suggested stays right when they change."""
        self.engine = engine
        self.settings = settings
        self._others = others
        self._ways: tuple[Situation, list[Line]] | None = None
        """The place where lines were weighed last, and these."""
        self.known = Known()

    def change(self, engine: EngineClient, settings: Settings) -> None:
        """Go on with these; what was found with others is forgotten."""
        self.engine, self.settings = engine, settings
        self._ways = None
        self.known.clear()

    def begin(
        self, start: Situation, lane: Lane, draw: int = 0, line: Line | None = None
    ) -> Suggestion:
        """Ask the engine for the text at a place; with `draw`, for another one, by that number; with
        `line`, for what comes behind that."""
        least = confidence.OFF if start.manual else self.least
        suggestion = Suggestion.at(start, self.settings.completion, lane, draw=draw, least=least)
        if line:
            suggestion.begin_with(line)
        suggestion.pump = asyncio.create_task(self._fill(suggestion, self.engine))
        return suggestion

    @property
    def least(self) -> float:
        """The log probability that each line of an automatic suggestion has at least."""
        return least_logprob(self.settings.model.name, self.settings.completion.show_above)

    def end(self, suggestion: Suggestion) -> None:
        """Stop a generation; who waits for it hears that it was given up."""
        suggestion.ended = True
        if suggestion.pump and not suggestion.finished:
            suggestion.pump.cancel()
        suggestion.notify()

    def promote(self, suggestion: Suggestion) -> None:
        """Somebody waits now for what was begun in the background."""
        suggestion.lane = "key"
        if suggestion.answer:
            self.engine.promote(suggestion.answer)

    def warm_up_request(
        self, now: Situation, max_context: int, others: Surroundings | None = None
    ) -> Complete:
        """Has the engine compute the prompt that a suggestion at this place will have (with these
        other files, where they are given)."""
        request = self._request(now, "background", others=others)
        # The prompt gets what the output leaves of the context, and is to be the same.
        room = max(64, min(request.prompt_tokens, max_context - request.max_tokens))
        return request.model_copy(update={"prompt_tokens": room, "max_tokens": 1})

    async def _fill(self, suggestion: Suggestion, engine: EngineClient) -> None:
        try:
            await self._read(suggestion, engine)
            if suggestion.finished and not suggestion.draw and not suggestion.weighed:
                self._keep(suggestion)
        except EngineFailed as failure:
            suggestion.failure = failure
        except Exception as error:  # whoever waits must hear of it
            log.exception("a completion failed")
            what = f"The completion failed ({type(error).__name__}); the log says where."
            suggestion.failure = EngineFailed(what)
        finally:
            suggestion.notify()

    def _keep(self, suggestion: Suggestion) -> None:
        found, least = suggestion.offer(), self.least
        if suggestion.least >= least:
            self.known.add(suggestion.start, found, stopped=suggestion.stopped)
        else:  # it was asked for by hand
            self.known.add(suggestion.start, found, unasked=suggestion.limited(least).offer())

    async def ways(self, place: Situation) -> list[Line]:
        """How the cursor's line may go on, weighed by the text below it, the best first. There are none
        without such text, where the model reads it itself or is not loaded yet, and where it took too
        long. Raises EngineFailed."""
        engine = self.engine
        if engine.ready is None or not place.after.partition("\n")[2].strip():
            return []
        if self._ways and self._ways[0] == place:
            return self._ways[1]
        request = self._request(place, "manual").model_copy(update={"ways": WAYS})
        answer = await engine.complete(request)
        lines: list[Line] = []
        try:
            async with asyncio.timeout(WEIGHING_S):
                async for chunk in answer:
                    if text := chunk.text.partition("\n")[0].rstrip():
                        lines.append(Line(text, sum(chunk.logprobs)))
        except TimeoutError:
            log.info("weighing took too long")
            lines = []
        finally:
            engine.cancel(answer)
        self._ways = place, lines
        return lines

    async def _read(self, suggestion: Suggestion, engine: EngineClient) -> None:
        start = suggestion.start
        if suggestion.lane == "manual" and not suggestion.draw and not suggestion.weighed:
            for line in (await self.ways(start))[:1]:
                suggestion.begin_with(line)
        if suggestion.weighed:
            suggestion.ended |= suggestion.strayed()
            if suggestion.finished or suggestion.ended:
                return
            start = start.accepting(Shown(suggestion.raw, len(start.after_line) + 1))
        await self._follow(suggestion, engine, start)

    async def _follow(self, suggestion: Suggestion, engine: EngineClient, start: Situation) -> None:
        lane = suggestion.lane
        request = self._request(start, lane, suggestion.mode)
        answer = await engine.complete(_drawn(request, suggestion.draw))
        suggestion.answer = answer
        try:
            if suggestion.lane != lane:
                engine.promote(answer)
            async for chunk in answer:
                suggestion.add(chunk.text, chunk.logprobs, chunk.sizes)
                if suggestion.finished:
                    break
                if suggestion.strayed():
                    suggestion.ended = True
                    break
            suggestion.cut = bool(answer.done and answer.done.finish == "length")
            # Without room for it nothing was computed; whoever has come to wait begins again.
            suggestion.ended |= bool(answer.done and answer.done.finish == "no_room")
            suggestion.finished = not suggestion.ended
        finally:
            engine.cancel(answer, complete=suggestion.finished)

    def _request(
        self,
        start: Situation,
        lane: Lane,
        mode: rules.Mode = rules.Mode.BLOCK,
        others: Surroundings | None = None,
    ) -> Complete:
        wanted, prompt = self.settings.completion, self.settings.prompt
        others = others or self._others(start.uri)
        return Complete(
            id=0,
            document=start.uri,
            prefix=start.before,
            suffix=start.after,
            context=start.context,
            repository=clean(others.repository),
            path=clean(others.path),
            files=[File(path=clean(path), text=text) for path, text in others.files],
            lane=lane,
            prompt_tokens=prompt.max_tokens,
            suffix_share=prompt.suffix_share,
            max_tokens=wanted.max_tokens,
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            seed=wanted.seed,
            stop_at_line=mode is rules.Mode.LINE,
            ahead=wanted.ahead,
        )


def _drawn(request: Complete, draw: int) -> Complete:
    """The request for the text that is drawn with this number."""
    if not draw:
        return request
    chance = {
        "temperature": max(request.temperature, DRAW_TEMPERATURE),
        "top_p": min(request.top_p, DRAW_TOP_P),
        "seed": request.seed ^ draw,
        "ahead": False,
    }
    return request.model_copy(update=chance)
