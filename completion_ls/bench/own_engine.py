"""Our engine in a process of its own, loaded as the daemon loads it and asked through its contract."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable

from completion_ls.bench.child import Json, serve
from completion_ls.daemon.load import calm_openmp, load
from completion_ls.engines.contract import Engine, Job, Sampling
from completion_ls.wire.endpoint import DaemonConfig

COPIES = 5
GREEDY = Sampling()
_ids = itertools.count(1)


def generate(
    engine: Engine,
    prompt: tuple[int, ...],
    tokens: int,
    sampling: Sampling = GREEDY,
    *,
    fresh: bool = True,
) -> Json:
    """To exactly so many tokens; a `fresh` one as an engine that was just loaded would. `first_s` is the
    time of all steps up to the first token, `first` how many tokens came with it, `steps_s` the
    times of the steps after, in `rest_passes`."""
    produced = list[int]()
    passes = 0
    first, first_s, steps_s = 0, 0.0, []
    begin = time.perf_counter()
    engine.add(Job(next(_ids), prompt, tokens, sampling=sampling, fresh=fresh))
    finished = False
    while not finished:
        for event in engine.step():
            produced += event.tokens
            finished = event.finish is not None
        end = time.perf_counter()
        if first:
            steps_s.append(end - begin)
            begin = end
        elif produced:
            first, first_s, begin = len(produced), end - begin, end
            passes = engine.passes
    return {
        "tokens": produced,
        "first": first,
        "first_s": first_s,
        "steps_s": steps_s,
        "rest_passes": engine.passes - passes,
    }


def copied_per_s(size: int) -> float:
    """Bytes a second that a copy of `size` bytes moves, with torch's threads: each is read and
    written. The best of a few, since only that one was left alone."""
    import torch

    source = torch.ones(size, dtype=torch.uint8)
    target = torch.zeros(size, dtype=torch.uint8)
    times = []
    for _ in range(COPIES):
        begin = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - begin)
    return size / min(times)


def start(what: Json) -> tuple[Json, Callable[[Json], Json]]:
    """Load the engine of a `DaemonConfig`."""
    config = DaemonConfig.model_validate(what)
    calm_openmp()
    begin = time.perf_counter()
    import torch

    imported = time.perf_counter()
    engine = load(config, lambda text, fraction: None).engine
    ready = {
        "import_s": imported - begin,
        "load_s": time.perf_counter() - imported,
        "weight_bytes": engine.stats().weight_bytes,
        "threads": torch.get_num_threads(),
        "max_context": engine.max_context,
    }

    def answer(question: Json) -> Json:
        if "copy" in question:
            return {"copied_per_s": copied_per_s(question["copy"])}
        return generate(engine, tuple(question["prompt"]), question["tokens"])

    return ready, answer


if __name__ == "__main__":
    sys.exit(serve(start))
