"""The daemon's figures for Prometheus: what they say, who can ask, and that they are off by default."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from completion_ls.config.settings import DraftSettings, Settings
from completion_ls.daemon.metrics import Metrics
from completion_ls.daemon.statistics import Served, Statistics, of_engine
from completion_ls.engines.contract import DraftSource, EngineStats, Lane, LaneJobs
from completion_ls.wire.attach import attach
from completion_ls.wire.client import EngineClient
from completion_ls.wire.connection import Connection
from completion_ls.wire.endpoint import DaemonConfig
from completion_ls.wire.messages import Complete, GetStatus, Status
from support.tiny_model import write_tiny_model
from support.window import until

Samples = dict[tuple[str, tuple[str, ...]], float]


def a_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def read(port: int) -> Samples:
    """All samples by name and the values of their labels, as a parser of the format reads them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    found = {(one.name, tuple(one.labels.values())): one.value for one in samples}
    assert len(found) == len(samples)
    return found


def some_figures() -> dict[str, Any]:
    """All that a daemon with a model tells."""
    statistics = Statistics(jobs=9, awaited=7, engine_s=2.5, without_pass=3)
    statistics.recent += [Served(90, 10, 12.0), Served(100, 0, 250.0)]
    stats = EngineStats(
        passes=40,
        prompt_tokens_reused=900,
        prompt_tokens_computed=100,
        tokens_generated=60,
        jobs_active=2,
        sequences_cached=3,
        sequences_in_use=2,
        kv_bytes=5,
        kv_bytes_limit=6,
        weight_bytes=7,
        drafting=(DraftSource("model", False, "too slow", 5, 20, 18, 4),),
        lanes={Lane.KEY: LaneJobs(2, 1), Lane.MANUAL: LaneJobs(), Lane.BACKGROUND: LaneJobs()},
        kv_by_document={"file:///home/me/secret.py": 5},
        card_bytes=8,
        card_bytes_limit=9,
    )
    own = {"version": "1.2", "pid": 5, "endpoint": "engine-1", "uptime_s": 3.5, "fronts": 2}
    model = {"model": "/home/me/a-model", "engine": "exllamav2", "max_context": 4096}
    engine = of_engine(stats, DraftSettings())
    return {**own, "memory_bytes": 11, **model, **engine, **statistics.figures(), "audited": 4}


@pytest.fixture
def served() -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """A port, and the figures that are told there."""
    told = [some_figures()]
    port = a_port()
    metrics = Metrics(port, lambda: told[0])
    yield port, told
    metrics.close()


def test_the_figures_are_those_of_status(served: tuple[int, list[dict[str, Any]]]) -> None:
    found = read(served[0])
    for (name, *labels), value in {
        ("info", "exllamav2", "1.2"): 1,
        ("ready",): 1,
        ("uptime_seconds",): 3.5,
        ("fronts",): 2,
        ("resident_memory_bytes",): 11,
        ("jobs_total",): 9,
        ("jobs_awaited_total",): 7,
        ("answered_without_pass_total",): 3,
        ("engine_seconds_total",): 2.5,
        ("engine_wasted_seconds_total",): 0,
        ("passes_total",): 40,
        ("tokens_generated_total",): 60,
        ("audited_total",): 4,
        ("first_token_seconds", "0.5"): 0.012,
        ("first_token_seconds", "0.95"): 0.25,
        ("job_prompt_tokens_computed", "0.95"): 10,
        ("prompt_tokens_total", "cache"): 900,
        ("prompt_tokens_total", "computed"): 100,
        ("drafting", "lookup"): 0,
        ("drafting", "model"): 0,
        ("draft_tokens_checked_total", "model"): 18,
        ("draft_tokens_accepted_total", "model"): 4,
        ("draft_length_mean_tokens",): 4,
        ("lane_jobs", "key", "waiting"): 2,
        ("lane_jobs", "key", "running"): 1,
        ("lane_jobs", "background", "running"): 0,
        ("kv_bytes",): 5,
        ("kv_limit_bytes",): 6,
        ("weight_bytes",): 7,
        ("gpu_memory_bytes",): 8,
        ("gpu_memory_limit_bytes",): 9,
    }.items():
        assert found["completion_ls_" + name, tuple(labels)] == pytest.approx(value)


def test_no_name_of_the_users_is_told(served: tuple[int, list[dict[str, Any]]]) -> None:
    labels = {value for _, values in read(served[0]) for value in values}
    assert not any("secret" in value or "/" in value or "a-model" in value for value in labels)


