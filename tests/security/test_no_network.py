"""A whole session with a model that is there asks nothing of the network, and few modules could."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

import completion_ls
from completion_ls.bench.editor import Editor
from completion_ls.config.sources import resolve_strict
from completion_ls.wire.endpoint import DaemonConfig, Endpoint
from completion_ls.wire.stop import stop_daemon
from support.tiny_model import write_tiny_model

pytestmark = pytest.mark.process

WITNESS = """
import os, sys

def note(event, arguments):
    names = event in ("socket.getaddrinfo", "socket.gethostbyname")
    if names or (event == "socket.connect" and not isinstance(arguments[1], (str, bytes))):
        with open(os.environ["WITNESSED"], "a") as file:
            print(" ".join(sys.argv), event, arguments[1:], file=file)

sys.addaudithook(note)
open(os.environ["WITNESSED"], "a").write("")
if os.environ.get("WITNESS_TEST"):
    import socket
    socket.socket().connect_ex(("127.0.0.1", 9))
"""


HTTP = {"httpx2", "httpx", "huggingface_hub", "requests", "urllib3", "aiohttp"}
"""What speaks HTTP to other machines."""
MAY = {"models/hub.py", "models/fetch.py", "engines/remote/", "bench/watched_server.py"}
"""Modules and rooms whose business that is: models that were asked for, the server of `remote.url`, and the
one that a benchmark has started on this machine."""


def _imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found |= {name.name for name in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {module} | {f"{module}.{name.name}" for name in names}
    return found


def test_few_modules_could_ask_the_network() -> None:
    package = Path(completion_ls.__file__).parent
    ask = set()
    for file in package.rglob("*.py"):
        names = _imported(file)
        library = {"http.client", "urllib.request", "urllib3"} & names
        if library or {name.partition(".")[0] for name in names} & HTTP:
            ask.add(file.relative_to(package).as_posix())
    assert "models/hub.py" in ask  # they are found
    assert [one for one in ask if not one.startswith(tuple(MAY))] == []


@pytest.mark.parametrize("is_test_of_the_witness", [False, True])
async def test_a_session_asks_nothing_of_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_test_of_the_witness: bool
) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITNESS)
    seen = tmp_path / "seen"
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setenv("WITNESSED", str(seen))
    if is_test_of_the_witness:
        monkeypatch.setenv("WITNESS_TEST", "1")
    monkeypatch.setenv("COMPLETION_LS_MODEL__NAME", str(write_tiny_model(tmp_path / "model")))
    monkeypatch.setenv("COMPLETION_LS_COMPLETION__SHOW_ABOVE", "0")
    editor = Editor("file:///a.py", "python", "def add(first, second):\n    return ")
    await editor.start()
    try:
        request = editor.ask(len(editor.text))
        await editor.answered(request)
        assert not editor.messages
    finally:
        await editor.stop()
        await stop_daemon(Endpoint.of(DaemonConfig.of(resolve_strict())))
    assert bool(seen.read_text()) is is_test_of_the_witness
