"""A stand-in for llama.cpp's server where it is to say what the real one never would: the shapes of its
answers are those that the real one has here (tests/remote/test_llama_server.py runs that)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from support.remote.http import Answer, Asked, json_answer
from support.remote.model import HashedModel, Sampling, generate

NOT_FOUND = 404


@dataclass
class LlamaCpp:
    """A `Dialect`. `props` are the fields of `/props` that are others than usual."""

    model: HashedModel
    slots: Any = 2
    context: Any = 2048
    props: dict[str, Any] = field(default_factory=dict)

    def answer(self, asked: Asked) -> Answer:
        match asked.path:
            case "/props":
                usual = {"n_ctx": self.context}
                told = {"default_generation_settings": usual, "total_slots": self.slots}
                return json_answer(200, {**told, "model_path": "models/tiny.gguf", **self.props})
            case "/slots":
                count = self.slots if isinstance(self.slots, int) else 0
                idle = [{"id": number, "is_processing": False} for number in range(count)]
                return json_answer(200, idle)
            case "/tokenize":
                return json_answer(200, {"tokens": self.model.encode(asked.body["content"])})
            case "/completion":
                return self._completion(asked.body)
        return json_answer(NOT_FOUND, self.error(NOT_FOUND, "File Not Found"))

    def error(self, status: int, message: str) -> object:
        return {"error": {"code": status, "message": message, "type": "server_error"}}

    def error_events(self, message: str) -> list[bytes]:
        return [event(self.error(500, message))]

    def _completion(self, body: dict[str, Any]) -> Answer:
        prompt = body["prompt"]
        ids = self.model.encode(prompt) if isinstance(prompt, str) else prompt
        told = self._events(ids, body)
        if body.get("stream"):
            return Answer(200, map(event, told), "text/event-stream", streams=True)
        [*parts, last] = told
        whole = {name: [one for part in parts for one in part.get(name, [])] for name in LISTS}
        text = "".join(part["content"] for part in parts)
        return json_answer(200, last | whole | {"content": text})

    def _events(self, ids: Sequence[int], body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        banned = {int(token): -np.inf for token, _ in body.get("logit_bias", [])}
        ends = frozenset({self.model.end} if self.model.end is not None else ())
        timings = {"prompt_n": len(ids), "cache_n": 0}
        stop = "limit"
        for step in generate(self.model, ids, Sampling(bias=banned), body["n_predict"], ends):
            if step.token in ends:
                stop = "eos"
                break
            text = self.model.bytes_of([step.token]).decode(errors="replace")
            told = {"content": text, "tokens": [step.token], "stop": False, "timings": timings}
            if number := body.get("n_probs"):
                best = np.argsort(-step.logprobs, kind="stable")[:number]
                top = [{"id": int(id), "logprob": float(step.logprobs[id])} for id in best]
                mine = {"id": step.token, "logprob": float(step.logprobs[step.token])}
                told["completion_probabilities"] = [mine | {"top_logprobs": top}]
            yield told
        yield {"content": "", "tokens": [], "stop": True, "stop_type": stop, "timings": timings}


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


LISTS = ("tokens", "completion_probabilities")