def test_while_the_model_loads_there_is_less(served: tuple[int, list[dict[str, Any]]]) -> None:
    port, told = served
    told[0] = {"version": "1.2", "uptime_s": 1.0, "fronts": 0, "memory_bytes": 3, "loading": "…"}
    found = read(port)
    assert found["completion_ls_ready", ()] == 0
    assert found["completion_ls_resident_memory_bytes", ()] == 3
    assert ("completion_ls_jobs_total", ()) not in found


def test_an_engine_that_has_no_time_to_answer_is_no_error() -> None:
    def ask() -> dict[str, Any]:
        raise TimeoutError

    port = a_port()
    metrics = Metrics(port, ask)
    assert read(port) == {}
    metrics.close()
    with socket.socket() as again:
        assert again.connect_ex(("127.0.0.1", port)) != 0


# The daemon itself


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def configured(folder: Path, port: int, **engine: Any) -> DaemonConfig:
    sections = {
        "model": {"name": str(folder)},
        "engine": {"threads": 1, **engine},
        "daemon": {"metrics_port": port, "transport": "unix"},
    }
    return DaemonConfig.of(Settings.model_validate(sections))


async def started(config: DaemonConfig) -> tuple[Connection, set[tuple[str, int]]]:
    """A connection to a daemon that has a model, and where it listens."""
    client = EngineClient(config)
    answer = await client.complete(Complete(id=1, document="a", prefix="x = ", suffix=""))
    async for _ in answer:
        pass
    connection = await attach(config)
    await client.close()
    return connection, listening(connection)


def listening(connection: Connection) -> set[tuple[str, int]]:
    found = psutil.Process(connection.welcome.pid).net_connections("inet")
    return {one.laddr for one in found if one.status == psutil.CONN_LISTEN}


async def figures_of(connection: Connection) -> dict[str, Any]:
    connection.send(GetStatus())
    while not isinstance(message := await connection.receive(), Status):
        pass
    return message.figures


def log_of(isolated: dict[str, str]) -> str:
    files = Path(isolated["COMPLETION_LS_LOG_DIR"]).iterdir()
    return "".join(file.read_text() for file in files)


@pytest.mark.process
async def test_no_port_is_opened_unless_one_is_named(tiny_folder: Path) -> None:
    connection, found = await started(configured(tiny_folder, 0))
    assert found == set()
    connection.close()


@pytest.mark.process
def test_the_package_is_not_imported_unless_it_is_needed() -> None:
    code = "import sys, completion_ls.daemon.server; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


@pytest.mark.process
async def test_a_daemon_tells_its_figures_to_this_machine(tiny_folder: Path) -> None:
    port = a_port()
    connection, _ = await started(configured(tiny_folder, port))
    await until(lambda: bool(listening(connection)))
    assert listening(connection) == {("127.0.0.1", port)}
    found = await asyncio.to_thread(read, port)
    assert found["completion_ls_jobs_total", ()] == 1
    assert found["completion_ls_tokens_generated_total", ()] >= 64
    assert found["completion_ls_ready", ()] == 1
    assert found["completion_ls_lane_jobs", ("key", "running")] == 0
    told = await figures_of(connection)
    assert told["metrics_url"] == f"http://127.0.0.1:{port}/metrics"
    many = await asyncio.gather(*(asyncio.to_thread(read, port) for _ in range(20)))
    assert all(one["completion_ls_jobs_total", ()] == 1 for one in many)
    connection.close()


@pytest.mark.process
async def test_a_port_that_is_taken_is_a_warning(
    tiny_folder: Path, isolated: dict[str, str]
) -> None:
    port = a_port()
    first, _ = await started(configured(tiny_folder, port))
    await until(lambda: bool(listening(first)))
    second, found = await started(configured(tiny_folder, port, prefill_chunk=64))
    assert second.welcome.pid != first.welcome.pid
    assert found == set()
    await until(lambda: "this daemon has no metrics" in log_of(isolated))
    assert log_of(isolated).count(f"daemon.metrics_port: port {port} cannot be had") == 1
    told = await figures_of(second)
    assert f"port {port} cannot be had" in told["metrics_failure"] and "metrics_url" not in told
    first.close()
    second.close()


@pytest.mark.process
async def test_a_package_that_is_missing_is_a_warning(
    tiny_folder: Path,
    isolated: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "prometheus_client.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    connection, found = await started(configured(tiny_folder, a_port()))
    assert found == set()
    await until(lambda: "prometheus-client is not installed" in log_of(isolated))
    assert "is not installed" in (await figures_of(connection))["metrics_failure"]
    connection.close()
