"""Programs that nobody has read: how they end, and what they leave behind."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from completion_ls.bench.sandbox import Limits, Outcome, run

pytestmark = pytest.mark.process
SHORT = Limits(cpu_s=1, wall_s=20)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) <= before
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "program",
    [
        "",
        "assert 1 + 1 == 2",
        "import math, re, hashlib, typing, collections\nassert math.gcd(4, 6) == 2",
        "assert __name__ == '__main__'",
        "print('x' * 50_000_000)",
        "open('here.txt', 'w').write('x')\nassert open('here.txt').read() == 'x'",
        "import os\nos.mkdir('a')\nos.rename('a', 'b')\nos.rmdir('b')",
        "assert 'é' == chr(233)",
    ],
)
def test_what_runs_to_its_end_has_passed(program: str) -> None:
    assert run(program) is Outcome.PASSED


@pytest.mark.parametrize(
    "program",
    [
        "assert 1 + 1 == 3",
        "def f(:",
        "raise SystemExit(3)",
        "raise SystemExit(0)",
        "import sys; sys.exit()",
        "import os; os._exit(0)",
        "import os; os._exit(3)",
        "x = bytearray(1 << 31)",
        "x = []\nwhile True: x.append(' ' * 1_000_000 + str(len(x)))",
        "def f(): return f()\nf()",
        "open('large', 'w').write('x' * 20_000_000)",
        "input()",
        "import numpy",  # only the standard library is there
    ],
)
def test_what_ends_otherwise_has_failed(program: str) -> None:
    assert run(program) is Outcome.FAILED


def test_an_endless_loop_ends_at_its_cpu_time() -> None:
    assert run("while True: pass", SHORT) is Outcome.TIMED_OUT


@pytest.mark.parametrize(
    "program",
    [
        "import time; time.sleep(60)",
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)",
        # A thread that goes on when the program has ended.
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).join()",
    ],
)
def test_one_that_sleeps_is_killed_or_fails(program: str) -> None:
    assert run(program, Limits(wall_s=1.0)) is not Outcome.PASSED


@pytest.mark.parametrize(
    "program",
    [
        "import os\nwhile True: os.fork()",
        "import subprocess, sys\nwhile True: subprocess.Popen([sys.executable])",
        "import os; assert os.system('true') == 0",
        "import multiprocessing\nmultiprocessing.Process(target=print).start()",
        "import os; os.execv('/bin/true', ['true'])",
        "import os; os.kill(os.getppid(), 0)",
        "import ctypes; ctypes.CDLL(None).fork()",
        "import ctypes; ctypes.pythonapi.Py_IsInitialized()",
    ],
)
def test_it_starts_and_signals_no_process(program: str) -> None:
    assert run(program, SHORT) is Outcome.FAILED


def test_many_threads_end_at_a_limit() -> None:
    program = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()"
    assert run(program, Limits(cpu_s=2, wall_s=10)) is not Outcome.PASSED


@pytest.mark.parametrize(
    "act",
    [
        "open({!r}, 'w')",
        "open({!r}, 'a')",
        "open({!r}, 'r+')",
        "import os; os.remove({!r})",
        "import os; os.rename({!r}, 'mine')",
        "import os; os.truncate({!r}, 0)",
        "import os; os.chmod({!r}, 0)",
        "import os; os.open({!r}, os.O_WRONLY)",
        "import pathlib; pathlib.Path({!r}).write_text('')",
        "import os; os.symlink({!r}, 'link'); open('link', 'w')",
    ],
)
def test_it_writes_nothing_outside_of_its_folder(act: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("text")
    assert run(act.format(str(kept))) is Outcome.FAILED
    assert kept.read_text() == "text"


def test_it_reaches_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        came = threading.Event()
        server.settimeout(3)

        def wait() -> None:
            try:
                server.accept()[0].close()
            except TimeoutError:
                return
            came.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert run(f"import socket\nsocket.create_connection(('127.0.0.1', {port}))") is (
            Outcome.FAILED
        )
        waiting.join()
        assert not came.is_set()


def test_the_users_environment_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_USER", "x")
    assert run("import os; assert 'SECRET_OF_THE_USER' not in os.environ") is Outcome.PASSED
