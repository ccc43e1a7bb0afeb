"""A stand-in for TabbyAPI: `/v1/completions`, `/v1/models`, `/v1/model`, `/v1/token/encode`,
`/v1/token/decode`, `/v1/auth/permission`, `/health`.

Where each rule was read, all in the repository theroyallab/tabbyAPI:

- Prompts are text, or a list of texts; token ids are refused: endpoints/OAI/types/completion.py. Control
  tokens in a text are read as such: backends/exllamav3/model.py (`encode_special_tokens`). A list was joined
  by line ends in 2025 (endpoints/OAI/router.py), and is several prompts since.
- Fields that it does not know are ignored, and so are `suffix`, `echo`, `best_of`, `user` and, unless models
  may be switched by a request, `model`: endpoints/OAI/types/common.py, OAI/utils/common_.py. There is no
  `seed`, and no `stop_token_ids`: `stop` takes texts and token ids. Aliases and limits: common/sampling.py.
- What is of a wrong type is FastAPI's 422 with `detail`: nothing in endpoints/server.py says otherwise.
- Keys: `x-api-key`, else `Authorization: Bearer`; a wrong one is 401 with a text in `detail`: common/auth.py.
  `/health` asks for none.
- Streamed events, since 2026: OAI/utils/completion.py. The name of the model is in `model_name`, an event
  without text is left out, but for the last, which has `finish_reason`; `usage` comes only where
  `stream_options.include_usage` asks for it, and then in an event of its own that has a choice with empty
  text and the `finish_reason`, which no event before it has. Lines end in LF, and pings are comments
  (`ping`). In 2025: `model`, `usage` and null fields are in each event, and lines end in CRLF
  (sse_starlette's own). No event has token ids.
- Probabilities, since 2026: `logprobs` above 0 turns them on and `top_logprobs` says how many others there
  are (backends/exllamav3/model.py); tokens are the vocabulary's pieces, and offsets count from the event's
  own text (OAI/types/completion.py). In 2025 an event had them for its token alone: OAI/utils/completion.py.
- A prompt that is too long is 400 with `context_length_exceeded` before a stream begins, since 2026
  (common/errors.py); in 2025 it is an event in a stream that has begun. After an error in a stream nothing
  comes, no `[DONE]` either: OAI/utils/completion.py, common/networking.py.
- The model's limits: endpoints/core/types/model.py, backends/exllamav3/model.py. Tokens:
  endpoints/core/router.py, core/types/token.py.

- Cached tokens are in `usage.prompt_tokens_details`, and that not in all versions (`tells_cached`):
  tests/test_usage_stats.py. They are counted in whole pages of 256, as exllamav3's cache has them.

Not known from these: what is told of a character that the answer's last token leaves unfinished; here it is
told with U+FFFD. Refused with 501, as no rule of it is kept here: `n` above 1, penalties, grammars,
`banned_strings`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AliasChoices, BaseModel, Field, ValidationError

from support.remote.http import Answer, Asked, json_answer
from support.remote.model import HashedModel, Sampling, Step, TextOf, generate

PAGE = 256
"""Tokens in a page of the cache."""


class _StreamOptions(BaseModel):
    include_usage: bool | None = False


class _Request(BaseModel):
    model: str | None = None
    prompt: str | list[str]
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    logprobs: Annotated[int, Field(ge=0)] | None = 0
    top_logprobs: Annotated[int, Field(ge=0)] | None = 0
    max_tokens: Annotated[int, Field(ge=0)] | None = Field(
        None, validation_alias=AliasChoices("max_tokens", "max_length")
    )
    min_tokens: Annotated[int, Field(ge=0)] | None = Field(
        0, validation_alias=AliasChoices("min_tokens", "min_length")
    )
    stop: str | list[str | int] | None = Field(
        [], validation_alias=AliasChoices("stop", "stop_sequence")
    )
    allowed_tokens: list[int] | None = Field(
        [], validation_alias=AliasChoices("allowed_tokens", "allowed_token_ids")
    )
    temperature: Annotated[float, Field(ge=0, le=10)] | None = 1.0
    top_k: Annotated[int, Field(ge=-1)] | None = 0
    top_p: Annotated[float, Field(ge=0, le=1)] | None = 1.0
    min_p: float | None = 0.0
    add_bos_token: bool | None = None
    ban_eos_token: bool | None = Field(
        False, validation_alias=AliasChoices("ban_eos_token", "ignore_eos")
    )
    logit_bias: dict[int, float] | None = None
    n: Annotated[int, Field(ge=1)] = 1


class _Encode(BaseModel):
    text: str
    add_bos_token: bool | None = None
    encode_special_tokens: bool = True
    decode_special_tokens: bool = True


class _Decode(BaseModel):
    tokens: list[int]
    add_bos_token: bool | None = None
    encode_special_tokens: bool = True
    decode_special_tokens: bool = True


NOT_HERE: dict[str, object] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "json_schema": None,
    "regex_pattern": None,
    "grammar_string": None,
    "banned_strings": [],
    "token_healing": False,
}
"""Fields that a real server heeds and this one does not, with the values that ask for nothing."""


class _Refused(Exception):
    def __init__(self, status: int, body: object) -> None:
        super().__init__(status)
        self.status, self.body = status, body


_NOTHING = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


@dataclass(frozen=True)
class _Used:
    """Tokens of one prompt and its answer."""

    prompt: int
    cached: int
    made: int


class Tabby:
    """`serving(Tabby(model, key="secret"))`.

    `age`: how it was in 2025, or since 2026. `start` is the token that it puts before a prompt, `ping` says
    whether comments stand between the events, `burst` is the tokens of an event.
    """

    def __init__(
        self,
        model: HashedModel,
        *,
        key: str = "",
        name: str = "tiny-exl3",
        age: Literal["2025", "2026"] = "2026",
        max_seq_len: int = 2048,
        start: int | None = None,
        tells_cached: bool = True,
        ping: bool = False,
        burst: int = 1,
    ) -> None:
        self.model, self.key, self.name, self.age = model, key, name, age
        self.max_seq_len, self.start, self.ping, self.burst = max_seq_len, start, ping, burst
        self.tells_cached = tells_cached and age == "2026"
        self._pages: set[tuple[int, ...]] = set()
        self._numbers = count(1)

    # Errors

    def error(self, status: int, message: str) -> object:
        return {"detail": message}

    def error_events(self, message: str) -> list[bytes]:
        return [self._event({"error": {"message": message, "trace": None}})]

    # Paths

    def answer(self, asked: Asked) -> Answer:
        paths = {
            ("GET", "/v1/models"): self._models,
            ("GET", "/v1/model/list"): self._models,
            ("GET", "/v1/model"): self._model,
            ("GET", "/v1/auth/permission"): self._permission,
            ("POST", "/v1/token/encode"): self._encode,
            ("POST", "/v1/token/decode"): self._decode,
            ("POST", "/v1/completions"): self._completions,
        }
        if (asked.method, asked.path) == ("GET", "/health"):
            return json_answer(200, {"status": "healthy"})
        found = paths.get((asked.method, asked.path))
        try:
            if found is None:
                known = any(path == asked.path for _, path in paths)
                status, said = (405, "Method Not Allowed") if known else (404, "Not Found")
                raise _Refused(status, {"detail": said})
            self._check_key(asked)
            if asked.method == "POST":
                if asked.body is None:
                    wrong = {"type": "json_invalid", "loc": ["body", 0], "msg": "JSON decode error"}
                    raise _Refused(422, {"detail": [wrong]})
                if not isinstance(asked.body, dict):
                    wrong = {"type": "model_attributes_type", "loc": ["body"], "msg": "no object"}
                    raise _Refused(422, {"detail": [wrong]})
            return found(asked)
        except ValidationError as error:
            found_wrong = json.loads(error.json(include_url=False))
            detail = [{**wrong, "loc": ["body", *wrong["loc"]]} for wrong in found_wrong]
            return json_answer(422, {"detail": detail})
        except _Refused as error:
            return json_answer(error.status, error.body)

    def _check_key(self, asked: Asked) -> None:
        if not self.key:
            return
        given = asked.headers.get("x-api-key")
        if given is None and "authorization" not in asked.headers:
            raise _Refused(401, {"detail": "Please provide an API key"})
        if (given or asked.bearer) != self.key:
            raise _Refused(401, {"detail": "Invalid API key"})

    def _card(self) -> dict[str, Any]:
        parameters = {
            "max_seq_len": self.max_seq_len,
            "cache_size": self.max_seq_len,
            "cache_mode": "FP16",
            "chunk_size": 2048,
            "prompt_template": None,
            "draft": None,
        }
        card = {"id": self.name, "object": "model", "created": int(time.time())}
        return {**card, "owned_by": "tabbyAPI", "logging": None, "parameters": parameters}

    def _models(self, asked: Asked) -> Answer:
        return json_answer(200, {"object": "list", "data": [self._card()]})

    def _model(self, asked: Asked) -> Answer:
        return json_answer(200, self._card())

    def _permission(self, asked: Asked) -> Answer:
        return json_answer(200, {"permission": "api"})

    def _encode(self, asked: Asked) -> Answer:
        request = _Encode.model_validate(asked.body)
        ids = self._read(request.text, request.add_bos_token)
        return json_answer(200, {"tokens": ids, "length": len(ids)})

    def _decode(self, asked: Asked) -> Answer:
        request = _Decode.model_validate(asked.body)
        hides = not request.decode_special_tokens
        text = self.model.tokenizer.decode(request.tokens, skip_special_tokens=hides)
        return json_answer(200, {"text": text})

    def _read(self, text: str, start: bool | None) -> list[int]:
        ids = self.model.encode(text)
        return [self.start, *ids] if self.start is not None and start is not False else ids

    # Completions

    def _completions(self, asked: Asked) -> Answer:
        for name, neutral in NOT_HERE.items():
            if asked.body.get(name, neutral) not in (neutral, None):
                raise _Refused(501, {"detail": f"This stand-in does not know `{name}`."})
        request = _Request.model_validate(asked.body)
        if request.n > 1:
            raise _Refused(501, {"detail": "This stand-in makes one choice."})
        texts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
        if self.age == "2025":
            texts = ["\n".join(texts)]
        prompts = [self._read(text, request.add_bos_token) for text in texts]
        too_long = next((len(ids) for ids in prompts if len(ids) > self.max_seq_len), 0)
        said = f"Prompt length {too_long} is more than the {self.max_seq_len} tokens of the context"
        number = f"{next(self._numbers):032x}"
        if too_long and self.age == "2025":
            if not request.stream:
                raise _Refused(503, {"detail": f"Completion {number} aborted."})
            events: Iterator[bytes] = iter(self.error_events(f"Completion {number} aborted."))
        elif too_long:
            wrong = {"message": said, "type": "invalid_request_error", "param": None}
            raise _Refused(400, {"error": {**wrong, "code": "context_length_exceeded"}})
        elif not request.stream:
            return json_answer(200, self._whole(request, number, prompts))
        else:
            events = self._events(request, number, prompts)
        return Answer(200, events, "text/event-stream; charset=utf-8", streams=True)

    def _events(self, request: _Request, number: str, prompts: list[list[int]]) -> Iterator[bytes]:
        wants = bool(request.stream_options and request.stream_options.include_usage)
        usages: list[_Used] = []
        for index, prompt in enumerate(prompts):
            cached = self._cached(prompt)
            for text, steps, finish in self._told(request, prompt):
                if self.ping:
                    yield f": ping - 2026-01-01 00:00:00{self._line_end * 2}".encode()
                last = index == len(prompts) - 1
                if finish is not None:
                    usages.append(_Used(len(prompt), cached, finish[1]))
                if self.age == "2025":
                    yield self._event(self._old_event(number, index, text, steps, finish, usages))
                    continue
                hidden = wants and last
                if not text and (finish is None or hidden):
                    continue
                reason = finish[0] if finish and not hidden else None
                choice = {"index": index, "text": text, "finish_reason": reason}
                if request.logprobs and steps:
                    choice["logprobs"] = self._logprobs(request, steps)
                yield self._event(self._head(number, [choice]))
            if wants and last and self.age == "2026":
                assert finish is not None
                ending = {"index": index, "text": "", "finish_reason": finish[0]}
                head = self._head(number, [ending])
                yield self._event({**head, "usage": self._usage(usages)})
        yield f"data: [DONE]{self._line_end * 2}".encode()

    def _head(self, number: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": f"chatcmpl-{number}", "object": "text_completion", "choices": choices}
        return {**head, "created": int(time.time()), "model_name": self.name}

    def _old_event(
        self,
        number: str,
        index: int,
        text: str,
        steps: list[Step],
        finish: tuple[str, int] | None,
        usages: list[_Used],
    ) -> dict[str, Any]:
        choice = {
            "index": index,
            "finish_reason": finish[0] if finish else None,
            "logprobs": None,
            "text": text,
        }
        usage = self._usage(usages) if finish else _NOTHING
        return {
            "id": f"cmpl-{number}",
            "choices": [choice],
            "created": int(time.time()),
            "model": self.name,
            "object": "text_completion",
            "usage": usage,
        }

    def _whole(self, request: _Request, number: str, prompts: list[list[int]]) -> dict[str, Any]:
        wants = bool(request.stream_options and request.stream_options.include_usage)
        choices, usages = [], []
        for index, prompt in enumerate(prompts):
            cached, told = self._cached(prompt), list(self._told(request, prompt))
            steps = [step for _, some, _ in told for step in some]
            finish = told[-1][2]
            assert finish is not None
            usages.append(_Used(len(prompt), cached, finish[1]))
            text = "".join(text for text, _, _ in told)
            logprobs = self._logprobs(request, steps) if request.logprobs and steps else None
            # A text of blanks alone is told as none: OAI/utils/completion.py.
            choice = {"index": index, "finish_reason": finish[0], "logprobs": logprobs}
            blank = self.age == "2026" and not text.strip()
            choices.append({**choice, "text": "" if blank else text})
        head = {"id": f"cmpl-{number}", "choices": choices, "created": int(time.time())}
        usage = self._usage(usages) if wants or self.age == "2025" else None
        return {**head, "model": self.name, "object": "text_completion", "usage": usage}

    def _told(
        self, request: _Request, prompt: list[int]
    ) -> Iterator[tuple[str, list[Step], tuple[str, int] | None]]:
        """Text and its tokens; at the end without either the reason, and how many tokens were computed."""
        given = [request.stop] if isinstance(request.stop, str) else request.stop or []
        stops = [stop for stop in given if isinstance(stop, str)]
        ends = frozenset(stop for stop in given if isinstance(stop, int))
        if self.model.end is not None and not request.ban_eos_token:
            ends |= {self.model.end}
        maximum = request.max_tokens or self.max_seq_len - len(prompt) - 1
        keep = max(map(len, stops), default=1) - 1
        reader, text, told, made = TextOf(self.model), "", 0, 0
        steps: list[Step] = []
        reason, cut = "length", False
        minimum = request.min_tokens or 0
        for step in generate(self.model, prompt, _sampling(request), maximum, ends, minimum):
            made += 1
            if step.token in ends:
                reason = "stop"
                break
            steps.append(step)
            text += reader.add(step.token)
            at = min((text.find(stop) for stop in stops if stop in text), default=-1)
            if at >= 0:
                text, reason, cut = text[:at], "stop", True
                break
            until = max(told, len(text) - keep)
            if until > told and len(steps) >= self.burst:
                yield text[told:until], steps, None
                told, steps = until, []
        if not cut:
            text += reader.rest()
        if len(text) > told:
            yield text[told:], steps, None
        self._keep(prompt)
        yield "", [], (reason, made)

    def _logprobs(self, request: _Request, steps: list[Step]) -> dict[str, Any]:
        pieces, offset = self.model.pieces, 0
        offsets, tops = [], []
        for step in steps:
            offsets.append(offset)
            offset += len(pieces[step.token])
            best = np.argsort(-step.logprobs, kind="stable")[: request.top_logprobs or 0]
            tops.append({pieces[id]: float(step.logprobs[id]) for id in best} or None)
        return {
            "tokens": [pieces[step.token] for step in steps],
            "token_logprobs": [float(step.logprobs[step.token]) for step in steps],
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _usage(self, used: list[_Used]) -> dict[str, Any]:
        """Of the first prompt alone, with all answers: `aggregate_usage_stats`, OAI/utils/common_.py."""
        prompt, made = used[0].prompt, sum(one.made for one in used)
        total = {"completion_tokens": made, "total_tokens": prompt + made}
        if not self.tells_cached:
            return {"prompt_tokens": prompt, **total}
        cached = {"cached_tokens": used[0].cached}
        return {"prompt_tokens": prompt, "prompt_tokens_details": cached, **total}

    # The cache

    def _cached(self, prompt: list[int]) -> int:
        cached = 0
        while cached + PAGE < len(prompt) and tuple(prompt[: cached + PAGE]) in self._pages:
            cached += PAGE
        return cached

    def _keep(self, prompt: list[int]) -> None:
        for end in range(PAGE, len(prompt) + 1, PAGE):
            self._pages.add(tuple(prompt[:end]))

    # Lines

    @property
    def _line_end(self) -> str:
        return "\n" if self.age == "2026" else "\r\n"

    def _event(self, value: object) -> bytes:
        said = json.dumps(value, ensure_ascii=False)
        return f"data: {said}{self._line_end * 2}".encode()


def _sampling(request: _Request) -> Sampling:
    return Sampling(
        1.0 if request.temperature is None else request.temperature,
        1.0 if request.top_p is None else request.top_p,
        max(0, request.top_k or 0),
        request.min_p or 0.0,
        None,
        frozenset(request.allowed_tokens) if request.allowed_tokens else None,
        request.logit_bias or {},
    )
