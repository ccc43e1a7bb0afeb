"""llama.cpp's server on the default model's GGUF, as a process of the tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from completion_ls.models import catalogue, fetch

CONTEXT = 4096
"""Of each slot."""


class Llama:
    """A server that is listening."""

    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The whole answer to a request."""
        found = httpx2.post(self.url + path, json=body, timeout=120).raise_for_status().json()
        return dict(found)

    def greedy(self, prompt: tuple[int, ...], count: int) -> list[int]:
        """The most probable output, computed without anything from before."""
        wanted = {"n_predict": count, "temperature": 0.0, "samplers": ["temperature"]}
        more = {"cache_prompt": False, "return_tokens": True, "ignore_eos": False}
        return list(self.post("/completion", {"prompt": list(prompt), **wanted, **more})["tokens"])

    def logprobs(self, prompt: tuple[int, ...], most: int) -> dict[int, float]:
        """Of the most probable next tokens."""
        wanted = {"prompt": list(prompt), "n_predict": 1, "n_probs": most, "temperature": 0.0}
        banned: list[list[object]] = []
        while True:  # it tells nothing where it chose half a character
            more = {"logit_bias": banned, "return_tokens": True}
            answer = self.post("/completion", wanted | more)
            if "completion_probabilities" in answer:
                break
            banned += [[token, False] for token in answer["tokens"]]
        [told] = answer["completion_probabilities"]
        return {one["id"]: one["logprob"] for one in told["top_logprobs"]}

    def busy(self) -> list[int]:
        """The slots in which something is computed now."""
        slots = httpx2.get(self.url + "/slots", timeout=60).raise_for_status().json()
        return [slot["id"] for slot in slots if slot["is_processing"]]


@contextmanager
def llama(slots: int = 2, port: int = 0) -> Iterator[Llama]:
    """A server as long as this lasts."""
    entry = catalogue.find(catalogue.DEFAULT)
    assert entry
    gguf = fetch.gguf_path(entry)
    sizes = ["--context", str(slots * CONTEXT), "--threads", "2", "--slots", str(slots)]
    command = [sys.executable, "-P", "-m", "completion_ls.bench.llama_cpp", str(gguf), *sizes]
    process = subprocess.Popen(
        [*command, "--port", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout
        line = process.stdout.readline()
        assert line, "llama.cpp's server did not start"
        yield Llama(line.split()[0])
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe
            pipe.close()
