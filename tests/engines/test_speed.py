"""What the machine does is measured once, and a file that is of no use is measured again."""

from __future__ import annotations

import json
import logging
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from completion_ls.engines.cores import thread_counts
from completion_ls.engines.llama import Llama
from completion_ls.engines.native import Native, load_native
from completion_ls.engines.speed import WIDTHS, OtherWork, Speed, speed_of
from support.tiny_model import write_tiny_model

PROCESSORS = OtherWork.processors


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(folder))
    return folder


@pytest.fixture(scope="module")
def folder(tiny: Callable) -> Path:
    return tiny("qwen3").folder


@pytest.fixture(scope="module")
def native() -> Native | None:
    return load_native()  # from the user's cache; that of a test is empty


@pytest.fixture
def model(cache: Path, folder: Path, native: Native | None) -> Llama:
    return Llama.read(folder, "int8", native)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else this machine does."""
    monkeypatch.setattr(OtherWork, "processors", lambda self: 0.0)


def test_what_was_measured_on_a_busy_machine_is_measured_again(
    cache: Path, model: Llama, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OtherWork, "processors", lambda self: 1.0)
    model = counted(model)
    speed_of(model, folder, 1)
    assert not (cache / "measured").exists()
    monkeypatch.setattr(OtherWork, "processors", lambda self: 0.0)
    Counted.passes = 0
    speed_of(model, folder, 1)
    assert Counted.passes > 0
    assert len(files(cache)) == 1


def test_other_work_is_that_of_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    now, own, machine = [100.0], [5.0], [1000.0]
    monkeypatch.setattr(OtherWork, "processors", PROCESSORS)
    clock = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: own[0])
    monkeypatch.setattr("completion_ls.engines.speed.time", clock)
    times = namedtuple("times", "user idle iowait guest")
    monkeypatch.setattr("psutil.cpu_times", lambda: times(machine[0], 7.0, 1.0, 0.0))
    others = OtherWork()
    now[0], own[0], machine[0] = 102.0, 6.5, 1004.5
    assert others.processors() == pytest.approx(1.5)


@pytest.fixture(autouse=True)
def one_thread_afterwards() -> object:
    yield
    torch.set_num_threads(1)


class Counted(Llama):
    """Counts its passes."""

    passes = 0

    def forward(self, *args: object, **more: object) -> torch.Tensor:
        type(self).passes += 1
        return super().forward(*args, **more)


def counted(model: Llama) -> Counted:
    Counted.passes = 0
    return Counted(model.shape, model.weights, model.native)


def files(cache: Path) -> list[Path]:
    return sorted((cache / "measured").iterdir())


def test_it_is_measured_once(cache: Path, model: Llama, folder: Path) -> None:
    model = counted(model)
    first = speed_of(model, folder, 1)
    assert Counted.passes > 0
    assert first.threads == 1 and [width for width, _ in first.seconds] == list(WIDTHS)
    assert all(seconds > 0 for _, seconds in first.seconds)
    assert first.cost(1) == 1.0 and first.cost(17) >= first.cost(2) >= 1.0
    (file,) = files(cache)
    Counted.passes = 0
    assert speed_of(model, folder, 1) == first
    assert Counted.passes == 0
    assert files(cache) == [file]


def test_each_kind_of_weights_and_number_of_threads_is_measured_for_itself(
    cache: Path, model: Llama, folder: Path
) -> None:
    speed_of(model, folder, 1)
    speed_of(model, folder, 2)
    assert torch.get_num_threads() == 2
    speed_of(Llama.read(folder, "bf16"), folder, 2)
    speed_of(Llama.read(folder), folder, 2)
    assert len(files(cache)) == 4


def test_the_number_of_threads_in_the_settings_is_kept_to(
    cache: Path, model: Llama, folder: Path
) -> None:
    for threads in (2, 1, 3, 2, 1):  # measured, and found again
        assert speed_of(model, folder, threads).threads == threads
        assert torch.get_num_threads() == threads


def test_without_a_setting_the_best_number_is_found(
    cache: Path, model: Llama, folder: Path
) -> None:
    found = speed_of(model, folder, 0)
    assert found.threads in thread_counts()
    assert torch.get_num_threads() == found.threads
    torch.set_num_threads(1)
    assert speed_of(model, folder, 0) == found
    assert torch.get_num_threads() == found.threads


GOOD = [[width, 0.001 * width] for width in WIDTHS]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "3",
        "\udcff",
        '{"threads": 1}',
        '{"threads": 1, "seconds": []}',
        '{"threads": 1, "seconds": [[1, 0.0]]}',
        '{"threads": 1, "seconds": [[1, NaN], [2, 1]]}',
        '{"threads": 1, "seconds": [[2, 0.1]]}',
        '{"threads": 1, "seconds": [[1, 0.1]]}',
        json.dumps({"threads": 0, "seconds": GOOD}),
        json.dumps({"threads": -4, "seconds": GOOD}),
        json.dumps({"threads": None, "seconds": GOOD}),
        json.dumps({"threads": float("inf"), "seconds": GOOD}),
        json.dumps({"threads": 1, "seconds": [*GOOD, [10**400, 1]]}),
        json.dumps({"threads": 1, "seconds": [*GOOD[:-1], [17, -1]]}),
    ],
)
def test_a_damaged_file_is_measured_again(
    cache: Path, model: Llama, folder: Path, text: str
) -> None:
    model = counted(model)
    good = speed_of(model, folder, 1)
    (file,) = files(cache)
    file.write_text(json.dumps({"threads": 1, "seconds": GOOD}))
    assert speed_of(model, folder, 1) == Speed(1, tuple((w, s) for w, s in GOOD)) != good
    file.write_bytes(text.encode(errors="surrogateescape"))
    Counted.passes = 0
    again = speed_of(model, folder, 1)
    assert Counted.passes > 0 and again.threads == 1
    assert speed_of(model, folder, 1) == again


def test_a_folder_that_cannot_be_written_is_no_error(
    cache: Path, model: Llama, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (cache / "measured").touch()
    assert speed_of(model, folder, 1).threads == 1
    assert "could not be kept" in caplog.text


def test_a_full_disk_is_no_error(
    cache: Path, model: Llama, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resource = pytest.importorskip("resource")
    caplog.set_level(logging.WARNING)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        assert speed_of(model, folder, 1).threads == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "could not be kept" in caplog.text
    assert files(cache) == []


@pytest.mark.parametrize("context", [1, 16, 17, 64, 512, 530])
def test_a_context_shorter_than_what_is_measured(cache: Path, tmp_path: Path, context: int) -> None:
    small = write_tiny_model(tmp_path / "small", context)
    model = Llama.read(small)
    assert speed_of(model, small, 1).cost(17) >= 1
