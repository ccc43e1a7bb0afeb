"""What the daemon counts of an engine that waits for a server."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from tokenizers import Tokenizer

from completion_ls.config.settings import Settings
from completion_ls.daemon.worker import Outgoing, Published, Worker
from completion_ls.wire.endpoint import DaemonConfig
from completion_ls.wire.messages import Complete, Done
from support.remote import faults
from support.remote.http import serving
from support.remote.model import HashedModel
from support.remote.vllm import Vllm
from support.tiny_model import write_tiny_model

PAUSE_S = 0.05
WAIT_S = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def test_the_time_of_a_token_is_that_from_one_to_the_next(folder: Path) -> None:
    """And not that of the last look, in which it was there."""
    published: SimpleQueue[Published] = SimpleQueue()
    figures: SimpleQueue[dict[str, Any]] = SimpleQueue()
    model = HashedModel(Tokenizer.from_file(str(folder / "tokenizer.json")))
    with serving(Vllm(model)) as server:
        sections = {
            "model": {"name": str(folder), "format": "plain"},
            "engine": {"kind": "remote"},
            "remote": {"url": server.url, "timeout_s": 60},
        }
        worker = Worker(DaemonConfig.of(Settings.model_validate(sections)), published.put)
        worker.start()
        try:
            asked = Complete(id=1, document="a", prefix="x = ", suffix="", max_tokens=10)
            server.fail(faults.SlowEvents(PAUSE_S), path="/v1/completions", times=float("inf"))
            worker.submit("front", asked)
            while True:
                match published.get(timeout=WAIT_S):
                    case Outgoing(message=Done() as done):
                        break
            worker.snapshot(figures.put)
            found = figures.get(timeout=WAIT_S)
        finally:
            worker.close()
            worker.join(WAIT_S)
    assert done.generated == 10
    assert 0 < found["tokens_per_second"] < 2 / PAUSE_S
    assert found["jobs_awaited_without_pass"] == 0
