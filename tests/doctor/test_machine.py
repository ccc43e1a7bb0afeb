"""Set-ups of the machine that are broken in one way each: settings, folders, compilers, sockets, limits."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from completion_ls.config.settings import DaemonSettings, Settings
from completion_ls.doctor import (
    card,
    folders,
    memory,
    metrics,
    processor,
    settings,
    sockets,
)
from completion_ls.doctor.limit import within
from completion_ls.doctor.lines import Line, Notes
from completion_ls.engines.exl2 import checks, gpu
from completion_ls.engines.exl2.checks import Piece
from completion_ls.wire import inquiry
from completion_ls.wire.endpoint import DaemonConfig, Endpoint

Lines = Callable[[Callable[[Notes], Any]], dict[str, Line]]
CONFIG = DaemonConfig.of(Settings())


# settings


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[model]\nnome = 'x'\n", "there is no such setting. Did you mean 'model.name'?"),
        ("[modle]\nname = 'x'\n", "Did you mean 'model'?"),
        ("[engine]\ncontext = 5000\n", "multiple of 256. It is 5000."),
        ("profile = 'nvidia-25gb'\n", "there is no profile 'nvidia-25gb'. Did you mean"),
        ("model = {", "the file is not TOML ("),
    ],
)
def test_settings_that_are_refused(
    isolated: dict[str, str], lines: Lines, text: str, says: str
) -> None:
    file = Path(isolated["COMPLETION_LS_CONFIG"])
    file.write_text(text)
    (line,) = (one for one in lines(settings.look).values() if one.verdict == "failed")
    assert says in line.text and str(file) in line.text


def test_a_settings_file_that_cannot_be_read(isolated: dict[str, str], lines: Lines) -> None:
    file = Path(isolated["COMPLETION_LS_CONFIG"])
    file.unlink()
    file.mkdir()
    line = lines(settings.look)["source"]
    assert line.verdict == "failed"
    assert "the file cannot be read (" in line.text and line.text.endswith("; make it readable.")


def test_a_settings_file_that_never_ends(isolated: dict[str, str], lines: Lines) -> None:
    file = Path(isolated["COMPLETION_LS_CONFIG"])
    file.unlink()
    os.mkfifo(file)
    line = lines(settings.look)["source"]
    assert line.verdict == "failed"
    assert str(file) in line.text and "it is a pipe" in line.text


def test_where_settings_are_from(isolated: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(isolated["COMPLETION_LS_CONFIG"])
    file.write_text("[completion]\nmax_tokens = 20\nlines = 'single'\n")
    monkeypatch.setenv("COMPLETION_LS_COMPLETION__MAX_TOKENS", "30")
    monkeypatch.setenv("COMPLETION_LS_COMPLETION__LINES", "few")
    notes = Notes("settings")
    found = settings.look(notes).origins
    variable = "COMPLETION_LS_COMPLETION__MAX_TOKENS"
    assert found["completion.max_tokens"] == {"value": 30, "source": variable}
    assert found["completion.lines"] == {"value": "single", "source": str(file)}
    assert found["engine.kind"] == {"value": "torch_cpu", "source": "profile cpu.toml"}
    assert found["engine.kv_cache"] == {"value": "q8", "source": "default"}
    (problem,) = (line.text for line in notes.lines if line.verdict == "failed")
    assert "few" in problem


# folders


@pytest.mark.parametrize(
    ("name", "verdict"), [("cache", "failed"), ("log", "remark"), ("state", "remark")]
)
def test_a_folder_that_cannot_be_written(
    lines: Lines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, verdict: str
) -> None:
    file = tmp_path / "file"
    file.touch()
    variable = f"COMPLETION_LS_{name.upper()}_DIR"
    monkeypatch.setenv(variable, str(file / "inside"))
    found = lines(folders.look)
    assert {one.verdict for key, one in found.items() if key != name} == {"ok"}
    assert found[name].verdict == verdict and f"({file} is not a folder)" in found[name].text
    assert found[name].text.endswith(f"name another in {variable}.")


# what computes


def test_without_a_compiler(lines: Lines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "owlcc")
    found = lines(processor.look)
    assert found["C compiler"].verdict == found["kernels"].verdict == "remark"
    assert "no cc, gcc or clang on the PATH, and CC names 'owlcc'" in found["C compiler"].text
    assert "Install one (gcc, for example)" in found["C compiler"].text


def test_kernels_that_cannot_be_compiled(
    lines: Lines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\n[ $1 = --version ] || { echo no such flag >&2; exit 1; }\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    monkeypatch.setattr("shutil.which", lambda name: str(compiler) if name == "cc" else None)
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    found = lines(processor.look)
    assert found["C compiler"].verdict == "ok"
    line = found["kernels"]
    assert line.verdict == "remark" and "They cannot be compiled" in line.text
    assert "no such flag" in line.text and "name another compiler in CC." in line.text


def test_what_exllamav2_lacks(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Piece("one", "1.0", "Get one."), Piece("two", None, "Get two.")]
    monkeypatch.setattr(checks, "pieces", lambda: found)
    said = lines(card.look)
    assert said["one"].verdict == "ok" and said["one"].text == "1.0"
    assert (said["two"].verdict, said["two"].text) == ("failed", "It is missing. Get two.")
    assert said["engine"].text.startswith("The exllamav2 engine lacks: two.")
    assert "`completion-ls init --profile cpu`" in said["engine"].text


def test_the_driver_and_a_card_that_is_too_old(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "pieces", lambda: [Piece("one", "1.0", "")])
    monkeypatch.setattr(gpu, "driver_version", lambda: "570.1, CUDA up to 12.8")
    old = gpu.GraphicsCard("a card", 8 * 2**30, 7 * 2**30, (7, 5))
    monkeypatch.setattr(gpu, "find_card", lambda: old)
    monkeypatch.setattr(checks, "find_card", lambda: checks.check_cuda(True, lambda: (7, 5)))
    said = lines(card.look)
    assert said["driver"].text == "570.1, CUDA up to 12.8"
    assert said["card"].text == "a card, 8.0 GiB, 7.0 of them free, compute capability 7.5"
    assert "flash-attn needs 8.0" in said["engine"].text
    assert said["engine"].verdict == "failed"


def test_prompts_need_room(lines: Lines) -> None:
    for prompt, output, verdict in ((4000, 96, "ok"), (4000, 97, "remark"), (64, 4096, "failed")):
        chosen = Settings.model_validate(
            {
                "engine": {"context": 4096},
                "prompt": {"max_tokens": prompt},
                "completion": {"max_tokens": output},
            }
        )
        line = lines(lambda notes, chosen=chosen: memory.room(notes, chosen))["context"]
        assert line.verdict == verdict


# sockets


def look(config: DaemonConfig = CONFIG) -> Callable[[Notes], object]:
    return lambda notes: sockets.look(notes, config)


def test_a_folder_of_sockets_that_is_open_to_others(isolated: dict[str, str], lines: Lines) -> None:
    folder = Path(isolated["COMPLETION_LS_RUNTIME_DIR"])
    folder.mkdir()
    folder.chmod(0o755)
    line = lines(look())["folder"]
    assert line.verdict == "remark"
    assert f"{folder} was open to others (rights 0755), and has been closed (0700)" in line.text
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert lines(look())["folder"].verdict == "ok"


def test_a_folder_of_sockets_that_is_somebody_elses(
    isolated: dict[str, str], lines: Lines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = Path(isolated["COMPLETION_LS_RUNTIME_DIR"])
    folder.mkdir(mode=0o700)
    with monkeypatch.context() as other:
        other.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
        (line,) = lines(look()).values()
    assert line.verdict == "failed" and "belongs to another user" in line.text
    assert "Remove it, or name another folder in COMPLETION_LS_RUNTIME_DIR." in line.text
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("COMPLETION_LS_RUNTIME_DIR", str(file / "inside"))
    (line,) = lines(look()).values()
    assert line.verdict == "failed" and "cannot be made or used (" in line.text


def test_a_socket_that_was_left_behind(lines: Lines) -> None:
    endpoint = Endpoint.of(CONFIG)
    subprocess.run([sys.executable, "-c", BIND, str(endpoint.socket_file)], check=True, timeout=60)
    endpoint.socket_file.chmod(0o600)
    line = lines(look())[endpoint.name]
    assert line.verdict == "remark"
    assert f"{endpoint.socket_file} was left by a daemon that was killed" in line.text


def test_a_token_that_others_can_read(lines: Lines) -> None:
    endpoint = Endpoint.of(CONFIG)
    endpoint.write_tcp(1)
    endpoint.tcp_file.chmod(0o644)
    notes = Notes("sockets")
    sockets.look(notes, CONFIG)
    (line,) = (one for one in notes.lines if one.verdict == "failed")
    assert f"{endpoint.tcp_file} is open to others (rights 0644); run `chmod 600" in line.text


def test_a_path_that_is_too_long_for_a_socket(
    lines: Lines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMPLETION_LS_RUNTIME_DIR", str(tmp_path / ("x" * 100)))
    line = lines(look())["transport"]
    assert line.verdict == "remark" and "more than 103, so it is loopback TCP" in line.text
    unix = CONFIG.model_copy(update={"daemon": DaemonSettings(transport="unix")})
    line = lines(look(unix))["transport"]
    assert line.verdict == "failed" and "Use 'tcp', or a shorter" in line.text


BIND = "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])"
HANG = """
import socket, sys, time
from filelock import FileLock
lock = FileLock(sys.argv[1])
lock.acquire()
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[2])
listening.listen()
print(flush=True)
time.sleep(600)
"""


@contextmanager
def hanging_daemon(endpoint: Endpoint) -> Iterator[int]:
    """A process that holds the lock, listens and says nothing; its id."""
    words = [str(endpoint.life_lock), str(endpoint.socket_file), "daemon run"]
    with subprocess.Popen([sys.executable, "-c", HANG, *words], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        endpoint.socket_file.chmod(0o600)
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.mark.process
def test_a_daemon_that_does_not_answer(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiry, "ANSWER_S", 0.5)
    endpoint = Endpoint.of(CONFIG)
    with hanging_daemon(endpoint) as pid:
        line = lines(look())[endpoint.name]
    assert line.verdict == "failed" and "does not answer within 0.5 s" in line.text
    assert f"`kill {pid}`; the next keystroke starts another." in line.text


# metrics


def metrics_line(lines: Lines, port: int, daemons: dict[str, dict[str, Any]]) -> Line:
    config = CONFIG.model_copy(update={"daemon": DaemonSettings(metrics_port=port)})
    return lines(lambda notes: metrics.look(notes, config, daemons))[metrics.NAME]


def test_metrics_that_nobody_asked_for_are_no_line(lines: Lines) -> None:
    assert metrics.NAME not in lines(look())


def test_a_port_of_metrics_that_another_program_has(lines: Lines) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = metrics_line(lines, port, {})
        assert line.verdict == "remark" and f"Port {port} cannot be had (" in line.text
        theirs = {"metrics_port": port, "metrics_url": f"http://127.0.0.1:{port}/metrics"}
        assert "daemon engine-other" in metrics_line(lines, port, {"engine-other": theirs}).text
    line = metrics_line(lines, port, {})
    assert line.verdict == "ok" and f"port {port} is free" in line.text


def test_a_daemon_that_was_started_before_its_metrics_were_asked_for(lines: Lines) -> None:
    name = f"engine-{CONFIG.identity}"
    line = metrics_line(lines, 9464, {name: {"metrics_port": 0}})
    assert line.verdict == "remark"
    assert "was started without port 9464: `completion-ls daemon stop`" in line.text


def test_metrics_of_the_daemon_that_runs(lines: Lines) -> None:
    name = f"engine-{CONFIG.identity}"
    url = "http://127.0.0.1:9464/metrics"
    served = {"metrics_port": 9464, "metrics_url": url, "pid": 7}
    line = metrics_line(lines, 9464, {name: served})
    assert (line.verdict, line.text) == ("ok", f"{url}, served by process 7")
    failed = {"metrics_port": 9464, "metrics_failure": "No package."}
    line = metrics_line(lines, 9464, {name: failed})
    assert line.verdict == "remark"
    assert line.text == "No package. Then `completion-ls daemon stop`."


def test_metrics_without_their_package(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics.importlib.util, "find_spec", lambda name: None)
    line = metrics_line(lines, 9464, {})
    assert line.verdict == "remark" and "-m pip install prometheus-client`." in line.text


# limits


def test_a_look_that_hangs_or_breaks_is_a_line() -> None:
    def hangs(notes: Notes) -> str:
        notes.ok("first", "seen")
        time.sleep(600)
        return "never"

    found, said = within(0.2, "a group", hangs)
    assert found is None
    assert [line.verdict for line in said] == ["ok", "failed"]
    assert "The look at a group did not end within 0.2 s" in said[1].text

    def breaks(notes: Notes) -> str:
        raise KeyError("odd")

    found, said = within(5, "a group", breaks)
    assert found is None and "failed by itself (KeyError: 'odd')" in said[0].text
    assert within(5, "a group", lambda notes: 7) == (7, [])
