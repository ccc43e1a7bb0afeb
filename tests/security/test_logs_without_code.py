"""No code, no name of a folder and no secret gets into what is written down: logs, stderr and counts."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import queue
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lsprotocol import types
from pygls.exceptions import JsonRpcInternalError

from completion_ls.config import log_form
from completion_ls.config.settings import Settings
from completion_ls.daemon.worker import EngineBroken, LoadFailed, Outgoing, Published, Worker
from completion_ls.engines.torch_cpu import TorchCpuEngine
from completion_ls.lsp.channel import frame
from completion_ls.lsp.documents import Document
from completion_ls.lsp.server import change_configuration
from completion_ls.wire.endpoint import DaemonConfig
from completion_ls.wire.messages import Complete, Error
from support.raw_lsp import heard_until, message
from support.tiny_model import write_tiny_model

MARK = "Zyzzogeton"


def bad_messages() -> bytes:
    """Each is refused in another place."""
    uri = f"file:///{MARK}.py"
    where = {"textDocument": {"uri": uri}, "position": {"line": MARK, "character": 4}}
    never_opened = {"uri": f"file:///{MARK}/other.py", "version": 2}
    asked = {
        "textDocument": {"uri": never_opened["uri"]},
        "position": {"line": 0, "character": 0},
        "context": {"triggerKind": 1},
    }
    return b"".join(
        [
            f"{MARK}\r\n".encode(),
            frame(f'{{"{MARK}'.encode()),
            frame(MARK.encode()),
            frame(json.dumps([MARK]).encode()),
            message(id=10, method=MARK, params={"text": MARK}),
            message(method=MARK, params=[MARK]),
            message(id=11, method="textDocument/inlineCompletion", params=where),
            message(id=12, method="textDocument/inlineCompletion", params={MARK: MARK}),
            message(method="textDocument/didChange", params={"textDocument": {MARK: MARK}}),
            message(method="textDocument/didOpen", params={"textDocument": {"uri": MARK}}),
            message(
                method="textDocument/didChange",
                params={"textDocument": never_opened, "contentChanges": [{"text": MARK}]},
            ),
            message(
                method="notebookDocument/didChange",
                params={"notebookDocument": never_opened, "change": {}},
            ),
            message(id=14, method="textDocument/inlineCompletion", params=asked),
            message(method="workspace/didChangeConfiguration", params={"settings": {MARK: MARK}}),
            message(method="completionLs/didUseSuggestion", params={"suggestion": {MARK: MARK}}),
            message(id=13, method="workspace/executeCommand", params={"command": MARK}),
            message(id=99, result=MARK),
            message(id=MARK, error={"code": 1, "message": MARK}),
        ]
    )


@pytest.mark.process
@pytest.mark.parametrize("level", ["warning", "debug"])
def test_a_session_with_all_its_errors_writes_nothing_of_the_user(
    isolated: dict[str, str], tmp_path: Path, level: str
) -> None:
    """A real server and its real daemon: text above and below, other files, folders, bad messages, a
    setting with a secret, and an input that ends in the midst of all."""
    workspace = tmp_path / f"{MARK}-folder"
    workspace.mkdir()
    (workspace / "helper.py").write_text(f"def {MARK}_helper():\n    return '{MARK}'\n")
    uri = (workspace / "main.py").as_uri()
    text = f"from helper import {MARK}_helper\n\n\ndef {MARK}():\n    \n\n# {MARK} below\n"
    model = write_tiny_model(tmp_path / "model")
    options = {
        "model": {"name": str(model)},
        "engine": {"threads": 1},
        "server": {"log_level": level, "password": MARK},
        "prompt": {"max_tokens": MARK},
        MARK: {MARK: MARK},
    }
    params = {
        "processId": None,
        "capabilities": {},
        "rootUri": None,
        "workspaceFolders": [{"uri": workspace.as_uri(), "name": MARK}],
        "initializationOptions": options,
    }
    opened = {"uri": uri, "languageId": "python", "version": 1, "text": text}
    asked = {
        "textDocument": {"uri": uri},
        "position": {"line": 4, "character": 4},
        "context": {"triggerKind": 1},
    }
    sent = (
        message(id=1, method="initialize", params=params)
        + message(method="initialized", params={})
        + message(method="textDocument/didOpen", params={"textDocument": opened})
        + message(id=2, method="textDocument/inlineCompletion", params=asked)
        + bad_messages()
    )
    log = Path(isolated["COMPLETION_LS_LOG_DIR"])
    errors = tmp_path / "errors"
    with (
        errors.open("wb") as stream,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "completion_ls", "--stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            cwd=workspace,
        ) as process,
    ):
        heard = heard_until(process, 2, sent)
        assert process.stdin
        process.stdin.write(message(id=3, method="textDocument/inlineCompletion", params=asked))
        process.stdin.write(bad_messages() + frame(b"x" * 100)[:-50] + MARK.encode())
        process.stdin.close()
        process.wait(60)
    assert b'"id": 2' in heard
    subprocess.run(
        [sys.executable, "-m", "completion_ls", "daemon", "stop"],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ,
    )
    state = Path(isolated["COMPLETION_LS_STATE_DIR"])
    run = Path(isolated["COMPLETION_LS_RUNTIME_DIR"])
    written = [errors, *(file for place in (log, state, run) for file in place.rglob("*"))]
    assert any(file.suffix == ".log" for file in written)
    for file in written:
        assert MARK not in file.name
        if file.is_file():
            assert MARK.encode() not in file.read_bytes(), (file, file.read_text())
    assert not list(workspace.glob("core*"))


class Broken(Exception):
    """Holds the text that it is about, as errors do."""


def raised() -> Broken:
    try:
        try:
            raise KeyError(MARK)
        except KeyError as error:
            raise Broken(f"cannot read {MARK}") from error
    except Broken as error:
        return error


def test_of_an_error_type_and_place_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("completion_ls.test")
    other = logging.StreamHandler(io.StringIO())  # keeps in the record what it makes of the error
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(log_form.WithoutCode(log_form.FORM))
    for one in (other, handler):
        logger.addHandler(one)
    error = raised()
    logger.error("something failed", exc_info=error)
    for one in (other, handler):
        logger.removeHandler(one)
    said = capsys.readouterr().err
    assert "something failed" in said
    assert "KeyError" in said
    assert "Broken" in said
    assert Path(__file__).name in said
    assert MARK not in said


async def test_of_an_error_that_an_editor_answers_the_text_is_not_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may say which folder has no settings."""

    async def refuse(_: object) -> None:
        raise JsonRpcInternalError(f"nothing is set in {MARK}")

    asking = types.ClientCapabilities(
        workspace=types.WorkspaceClientCapabilities(configuration=True)
    )
    server: Any = SimpleNamespace(client_capabilities=asking, workspace_configuration_async=refuse)
    with caplog.at_level("DEBUG"):
        await change_configuration(server, types.DidChangeConfigurationParams(None))
    assert "does not tell its settings" in caplog.text
    assert MARK not in caplog.text


