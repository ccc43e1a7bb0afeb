"""`/v1/completions` as OpenAI had it, and as vLLM, SGLang, TabbyAPI and others have it.

They agree on the fields that a request has had from the beginning, and on the shape of events. vLLM adds
prompts and answers as token ids. What a server takes was tried when the engine began (`probe.py`): a
field that one does not know may be refused, so only those are sent that it takes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from completion_ls.engines.contract import Finish
from completion_ls.engines.remote import told
from completion_ls.engines.remote.abilities import Abilities
from completion_ls.engines.remote.ask import Ask, End, Gap, Look, News, Part, Read
from completion_ls.engines.remote.errors import ServerError
from completion_ls.engines.remote.http import Client, Json

PATH = "/v1/completions"
SESSION = "X-Session-ID"
"""By which a router in front of several servers finds the one that has the prompt."""
BANNED = -100
"""The bias of a token that is not to be chosen; no server takes a lower one."""
SEEDS = 1 << 31
TOKEN_ID = "token_id:"


class OpenAi:
    """A `Server`."""

    def __init__(self, client: Client, abilities: Abilities) -> None:
        self._client = client
        self._abilities = abilities

    async def stream(self, ask: Ask) -> AsyncGenerator[News, None]:
        """See `Server`."""
        headers = {SESSION: ask.session} if ask.session else {}
        finish: Finish | None = None
        counted: Read | None = None
        async with aclosing(self._client.events(PATH, self._body(ask), headers)) as events:
            async for event in events:
                try:
                    if (read := read_of(event)) and read != counted:
                        counted = read
                        yield read
                    for choice in event["choices"]:
                        if (part := part_of(choice)) is not None:
                            yield part
                        finish = _finish(choice) or finish
                except told.ODD as error:
                    raise ServerError(
                        f"The server {self._client.name} answered in another shape than OpenAI's."
                    ) from error
        # Not all say [DONE], but all say why they have finished.
        if finish is None:
            raise ServerError(f"The server {self._client.name} broke off its answer.")
        yield End(finish)

    async def look(self, ask: Ask) -> Look:
        """See `Server`."""
        read: Read | None = None
        top: Mapping[int, float] = {}
        async with aclosing(self.stream(ask)) as news:
            async for one in news:
                if isinstance(one, Read):
                    read = one
                elif isinstance(one, Part) and one.tokens and one.tops and not top:
                    top = {int(token): value for token, value in one.tops[0].items()}
        if not top:
            raise ServerError(f"The server {self._client.name} tells no probabilities any more.")
        return Look(top, read)

    async def check_model(self) -> None:
        """See `Server`: each request names the model."""

    async def idle_slots(self) -> list[int]:
        """See `Server`."""
        return []

    def _body(self, ask: Ask) -> Json:
        able, sampling = self._abilities, ask.sampling
        body: Json = {
            "model": able.model,
            "max_tokens": ask.most_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed % SEEDS,
            "stream": True,
        }
        if isinstance(ask.prompt, Gap):
            body |= {"prompt": ask.prompt.before, "suffix": ask.prompt.after}
        else:
            body["prompt"] = ask.prompt
        if ask.top and able.logprobs:
            body["logprobs"] = min(ask.top, able.logprobs)
        if able.by_tokens:
            body |= {"return_tokens_as_token_ids": True}
            if ask.stop_token_ids:
                body["stop_token_ids"] = sorted(ask.stop_token_ids)
        if ask.banned:
            body["logit_bias"] = {str(token): BANNED for token in sorted(ask.banned)}
        if able.counts_reuse:
            body["stream_options"] = {"include_usage": True}
        return body


def part_of(choice: Mapping[str, Any]) -> Part | None:
    """What a choice of an event, or of a whole answer, adds. Raises one of `told.ODD` where it has another
    shape."""
    text = told.text(choice["text"])
    places = choice.get("logprobs") or {}
    if "content" in places:
        return _of_content(text, places["content"] or [])
    names = [str(name) for name in places.get("tokens") or []]
    logprobs = tuple(map(told.logprob, places.get("token_logprobs") or []))
    tops = [one or {} for one in places.get("top_logprobs") or []]
    if names and all(name.startswith(TOKEN_ID) for name in names):
        if any(part and len(part) != len(names) for part in (logprobs, tops)):
            raise ValueError("of another number of tokens")
        tokens = tuple(map(_id, names))
        by_id = tuple(
            {_id(name): told.logprob(value) for name, value in top.items()} for top in tops
        )
        return Part(text, tokens, logprobs, by_id)
    if not text and not names:
        return None
    by_text = tuple({str(name): told.logprob(value) for name, value in top.items()} for top in tops)
    return Part(text, (), logprobs, by_text)


def _of_content(text: str, places: list[Any]) -> Part | None:
    """The shape that OpenAI's newer interface has, and llama.cpp's server here, too."""
    logprobs = tuple(told.logprob(one["logprob"]) for one in places)
    tops = tuple(
        {
            str(other["token"]): told.logprob(other["logprob"])
            for other in one.get("top_logprobs") or []
        }
        for one in places
    )
    return Part(text, (), logprobs, tops) if text or places else None


def read_of(event: Mapping[str, Any]) -> Read | None:
    """What an event, or a whole answer, says of the prompt's tokens; None where it does not say how many
    it had."""
    usage = event.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    if "cached_tokens" not in details or details["cached_tokens"] is None:
        return None
    reused = told.count(details["cached_tokens"])
    return Read(told.count(told.count(usage["prompt_tokens"]) - reused), reused)


def _id(name: str) -> int:
    return told.token(name.removeprefix(TOKEN_ID))


def _finish(choice: Mapping[str, Any]) -> Finish | None:
    reason = choice.get("finish_reason")
    if reason is None:
        return None
    if reason in ("error", "abort"):
        raise ValueError(reason)
    return Finish.LENGTH if reason == "length" else Finish.STOP
