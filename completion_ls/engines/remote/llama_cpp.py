"""llama.cpp's server, by its own `/completion` and `/infill` (tools/server/README.md of llama.cpp)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.contract import Finish
from completion_ls.engines.remote import told
from completion_ls.engines.remote.ask import Ask, End, Gap, Look, News, Part, Read
from completion_ls.engines.remote.errors import Refused, ServerError
from completion_ls.engines.remote.http import Client, Json

MOST_LOOKS = 16
"""So often another choice is asked for where the first ones are half characters."""
LONGEST = 256
"""Bytes of the text that comes with a token, at most."""
SEEDS = (1 << 32) - 1
"""As many as there are: the next number would be chance."""


class LlamaCpp:
    """A `Server`."""

    def __init__(self, client: Client, vocabulary: Vocabulary, model: str) -> None:
        """`model` is its name there, as `name_of` tells it."""
        self._client = client
        self._model = model
        self._vocabulary = vocabulary

    async def stream(self, ask: Ask) -> AsyncGenerator[News, None]:
        """See `Server`."""
        path = "/infill" if isinstance(ask.prompt, Gap) else "/completion"
        counted: Read | None = None
        async with aclosing(self._client.events(path, self._body(ask), {})) as events:
            async for event in events:
                try:
                    if (read := _read(event)) and read != counted:
                        counted = read
                        yield read
                    if (part := _part(event)) is not None:
                        yield self._whole(part)
                    if event.get("stop"):
                        yield End(_finish(event))
                        return
                except told.ODD as error:
                    raise self._other_shape() from error
        raise ServerError(f"The server {self._client.name} broke off its answer.")

    async def look(self, ask: Ask) -> Look:
        """See `Server`."""
        body = self._body(ask) | {"stream": False}
        banned: list[int] = []
        read: Read | None = None
        try:
            for _ in range(MOST_LOOKS):
                body["logit_bias"] = [[token, False] for token in banned]
                answer = await self._client.ask("/completion", body)
                read = read or _read(answer)
                if (places := answer.get("completion_probabilities")) and (top := _top(places[0])):
                    return Look(top, read)
                # Of half a character it tells nothing. What it tells of another choice is the same.
                banned += map(told.token, answer["tokens"])
        except told.ODD as error:
            raise self._other_shape() from error
        raise ServerError(f"The server {self._client.name} tells no probabilities.")

    async def check_model(self) -> None:
        """See `Server`."""
        props = await self._client.get("/props")
        if isinstance(props, dict) and name_of(props) != self._model:
            raise ServerError(f"The server {self._client.name} has another model now.", lasts=True)

    async def idle_slots(self) -> list[int]:
        """See `Server`."""
        try:
            found = await self._client.get("/slots")
        except Refused:
            return []
        try:
            return [int(slot["id"]) for slot in found or () if not slot["is_processing"]]
        except told.ODD:
            return []

    def _other_shape(self) -> ServerError:
        return ServerError(
            f"The server {self._client.name} answered in another shape than llama.cpp's."
        )

    def _whole(self, part: Part) -> Part:
        """Of a character that takes several tokens it streams the whole text and the last one's id: then
        the tokens are read from the text, and nobody knows how probable the first ones were."""
        text = part.text.encode()
        if not part.tokens or text == b"".join(map(self._vocabulary.bytes_of, part.tokens)):
            return part
        if len(text) > LONGEST * len(part.tokens):
            raise ValueError("not the text of these tokens")
        tokens = self._vocabulary.read(part.text)
        logprobs = (*([0.0] * (len(tokens) - 1)), sum(part.logprobs)) if part.logprobs else ()
        return Part(part.text, tokens, logprobs[: len(tokens)])

    def _body(self, ask: Ask) -> Json:
        sampling = ask.sampling
        body: Json = {
            "n_predict": ask.most_tokens,
            "stream": True,
            "cache_prompt": not ask.fresh,
            "return_tokens": True,
            "timings_per_token": True,
            "temperature": sampling.temperature,
            "seed": sampling.seed % SEEDS,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            # Ours and no others, in the order that the contract has.
            "samplers": ["temperature", "top_k", "top_p"],
        }
        if isinstance(ask.prompt, Gap):
            body |= {"input_prefix": ask.prompt.before, "input_suffix": ask.prompt.after}
        else:
            body["prompt"] = ask.prompt
        if ask.top:
            body["n_probs"] = ask.top
        if ask.banned:
            body["logit_bias"] = [[token, False] for token in sorted(ask.banned)]
        if ask.slot is not None:
            body["id_slot"] = ask.slot
        return body


def name_of(props: Json) -> str:
    """What the model is called there. Without a name of its own it is the file's."""
    named = str(props.get("model_alias") or props.get("model_path") or "")
    return told.name(named.rpartition("/")[2])


def _part(event: Json) -> Part | None:
    places = event.get("completion_probabilities") or []
    tokens = tuple(map(told.token, event.get("tokens") or []))
    text = told.text(event.get("content") or "")
    if event.get("stop") or not (tokens or text):  # the last event has nothing new
        return None
    if len(places) != len(tokens):
        places = []
    return Part(
        text,
        tokens,
        tuple(told.logprob(one["logprob"]) for one in places),
        tuple(_top(one) for one in places),
    )


def _top(place: Mapping[str, Any]) -> dict[int, float]:
    return {told.token(one["id"]): told.logprob(one["logprob"]) for one in place["top_logprobs"]}


def _read(event: Json) -> Read | None:
    timings = event.get("timings")
    if not timings:
        return None
    return Read(told.count(timings["prompt_n"]), told.count(timings.get("cache_n", 0)))


def _finish(event: Json) -> Finish:
    return Finish.LENGTH if event.get("stop_type") == "limit" else Finish.STOP
