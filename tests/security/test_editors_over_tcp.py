"""A server that listens on a port serves who has the token, on this machine alone or by TLS."""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
import ssl
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from completion_ls.lsp import admission, tcp
from completion_ls.lsp.channel import frame, read_frame
from support.certificates import certificate
from support.raw_lsp import message
from support.uncompared import Uncompared

SERVER = [sys.executable, "-m", "completion_ls"]
CHOSEN = "a token that was chosen by hand"

pytestmark = pytest.mark.process


def initialize(options: object = None) -> bytes:
    params = {"processId": None, "capabilities": {}, "rootUri": None}
    return message(id=1, method="initialize", params={**params, "initializationOptions": options})


SHUTDOWN = message(id=2, method="shutdown") + message(method="exit")


class Server:
    """A process that listens, with what it said of where and by which token."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr
        self.process = process
        self.said = process.stderr.readline()
        self.host, _, port = self.said.split("listening on ")[1].split(";")[0].rpartition(":")
        self.port = int(port)
        self.token_file = Path(self.said.rstrip("\n").partition("the token is in ")[2])

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=30)

    def token(self) -> str:
        return self.token_file.read_text()


def started(*arguments: str, **environment: str) -> Iterator[Server]:
    with subprocess.Popen(
        [*SERVER, "--tcp", "127.0.0.1:0", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COMPLETION_LS_MODEL__NAME": "no such model", **environment},
    ) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


@pytest.fixture
def server(isolated: dict[str, str]) -> Iterator[Server]:
    yield from started()


def told(connection: socket.socket, sent: bytes) -> list[dict[str, Any]]:
    """All that a connection hears until it is closed."""
    with connection, connection.makefile("rb") as stream:
        connection.sendall(sent)
        found = []
        while (body := read_frame(stream)) is not None:
            found.append(json.loads(body))
        return found


def test_who_has_the_token_is_served(server: Server) -> None:
    said = told(server.connect(), initialize({"token": server.token()}) + SHUTDOWN)
    assert [one["id"] for one in said] == [1, 2]
    assert "capabilities" in said[0]["result"]


def test_the_token_lies_in_a_file_of_this_user_alone(server: Server) -> None:
    assert stat.S_IMODE(server.token_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(server.token_file.parent.stat().st_mode) == 0o700
    assert server.token() not in server.said
    assert len(server.token()) >= 32


def test_servers_of_two_addresses_with_one_port_have_tokens_of_their_own(server: Server) -> None:
    for other in started("--tcp", f"127.0.0.2:{server.port}"):
        for one in (server, other):
            said = told(one.connect(), initialize({"token": one.token()}) + SHUTDOWN)
            assert [answer["id"] for answer in said] == [1, 2]


def test_a_server_that_is_told_to_end_leaves_no_token(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(initialize({"token": server.token()}))
        assert connection.recv(1)
        server.process.terminate()
        assert server.process.wait(30) == 0
    assert not server.token_file.exists()


@pytest.mark.parametrize(
    "first",
    [
        initialize(),
        initialize({"token": "wrong"}),
        initialize({"token": None}),
        initialize({"token": ["x"]}),
        initialize({"token": "\ud800"}),
        initialize(["token"]),
        message(id=1, method="shutdown"),
        message(method="initialize", params={}),
        message(id=1, method="textDocument/inlineCompletion", params={}),
        frame(b"{no json"),
        frame(b"[" * 100_000),
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 400000000\r\n\r\n",
        b"Content-Length: 268435456\r\n\r\n" + b"x" * 10_000,
        b"x" * 200_000,
    ],
)
def test_all_else_gets_one_sentence_and_is_closed(server: Server, first: bytes) -> None:
    opened = message(method="textDocument/didOpen", params={"textDocument": {}})
    [only] = told(server.connect(), first + opened + SHUTDOWN)
    assert "result" not in only
    text = only["error"]["message"]
    assert text.endswith(".")
    if b'"initialize"' in first and b'"id"' in first:
        assert "initializationOptions.token" in text
        assert only["id"] == 1
    # Others are served as before.
    said = told(server.connect(), initialize({"token": server.token()}) + SHUTDOWN)
    assert [one["id"] for one in said] == [1, 2]


def test_the_token_may_be_chosen(isolated: dict[str, str]) -> None:
    for server in started(COMPLETION_LS_TOKEN=CHOSEN):
        assert CHOSEN not in server.said
        assert [
            one["id"] for one in told(server.connect(), initialize({"token": CHOSEN}) + SHUTDOWN)
        ]
        [refused] = told(server.connect(), initialize({"token": CHOSEN + "x"}))
        assert "error" in refused
        assert not list(Path(isolated["COMPLETION_LS_RUNTIME_DIR"]).glob("*.token"))


def test_the_token_is_no_setting_and_goes_to_no_child(
    isolated: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from completion_ls.config.sources import resolve

    monkeypatch.setenv("COMPLETION_LS_TOKEN", CHOSEN)
    assert resolve()[1] == []
    assert admission.token_of_environment() == CHOSEN
    assert "COMPLETION_LS_TOKEN" not in os.environ
    body = read_frame(io.BytesIO(initialize({"token": CHOSEN, "completion": {"seed": 1}})))
    assert body
    left = json.loads(admission.admitted(body, CHOSEN))
    assert left["params"]["initializationOptions"] == {"completion": {"seed": 1}}


def test_the_token_is_compared_in_a_time_that_says_nothing() -> None:
    right, wrong = (
        read_frame(io.BytesIO(initialize({"token": given}))) for given in (CHOSEN, CHOSEN[:-1])
    )
    assert right and wrong
    assert admission.admitted(right, Uncompared(CHOSEN))
    with pytest.raises(admission.NotAdmitted):
        admission.admitted(wrong, Uncompared(CHOSEN))


def refused(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [*SERVER, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert not done.stdout
    return done.stderr


def test_a_short_token_is_refused(isolated: dict[str, str]) -> None:
    said = refused("--tcp", "127.0.0.1:0", COMPLETION_LS_TOKEN="secret")
    assert "6 characters" in said


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1", "[::ffff:127.0.0.1]"])
def test_other_machines_need_tls(isolated: dict[str, str], host: str) -> None:
    said = refused("--tcp", f"{host}:0")
    assert "--tls-cert" in said
    assert "127.0.0.1" in said


def test_a_name_that_leads_to_other_machines_too_needs_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    found = [(*kind, (address, 0)) for address in ("127.0.0.1", "192.0.2.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(PermissionError, match="--tls-cert"):
        tcp.open_listener("both.invalid", 0, has_tls=False)


@pytest.mark.parametrize("half", ["--tls-cert", "--tls-key"])
def test_half_a_certificate_is_refused(isolated: dict[str, str], tmp_path: Path, half: str) -> None:
    said = refused("--tcp", "0.0.0.0:0", half, str(tmp_path / "x"))
    assert "both --tls-cert and --tls-key" in said
    assert "--tcp" in refused("--stdio", half, str(tmp_path / "x"))


def test_over_tls_a_whole_session_works(isolated: dict[str, str], tmp_path: Path) -> None:
    made, key = certificate(tmp_path)
    for server in started("--tls-cert", str(made), "--tls-key", str(key)):
        client = ssl.create_default_context(cafile=str(made))
        whole = initialize({"token": server.token()}) + message(method="initialized", params={})
        for number in range(3, 300):  # much in both directions at once
            text = "x" * 5_000
            whole += message(id=number, method="no/such/method", params={"text": text})
        with client.wrap_socket(server.connect(), server_hostname="127.0.0.1") as connection:
            assert connection.version() in ("TLSv1.2", "TLSv1.3")
            said = told(connection, whole + SHUTDOWN)
        answered = [one["id"] for one in said if "id" in one and "method" not in one]
        assert answered == [1, *range(3, 300), 2]
        # Without the token, and without TLS, there is nothing.
        with client.wrap_socket(server.connect(), server_hostname="127.0.0.1") as connection:
            [only] = told(connection, initialize())
        assert "initializationOptions.token" in only["error"]["message"]
        plain = server.connect()
        plain.sendall(initialize({"token": server.token()}))
        plain.settimeout(30)
        answer = b""
        try:
            while block := plain.recv(1000):
                answer += block
        except ConnectionError:
            pass
        assert b"Content-Length" not in answer


def test_old_tls_is_refused(tmp_path: Path) -> None:
    context = tcp.tls_context(*certificate(tmp_path))
    assert context
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.protocol == ssl.PROTOCOL_TLS_SERVER


def test_a_key_that_fits_not_is_a_sentence(isolated: dict[str, str], tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    made, _ = certificate(tmp_path / "a")
    _, key = certificate(tmp_path / "b")
    said = refused("--tcp", "127.0.0.1:0", "--tls-cert", str(made), "--tls-key", str(key))
    assert "belong together" in said


async def door(token: str) -> tuple[asyncio.Task[None], int, list[int]]:
    served: list[int] = []

    async def session(connection: socket.socket) -> int:
        served.append(connection.fileno())
        connection.close()
        return 0

    listener = tcp.open_listener("127.0.0.1", 0, has_tls=False)
    entrance = tcp.Door(None, token, session)
    return (
        asyncio.create_task(tcp.accept(listener, entrance.enter)),
        listener.getsockname()[1],
        served,
    )


async def test_a_session_ends_with_a_connection_that_is_reset() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def session(connection: socket.socket) -> int:
        begun.set()
        with connection:
            connection.setblocking(False)
            while await asyncio.get_running_loop().sock_recv(connection, 1 << 16):
                pass
        ended.set()
        return 0

    listener = tcp.open_listener("127.0.0.1", 0, has_tls=False)
    task = asyncio.create_task(tcp.accept(listener, tcp.Door(None, CHOSEN, session).enter))
    editor = socket.create_connection(listener.getsockname())
    editor.sendall(initialize({"token": CHOSEN}))
    await begun.wait()
    editor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    editor.close()  # with a reset
    async with asyncio.timeout(60):
        await ended.wait()
    task.cancel()


async def test_who_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "HELLO_S", 0.2)
    task, port, served = await door(CHOSEN)
    for sent in (b"", b"Content-Length: 99\r\n\r\nhalf"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await reader.read() == b""  # its end
        writer.close()
    assert served == []
    task.cancel()


async def test_only_so_many_may_be_silent_at_once_and_they_keep_nobody_out() -> None:
    task, port, served = await door(CHOSEN)
    silent = [
        await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * tcp.MOST_STRANGERS)
    ]
    reader, editor = await asyncio.open_connection("127.0.0.1", port)
    editor.write(initialize({"token": CHOSEN}))
    await reader.read()
    assert len(served) == 1
    # Those that came first are closed, the others are not.
    for reader, _ in silent[: tcp.MOST_STRANGERS + 1]:
        assert await reader.read() == b""
    assert not any(reader.at_eof() for reader, _ in silent[tcp.MOST_STRANGERS + 1 :])
    for _, writer in (*silent, (reader, editor)):
        writer.close()
    task.cancel()
