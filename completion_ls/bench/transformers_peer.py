"""transformers' `generate` in a process of its own, on the same folder as our engine."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

from completion_ls.bench.child import Json, serve
from completion_ls.daemon.load import calm_openmp


class Clock:
    """What `generate` calls a streamer: it is given the prompt, then each token. Notes when."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: object) -> None:
        """The prompt, or the next token."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """That was the last."""


def start(what: Json) -> tuple[Json, Callable[[Json], Json]]:
    """Load the model in `folder`, as its files have it, for so many `threads`."""
    calm_openmp()  # as our own engine has it
    begin = time.perf_counter()
    import torch
    import transformers

    folder = what["folder"]
    config = transformers.AutoConfig.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    kind: Any = getattr(transformers, config.architectures[0])
    imported = time.perf_counter()
    torch.set_num_threads(what["threads"])
    model = kind.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False, use_safetensors=True
    ).eval()
    model.generation_config.eos_token_id = None  # all sides produce the same count
    model.generation_config.pad_token_id = 0
    ready = {"import_s": imported - begin, "load_s": time.perf_counter() - imported}

    def answer(question: Json) -> Json:
        prompt = torch.tensor([question["prompt"]])
        clock = Clock()
        begin = time.perf_counter()
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=question["tokens"],
            do_sample=False,
            streamer=clock,
        )
        _, first, *rest = clock.times
        return {
            "tokens": output[0, prompt.shape[1] :].tolist(),
            "first": 1,
            "first_s": first - begin,
            "steps_s": [after - before for before, after in itertools.pairwise([first, *rest])],
        }

    return ready, answer


if __name__ == "__main__":
    sys.exit(serve(start))
