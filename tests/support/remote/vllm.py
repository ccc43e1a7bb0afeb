"""A stand-in for vLLM's OpenAI server: `/v1/completions`, `/v1/models`, `/tokenize`, `/detokenize`,
`/version`, `/health`.

Where each rule was read, all in the repository vllm-project/vllm (paths of 2026; before 0.12 or so most of
it stood in vllm/entrypoints/openai/protocol.py, serving_completion.py and serving_engine.py):

- Fields of a request and their limits: vllm/entrypoints/openai/completion/protocol.py. Fields that it does
  not know are taken and ignored (`extra="allow"` in engine/protocol.py), so one that came later says nothing
  to an older server. What is of a wrong type is 400, not FastAPI's 422, and numbers in quotation marks are
  numbers to it: serve/exception_handling/handlers/validation.py.
- Streamed events: completion/serving.py. Fields that were set are there even where they are null; before
  0.10.2 (pull request 22587) neither `token_ids` nor `prompt_token_ids` was, and `usage: null` stood in each
  event. `prompt_token_ids` comes with the first event only, `usage` in one of its own with no choices, then
  `[DONE]`.
- An event has the tokens of a step, and may have no text: v1/engine/detokenizer.py keeps back what may be the
  beginning of a character (for ever, if the answer ends there) or of a `stop` string. The token that ends the
  answer is among the ids and the probabilities, and not in the text.
- `logprobs` counts probabilities beside the chosen token's: completion/serving.py. The chosen one stands
  first, tokens of equal text share one entry; `token_id:7` is what names a token where
  `return_tokens_as_token_ids` is set, by the request or the server's flag. More than `--max-logprobs` (20) is
  400: sampling_params.py. The probabilities are those before temperature (config/model.py, `logprobs_mode`).
- `suffix` is refused: renderers/online_renderer.py.
- Errors: nested in `error` since 0.10.1 (pull request 22099), flat with `"object": "error"` before. 401 is
  neither, and only paths below /v1 ask for a key: serve/middleware/authenticate.py (before that,
  openai/api_server.py). In a stream an error is an event, and `[DONE]` follows.
- Prompt and `max_tokens` together may not be more than `max_model_len`: renderers/params.py. A token id that
  the vocabulary lacks is 400: v1/engine/input_processor.py.
- `cached_tokens` only with `--enable-prompt-tokens-details`: completion/serving.py. Prompts are kept in
  blocks of 16 tokens, and answers too; the last token of a prompt is always computed, and `cache_salt` keeps
  requests apart: v1/core/kv_cache_manager.py, kv_cache_utils.py. Who asks for the prompt's probabilities
  reuses nothing.

Refused with 501, as no rule of it is kept here: `n` above 1, beams, penalties, structured output,
embeddings.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from support.remote.http import Answer, Asked, json_answer
from support.remote.model import HashedModel, Probabilities, Sampling, Step, TextOf, generate

BLOCK = 16
"""Tokens in a block of the prefix cache."""
DONE = b"data: [DONE]\n\n"
NAMES = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}
INT64 = 1 << 63

Id = Annotated[int, Field(ge=0)]


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="allow")
    include_usage: bool | None = True
    continuous_usage_stats: bool | None = False


class _Request(BaseModel):
    model_config = ConfigDict(extra="allow")
    model: str | None = None
    prompt: list[Id] | list[list[Id]] | str | list[str] | None = None
    echo: bool | None = False
    logit_bias: dict[str, float] | None = None
    logprobs: int | None = None
    max_tokens: int | None = 16
    n: int = 1
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    stop: str | list[str] | None = []
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    suffix: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    top_k: int | None = None
    min_p: float | None = None
    stop_token_ids: list[int] | None = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    allowed_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    add_special_tokens: bool = True
    request_id: str = ""
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None


class _Tokenize(BaseModel):
    model_config = ConfigDict(extra="allow")
    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class _Detokenize(BaseModel):
    model_config = ConfigDict(extra="allow")
    model: str | None = None
    tokens: list[int]


NOT_HERE: dict[str, object] = {
    "best_of": 1,
    "use_beam_search": False,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "response_format": None,
    "structured_outputs": None,
    "prompt_embeds": None,
    "truncate_prompt_tokens": None,
    "logprob_token_ids": None,
    "bad_words": [],
}
"""Fields that a real server heeds and this one does not, with the values that ask for nothing."""


class _Refused(Exception):
    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param


@dataclass
class _Answered:
    """One choice, as far as it has been told."""

    index: int
    prompt: list[int]
    prompt_text: str
    cached: int
    tokens: list[int] = field(default_factory=list)
    told: int = 0
    """Characters."""


@dataclass(frozen=True)
class _Told:
    """What one event tells."""

    text: str
    steps: list[Step]
    finish: str | None
    stop: int | str | None


class Vllm:
    """`serving(Vllm(model, key="secret"))`.

    `age` is the version that it tells and whose fields it has. `tells_cached` is
    `--enable-prompt-tokens-details`, `ids_as_tokens` `--return-tokens-as-token-ids`, `burst` the tokens of an
    event, as with speculative decoding.
    """

    def __init__(
        self,
        model: HashedModel,
        *,
        key: str = "",
        name: str = "tiny",
        age: str = "0.29.0",
        max_model_len: int = 2048,
        max_logprobs: int = 20,
        tells_cached: bool = False,
        ids_as_tokens: bool = False,
        burst: int = 1,
    ) -> None:
        self.model, self.key, self.name, self.age = model, key, name, age
        self.max_model_len, self.max_logprobs = max_model_len, max_logprobs
        self.tells_cached, self.ids_as_tokens, self.burst = tells_cached, ids_as_tokens, burst
        self.keeps = True
        """Whether there is room for what was read."""
        self._version = tuple(int(part) for part in age.split(".")[:3])
        self._blocks: set[tuple[str | None, tuple[int, ...]]] = set()
        self._numbers = count(1)

    # Errors

    def error(self, status: int, message: str, param: str | None = None) -> object:
        name = NAMES.get(status, "InternalServerError")
        said = {"message": message, "type": name, "param": param, "code": status}
        return {"error": said} if self._version >= (0, 10, 1) else {"object": "error", **said}

    def error_events(self, message: str) -> list[bytes]:
        return [_event(self.error(500, message)), DONE]

    # Paths

    def answer(self, asked: Asked) -> Answer:
        if asked.path.startswith("/v1") and self.key and asked.bearer != self.key:
            return json_answer(401, {"error": "Unauthorized"})
        paths = {
            ("GET", "/health"): self._health,
            ("GET", "/version"): self._tell_version,
            ("GET", "/v1/models"): self._models,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("POST", "/v1/completions"): self._completions,
        }
        found = paths.get((asked.method, asked.path))
        try:
            if found is None:
                known = any(path == asked.path for _, path in paths)
                raise _Refused(405, "Method Not Allowed") if known else _Refused(404, "Not Found")
            if asked.method == "POST":
                kind = asked.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind != "application/json":
                    raise _Refused(400, "Unsupported media type: only application/json is taken.")
                if asked.body is None:
                    raise _Refused(400, "1 validation error: the body is no JSON.", "body")
            return found(asked)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"][:1])
            said = f"{error.error_count()} validation errors: {first['msg']} ({where})"
            return json_answer(400, self.error(400, said, f"body.{where}"))
        except _Refused as error:
            return json_answer(error.status, self.error(error.status, str(error), error.param))

    def _health(self, asked: Asked) -> Answer:
        return Answer(200, [b""])

    def _tell_version(self, asked: Asked) -> Answer:
        return json_answer(200, {"version": self.age})

    def _models(self, asked: Asked) -> Answer:
        card = {
            "id": self.name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": f"someone/{self.name}",
            "parent": None,
            "max_model_len": self.max_model_len,
            "permission": [{"id": "modelperm-1", "object": "model_permission"}],
        }
        return json_answer(200, {"object": "list", "data": [card]})

    def _tokenize(self, asked: Asked) -> Answer:
        request = _Tokenize.model_validate(asked.body)
        self._check_model(request.model)
        ids = self.model.encode(request.prompt, request.add_special_tokens)
        self._check_length(len(ids), 0)
        strings = [self.model.pieces[id] for id in ids] if request.return_token_strs else None
        said = {"count": len(ids), "max_model_len": self.max_model_len, "tokens": ids}
        return json_answer(200, {**said, "token_strs": strings})

    def _detokenize(self, asked: Asked) -> Answer:
        request = _Detokenize.model_validate(asked.body)
        self._check_model(request.model)
        self._check_ids(request.tokens)
        text = self.model.tokenizer.decode(request.tokens, skip_special_tokens=False)
        return json_answer(200, {"prompt": text})

    # Completions

    def _completions(self, asked: Asked) -> Answer:
        self._check_raw(asked.body)
        request = _Request.model_validate(asked.body)
        if self._version < (0, 10, 2):
            request.return_token_ids = None  # it does not know the field
        self._check_model(request.model)
        if request.suffix is not None:
            raise _Refused(400, "suffix is not currently supported")
        prompts = self._prompts(request)
        maximum = 16 if request.max_tokens is None else request.max_tokens
        self._check_sampling(request, maximum)
        for ids, _ in prompts:
            self._check_ids(ids)
            self._check_length(len(ids), maximum)
        # With `echo` one token is computed and not told.
        maximum = max(1, maximum)
        choices = [
            _Answered(index, ids, text, self._cached(request, ids))
            for index, (ids, text) in enumerate(prompts)
        ]
        id = request.request_id or f"{next(self._numbers):032x}"
        head = {"id": f"cmpl-{id}", "object": "text_completion", "created": int(time.time())}
        head["model"] = self.name
        if request.stream:
            events = self._events(request, head, choices, maximum)
            return Answer(200, events, "text/event-stream; charset=utf-8", streams=True)
        return json_answer(200, self._whole(request, head, choices, maximum))

    def _events(
        self, request: _Request, head: dict[str, Any], choices: list[_Answered], maximum: int
    ) -> Iterator[bytes]:
        options = request.stream_options
        for choice in choices:
            for first, told in _numbered(self._told(request, choice, maximum)):
                made = self._choice(request, choice, told, echoes=first)
                if self._version >= (0, 10, 2):
                    ids = bool(request.return_token_ids)
                    made["prompt_token_ids"] = choice.prompt if first and ids else None
                    made["token_ids"] = [step.token for step in told.steps] if ids else None
                event = {**head, "choices": [made]}
                if options and options.include_usage and options.continuous_usage_stats:
                    event["usage"] = _usage([choice])
                elif self._version < (0, 10, 2):
                    event["usage"] = None
                yield _event(event)
        if options and options.include_usage:
            yield _event({**head, "choices": [], "usage": self._final_usage(choices)})
        yield DONE

    def _whole(
        self, request: _Request, head: dict[str, Any], choices: list[_Answered], maximum: int
    ) -> dict[str, Any]:
        made = []
        for choice in choices:
            told = list(self._told(request, choice, maximum))
            steps = [step for part in told for step in part.steps]
            text = "".join(part.text for part in told)
            all_told = _Told(text, steps, told[-1].finish, told[-1].stop)
            one = self._choice(request, choice, all_told, echoes=True)
            one["prompt_logprobs"] = self._prompt_logprobs(request, choice)
            if self._version >= (0, 10, 2):
                ids = bool(request.return_token_ids)
                one["token_ids"] = [step.token for step in steps] if ids else None
                one["prompt_token_ids"] = choice.prompt if ids else None
            made.append(one)
        usage: dict[str, Any] = {"prompt_tokens_details": None, **self._final_usage(choices)}
        rest = {"service_tier": None, "system_fingerprint": None, "kv_transfer_params": None}
        return {**head, "choices": made, **rest, "usage": usage}

    def _told(self, request: _Request, choice: _Answered, maximum: int) -> Iterator[_Told]:
        """The answer to one prompt in steps; the last says how it ends."""
        stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
        end = self.model.end if not request.ignore_eos else None
        ends = frozenset(request.stop_token_ids or []) | ({end} if end is not None else frozenset())
        keep = 0 if request.include_stop_str_in_output else max(map(len, stops), default=1) - 1
        reader = TextOf(self.model, special=not request.skip_special_tokens)
        text, told, steps = "", 0, []
        made = generate(
            self.model, choice.prompt, self._sampling(request), maximum, ends, request.min_tokens
        )
        for step in made:
            choice.tokens.append(step.token)
            steps.append(step)
            ended = step.token in ends
            if not ended or request.include_stop_str_in_output:
                text += reader.add(step.token)
            finish: str | None = None
            stop: int | str | None = None
            if ended:
                finish, stop = "stop", None if step.token == end else step.token
            elif len(choice.tokens) == maximum:
                finish = "length"
            for found in stops if len(choice.tokens) > request.min_tokens else []:
                at = text.find(found)
                if at >= 0:
                    whole = request.include_stop_str_in_output
                    text = text[: at + len(found) if whole else at]
                    finish, stop = "stop", found
                    break
            if finish or len(steps) >= self.burst:
                until = len(text) if finish else max(told, len(text) - keep)
                yield _Told(text[told:until], steps, finish, stop)
                told, steps = until, []
            if finish:
                break
        self._keep(request, choice.prompt + choice.tokens[:-1])

    def _choice(
        self, request: _Request, choice: _Answered, told: _Told, echoes: bool
    ) -> dict[str, Any]:
        text, steps = told.text, told.steps
        tokens: list[int] = [step.token for step in steps]
        probable: list[Probabilities | None] = [step.logprobs for step in steps]
        if request.echo and echoes:
            prompt_text = "" if request.return_token_ids else choice.prompt_text
            only = request.max_tokens == 0
            text = prompt_text if only else prompt_text + text
            tokens = choice.prompt + ([] if only else tokens)
            if request.logprobs is not None:
                probable = self._of_prompt(choice.prompt) + ([] if only else probable)
        logprobs = None
        if request.logprobs is not None:
            logprobs = self._logprobs(request, tokens, probable, choice.told)
        choice.told += len(text)
        return {
            "index": choice.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": told.finish,
            "stop_reason": told.stop,
        }

    def _logprobs(
        self,
        request: _Request,
        tokens: list[int],
        probable: list[Probabilities | None],
        offset: int,
    ) -> dict[str, Any]:
        by_id = request.return_tokens_as_token_ids
        by_id = self.ids_as_tokens if by_id is None else by_id

        def name(token: int) -> str:
            if by_id:
                return f"token_id:{token}"
            return self.model.spelled[token].decode(errors="replace")

        assert request.logprobs is not None
        most = self.model.vocabulary if request.logprobs == -1 else request.logprobs
        offsets: list[int] = []
        chosen: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        for token, logprobs in zip(tokens, probable, strict=True):
            offsets.append(offset)
            offset += len(name(token))
            if logprobs is None:
                chosen.append(None)
                tops.append(None)
                continue
            best = [int(id) for id in np.argsort(-logprobs, kind="stable")[:most]]
            ranked = [token, *(id for id in best if id != token)]
            chosen.append(max(float(logprobs[token]), -9999.0))
            tops.append({name(id): max(float(logprobs[id]), -9999.0) for id in ranked})
        names = [name(token) for token in tokens]
        return {
            "text_offset": offsets,
            "token_logprobs": chosen,
            "tokens": names,
            "top_logprobs": tops,
        }

    def _of_prompt(self, prompt: list[int]) -> list[Probabilities | None]:
        return [None, *(self.model.logprobs(prompt[:at]) for at in range(1, len(prompt)))]

    def _prompt_logprobs(self, request: _Request, choice: _Answered) -> list[Any] | None:
        most = request.prompt_logprobs
        if most is None and request.echo:
            most = request.logprobs
        if most is None:
            return None
        found: list[Any] = []
        for token, logprobs in zip(choice.prompt, self._of_prompt(choice.prompt), strict=True):
            if logprobs is None:
                found.append(None)
                continue
            order = [int(id) for id in np.argsort(-logprobs, kind="stable")]
            ids = dict.fromkeys([token, *(order if most == -1 else order[:most])])
            found.append(
                {
                    str(id): {
                        "logprob": float(logprobs[id]),
                        "rank": order.index(id) + 1,
                        "decoded_token": self.model.spelled[id].decode(errors="replace"),
                    }
                    for id in ids
                }
            )
        return found

    def _final_usage(self, choices: list[_Answered]) -> dict[str, Any]:
        usage: dict[str, Any] = _usage(choices)
        if self.tells_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": choices[0].cached}
        return usage

    # The prefix cache

    def _cached(self, request: _Request, prompt: list[int]) -> int:
        """Tokens of the prompt that need no computing."""
        if request.prompt_logprobs is not None or (request.echo and request.logprobs is not None):
            return 0
        cached = 0
        while cached + BLOCK <= len(prompt) - 1:
            if (request.cache_salt, tuple(prompt[: cached + BLOCK])) not in self._blocks:
                break
            cached += BLOCK
        return cached

    def _keep(self, request: _Request, tokens: list[int]) -> None:
        if not self.keeps:
            self._blocks.clear()
            return
        for end in range(BLOCK, len(tokens) + 1, BLOCK):
            self._blocks.add((request.cache_salt, tuple(tokens[:end])))

    # What is refused

    def _check_raw(self, body: object) -> None:
        """What is looked at before types are."""
        if not isinstance(body, dict):
            raise _Refused(400, "1 validation error: the body is no object.", "body")
        for name, neutral in NOT_HERE.items():
            if body.get(name, neutral) not in (neutral, None):
                raise _Refused(501, f"This stand-in does not know `{name}`.", name)
        if body.get("max_tokens") is None:
            body.pop("max_tokens", None)
        salt = body.get("cache_salt")
        if salt is not None and (not isinstance(salt, str) or not salt):
            raise _Refused(400, "`cache_salt` must be a text that is not empty.", "cache_salt")
        for name in ("prompt_logprobs", "logprobs"):
            value = body.get(name)
            if value is None:
                continue
            if not isinstance(value, int | float):
                raise _Refused(400, f"`{name}` must be an integer.", name)
            if value < 0 and value != -1:
                raise _Refused(400, f"`{name}` must be a positive value or -1.", name)
        if body.get("stream") and body.get("prompt_logprobs"):
            raise _Refused(400, "no `prompt_logprobs` in a stream", "prompt_logprobs")
        if body.get("stream_options") and not body.get("stream"):
            raise _Refused(400, "`stream_options` are for streams alone.", "stream_options")
        if body.get("prompt") in (None, ""):
            raise _Refused(400, "There must be a prompt that is not empty.", "prompt")

    def _check_model(self, name: str | None) -> None:
        if name and name != self.name:
            raise _Refused(404, f"The model `{name}` does not exist.", "model")

    def _check_ids(self, ids: list[int]) -> None:
        if not ids:
            raise _Refused(400, "The prompt cannot be empty.")
        worst = max(ids)
        if worst >= self.model.vocabulary or min(ids) < 0:
            raise _Refused(400, f"Token id {worst} is out of vocabulary.")

    def _check_length(self, prompt: int, output: int) -> None:
        if prompt + output > self.max_model_len:
            said = (
                f"This model's maximum context length is {self.max_model_len} tokens: {prompt} of"
            )
            raise _Refused(
                400, f"{said} prompt and {output} of output are too many.", "input_tokens"
            )

    def _check_sampling(self, request: _Request, maximum: int) -> None:
        def refuse(name: str, rule: str) -> None:
            raise _Refused(400, f"{name} must be {rule}, got {getattr(request, name)}.", name)

        if request.n != 1:
            raise _Refused(501 if request.n > 1 else 400, "This stand-in makes one choice.", "n")
        if (request.temperature or 0) < 0:
            refuse("temperature", "non-negative")
        if request.top_p is not None and not 0 < request.top_p <= 1:
            refuse("top_p", "in (0, 1]")
        if (request.top_k or 0) < -1:
            refuse("top_k", "0 (off), or at least 1")
        if not 0 <= (request.min_p or 0) <= 1:
            refuse("min_p", "in [0, 1]")
        if maximum < 1 and not (request.echo and maximum == 0):
            refuse("max_tokens", "at least 1")
        if request.min_tokens < 0 or request.min_tokens > max(1, maximum):
            refuse("min_tokens", "between 0 and max_tokens")
        if isinstance(request.stop, list) and "" in request.stop:
            refuse("stop", "without an empty text")
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(request, name) or 0
            wanted = self.model.vocabulary if wanted == -1 else wanted
            limit = self.model.vocabulary if self.max_logprobs == -1 else self.max_logprobs
            if wanted > limit:
                kind = "sample" if name == "logprobs" else "prompt"
                said = f"Requested {kind} logprobs of {wanted}, which is greater than max allowed:"
                raise _Refused(400, f"{said} {limit}", name)
        if request.allowed_token_ids is not None and (
            not request.allowed_token_ids
            or not all(0 <= id < self.model.vocabulary for id in request.allowed_token_ids)
        ):
            refuse("allowed_token_ids", "tokens of the vocabulary, and not empty")

    # Reading a request

    def _prompts(self, request: _Request) -> list[tuple[list[int], str]]:
        """Tokens and text of each prompt."""
        prompt = request.prompt
        assert prompt is not None
        # A list of numbers is one prompt, any other list is several.
        one_prompt = isinstance(prompt, str) or not prompt or isinstance(prompt[0], int)
        several: list[Any] = [prompt] if one_prompt else list(prompt)
        found = []
        for one in several:
            if isinstance(one, str):
                found.append((self.model.encode(one, request.add_special_tokens), one))
            else:
                self._check_ids(one)
                found.append((one, self.model.tokenizer.decode(one, skip_special_tokens=False)))
        return found

    def _sampling(self, request: _Request) -> Sampling:
        try:
            bias = {int(id): value for id, value in (request.logit_bias or {}).items()}
        except ValueError:
            raise _Refused(400, "`logit_bias` names tokens by their id.", "logit_bias") from None
        allowed = request.allowed_token_ids
        return Sampling(
            1.0 if request.temperature is None else request.temperature,
            1.0 if request.top_p is None else request.top_p,
            max(0, request.top_k or 0),
            request.min_p or 0.0,
            request.seed,
            None if allowed is None else frozenset(allowed),
            {id: max(-100.0, min(100.0, value)) for id, value in bias.items()},
        )


def _usage(choices: list[_Answered]) -> dict[str, int]:
    prompt = sum(len(choice.prompt) for choice in choices)
    made = sum(len(choice.tokens) for choice in choices)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + made,
        "completion_tokens": made,
    }


def _event(value: object) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def _numbered(told: Iterator[_Told]) -> Iterator[tuple[bool, _Told]]:
    """With each, whether it is the first."""
    return ((number == 0, part) for number, part in enumerate(told))