def test_a_document_that_is_no_file_is_not_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        assert Document((tmp_path / MARK).as_uri()).source == ""
    assert "a readable file" in caplog.text
    assert MARK not in caplog.text


def test_errors_of_tasks_that_nobody_awaits_are_written_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(log_form.WithoutCode(log_form.FORM))
    logger = logging.getLogger("asyncio")
    logger.addHandler(handler)

    async def fail(text: str) -> None:
        raise Broken(text)

    def fail_at_once(text: str) -> None:
        raise Broken(text)

    async def run() -> None:
        asyncio.get_running_loop().call_soon(fail_at_once, MARK)
        task = asyncio.create_task(fail(MARK))
        await asyncio.sleep(0.01)
        del task

    asyncio.run(run())
    logger.removeHandler(handler)
    said = capsys.readouterr().err
    assert said.count("an error in the event loop") == 2
    assert MARK not in said


def test_errors_that_nobody_catches_are_written_so() -> None:
    program = f"""
import threading
from completion_ls.config import log_form
log_form.set_up()
def fail():
    raise ValueError({MARK!r})
class Odd:
    def __del__(self):
        fail()
Odd()
thread = threading.Thread(target=fail)
thread.start()
thread.join()
fail()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("ValueError") == 3
    assert MARK not in done.stderr


def test_errors_are_not_written_to_an_editor_where_stderr_is_closed() -> None:
    program = """
import sys
from completion_ls.config import log_form
sys.stderr = None
log_form.set_up()
class Odd:
    def __del__(self):
        raise ValueError
Odd()
raise ValueError
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


@pytest.mark.long
@pytest.mark.parametrize("where", ["add", "step"])
def test_a_job_that_fails_leaves_no_text_in_the_daemons_log(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    where: str,
) -> None:
    """Whether the job failed, or the engine with it."""

    def fail(*_: Any) -> Any:
        raise Broken(f"cannot read {MARK}")

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(log_form.WithoutCode(log_form.FORM))
    logger = logging.getLogger("completion_ls")
    logger.setLevel("DEBUG")
    logger.addHandler(handler)
    monkeypatch.setattr(TorchCpuEngine, where, fail)
    model = write_tiny_model(tmp_path / "model")
    sections = {"model": {"name": str(model)}, "engine": {"threads": 1}}
    published: queue.Queue[Published] = queue.Queue()
    worker = Worker(DaemonConfig.of(Settings.model_validate(sections)), published.put)
    worker.start()
    worker.submit("peer", Complete(id=1, document=MARK, prefix=MARK, suffix=MARK))
    while True:
        match published.get(timeout=60):
            case EngineBroken() | Outgoing(message=Error()):
                break
            case LoadFailed() as failed:
                raise AssertionError(failed)
    worker.close()
    worker.join(60)
    logger.removeHandler(handler)
    assert MARK not in capsys.readouterr().err
