"""Sockets and tokens are used only in a folder that is this user's alone, and only daemons of this user."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from completion_ls.config import paths, private
from completion_ls.config.settings import Settings
from completion_ls.daemon import server as daemon_server
from completion_ls.daemon.server import Daemon
from completion_ls.lsp import count_file
from completion_ls.wire import codec
from completion_ls.wire.attach import attach, daemon_log
from completion_ls.wire.connection import Connection, NoDaemon, Refused
from completion_ls.wire.endpoint import DaemonConfig, Endpoint, TcpAddress
from completion_ls.wire.messages import PROTOCOL, DaemonMessage, Error, Hello, Welcome
from support.other_user import NUMBER as OTHER
from support.uncompared import Uncompared

CONFIG = DaemonConfig.of(Settings())
OVER_TCP = DaemonConfig.of(Settings.model_validate({"daemon": {"transport": "tcp"}}))
COMMANDS = (["status"], ["daemon", "stop"], ["daemon", "run"], ["doctor"])


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that others may look into, in /tmp."""
    found = Path(tempfile.mkdtemp(prefix="cls-"))
    found.chmod(0o755)
    yield found
    shutil.rmtree(found)


def everybody_refuses(place: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    """The front before it connects, the daemon, and each command."""
    monkeypatch.setenv("COMPLETION_LS_RUNTIME_DIR", str(place))
    with pytest.raises(PermissionError, match=word) as refused:
        asyncio.run(attach(CONFIG))
    assert "COMPLETION_LS_RUNTIME_DIR" in str(refused.value)
    with pytest.raises(PermissionError, match=word):
        Endpoint.all()
    with pytest.raises(PermissionError, match=word):
        asyncio.run(Connection.open(Endpoint(place, "engine-x")))
    with pytest.raises(PermissionError, match=word):
        Endpoint(place, "engine-x").check()
    for command in COMMANDS:
        done = subprocess.run(
            [sys.executable, "-m", "completion_ls", *command],
            capture_output=True,
            text=True,
            check=False,
        )
        said = " ".join((done.stdout + done.stderr).split())
        assert done.returncode != 0
        assert "COMPLETION_LS_RUNTIME_DIR" in said
        assert "Traceback" not in said


@pytest.mark.process
def test_a_link_in_its_place_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "real").mkdir(mode=0o700)
    (folder / "run").symlink_to(folder / "real")
    everybody_refuses(folder / "run", monkeypatch, "is a link")


@pytest.mark.process
def test_a_folder_of_somebody_else_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, as_other_user: object
) -> None:
    (folder / "run").mkdir(mode=0o700)
    os.chown(folder / "run", OTHER, OTHER)
    everybody_refuses(folder / "run", monkeypatch, "another user")


@pytest.mark.process
def test_a_folder_that_others_may_exchange_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.chmod(0o777)
    everybody_refuses(folder / "run", monkeypatch, "written by others")


def test_with_the_sticky_bit_it_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.chmod(0o1777)
    monkeypatch.setenv("COMPLETION_LS_RUNTIME_DIR", str(folder / "run"))
    assert paths.runtime_dir() == folder / "run"


def test_a_parent_of_somebody_else_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, as_other_user: object
) -> None:
    (folder / "theirs" / "deep").mkdir(parents=True)
    os.chown(folder / "theirs", OTHER, OTHER)
    monkeypatch.setenv("COMPLETION_LS_RUNTIME_DIR", str(folder / "theirs" / "deep" / "run"))
    with pytest.raises(PermissionError, match=f"theirs belongs to another user .uid {OTHER}"):
        paths.runtime_dir()


def test_the_way_that_links_lead_is_looked_at(folder: Path) -> None:
    (folder / "open" / "inner").mkdir(parents=True)
    (folder / "closed").mkdir()
    (folder / "closed" / "link").symlink_to(folder / "open" / "inner")
    private.check_place(folder / "closed" / "link" / "run")
    (folder / "open").chmod(0o777)
    with pytest.raises(PermissionError, match="open may be written by others"):
        private.check_place(folder / "closed" / "link" / "run")
    (folder / "circle").symlink_to(folder / "circle")
    with pytest.raises((PermissionError, OSError)):
        private.check_place(folder / "circle" / "run")


def test_a_link_of_somebody_else_on_the_way_is_refused(folder: Path, as_other_user: object) -> None:
    (folder / "real").mkdir()
    (folder / "link").symlink_to(folder / "real")
    os.chown(folder / "link", OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(PermissionError, match="link belongs to another user"):
        private.check_place(folder / "link" / "run")


def test_the_group_of_this_user_alone_is_nobody_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the umask is 002, the user's own folders may be written by a group of the user's name."""
    folder.chmod(0o775)
    user = pwd.getpwuid(os.getuid()).pw_name

    def group(name: str, members: list[str]) -> None:
        entry = grp.struct_group((name, "x", 4711, members))
        monkeypatch.setattr(grp, "getgrgid", lambda _: entry)

    group(user, [])
    private.check_place(folder / "run")
    group(user, [user])
    private.check_place(folder / "run")
    for name, members in ((user, ["another"]), ("staff", [])):
        group(name, members)
        with pytest.raises(PermissionError, match="written by others"):
            private.check_place(folder / "run")


def test_a_folder_that_was_opened_is_closed_again(isolated: dict[str, str]) -> None:
    place = paths.runtime_dir()
    place.chmod(0o755)
    assert stat.S_IMODE(paths.runtime_dir().stat().st_mode) == 0o700


def test_a_folder_that_is_opened_while_it_is_used_is_seen(isolated: dict[str, str]) -> None:
    endpoint = Endpoint.of(CONFIG)
    endpoint.folder.chmod(0o755)
    with pytest.raises(PermissionError, match="chmod 700"):
        asyncio.run(Connection.open(endpoint))


async def serve_as_daemon(file: Path, heard: list[bytes]) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1))
        writer.write(codec.encode(Welcome(protocol=PROTOCOL, version="1", pid=1)))

    return await asyncio.start_unix_server(answer, file)


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="this system does not say who it is")
def test_a_daemon_of_another_user_is_sent_nothing(
    isolated: dict[str, str], as_other_user: Callable[[Callable[[], None]], None]
) -> None:
    """Its socket stands in a folder that looks right: the kernel knows who listens."""
    endpoint = Endpoint.of(CONFIG)
    endpoint.folder.chmod(0o777)
    endpoint.folder.parent.chmod(0o755)
    ready, done = os.pipe(), os.pipe()

    def impostor() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(endpoint.socket_file))
            listener.listen()
            os.write(ready[1], b"1")
            connection, _ = listener.accept()
            os.write(done[1], b"%d" % len(connection.recv(1000)))

    thread = threading.Thread(target=as_other_user, args=(impostor,))
    thread.start()
    os.read(ready[0], 1)
    endpoint.folder.chmod(0o700)
    os.chown(endpoint.socket_file, os.getuid(), os.getgid())
    with pytest.raises(Refused, match="another user"):
        asyncio.run(Connection.open(endpoint))
    thread.join()
    assert os.read(done[0], 10) == b"0"  # not even a hello
    for end in (*ready, *done):
        os.close(end)


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="this system does not say who it is")
async def test_a_front_of_another_user_is_hung_up_on(
    isolated: dict[str, str], as_other_user: Callable[[Callable[[], None]], None]
) -> None:
    endpoint = Endpoint.of(CONFIG)
    daemon = Daemon(CONFIG, endpoint)
    server = await asyncio.start_unix_server(daemon._serve, endpoint.socket_file)
    endpoint.socket_file.chmod(0o666)
    for place in (endpoint.folder, endpoint.folder.parent):
        place.chmod(0o755)

    def knock() -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(endpoint.socket_file))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(codec.encode(Hello(protocol=PROTOCOL, version="1")))
                assert connection.recv(1000) == b""

    await asyncio.to_thread(as_other_user, knock)
    server.close()


@pytest.mark.parametrize("what", ["open", "link", "fifo", "folder", "other", "large"])
def test_an_address_that_others_may_have_written_is_not_used(
    isolated: dict[str, str], what: str
) -> None:
    endpoint = Endpoint.of(CONFIG)
    published = endpoint.write_tcp(1)
    assert stat.S_IMODE(endpoint.tcp_file.stat().st_mode) == 0o600
    assert endpoint.read_tcp() == published
    file = endpoint.tcp_file
    match what:
        case "open":
            file.chmod(0o640)
        case "link":
            file.rename(file.with_name("real"))
            file.symlink_to("real")
        case "fifo":
            file.unlink()
            os.mkfifo(file, 0o600)
        case "folder":
            file.unlink()
            file.mkdir()
        case "large":
            file.write_text(published.model_copy(update={"token": "x" * 100_000}).model_dump_json())
        case "other":
            if os.getuid() != 0:
                pytest.skip("only root can give a file away")
            os.chown(file, OTHER, OTHER)
    assert endpoint.read_tcp() is None
    with pytest.raises(NoDaemon):
        asyncio.run(Connection.open(endpoint))


async def listening_over_tcp() -> tuple[Daemon, asyncio.Server, TcpAddress]:
    """A daemon, its server, and what it has published of that."""
    endpoint = Endpoint.of(OVER_TCP)
    daemon = Daemon(OVER_TCP, endpoint)
    server = await daemon._listen()
    published = endpoint.read_tcp()
    assert published
    return daemon, server, published


async def answer_to_token(
    port: int, token: str
) -> tuple[DaemonMessage, asyncio.StreamReader, asyncio.StreamWriter]:
    """What a daemon says to a hello with this token, on a connection that is left open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(codec.encode(Hello(protocol=PROTOCOL, version="1", token=token)))
    body = await codec.read_body(reader)
    assert body
    return codec.decode(body, codec.daemon_messages), reader, writer


async def test_over_tcp_a_daemon_listens_on_this_machine_alone(isolated: dict[str, str]) -> None:
    _, server, published = await listening_over_tcp()
    listening = {
        one.laddr.ip
        for one in psutil.Process().net_connections("inet")
        if one.laddr.port == published.port
    }
    assert listening == {"127.0.0.1"}
    server.close()


@pytest.mark.parametrize("sent", [b"", b"\x00\x00", b"\x00\x00\x00\x09abc"])
async def test_a_hello_that_never_comes_is_cut_off(
    isolated: dict[str, str], monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(daemon_server, "HELLO_TIMEOUT_S", 0.2)
    endpoint = Endpoint.of(CONFIG)
    server = await asyncio.start_unix_server(Daemon(CONFIG, endpoint)._serve, endpoint.socket_file)
    reader, writer = await asyncio.open_unix_connection(endpoint.socket_file)
    writer.write(sent)
    assert await reader.read() == b""
    writer.close()
    server.close()


async def test_a_daemon_that_cannot_say_where_it_listens_does_not_listen(
    isolated: dict[str, str],
) -> None:
    endpoint = Endpoint.of(OVER_TCP)
    endpoint.tcp_file.mkdir()
    before = psutil.Process().net_connections("tcp")
    with pytest.raises(IsADirectoryError):
        await Daemon(OVER_TCP, endpoint)._listen()
    assert psutil.Process().net_connections("tcp") == before


async def test_a_wrong_token_is_refused(isolated: dict[str, str]) -> None:
    _, server, published = await listening_over_tcp()
    for token in ("", published.token[:-1], published.token + "x", "\u2603"):
        answer, reader, writer = await answer_to_token(published.port, token)
        assert isinstance(answer, Error)
        assert answer.code == "token"
        assert await reader.read() == b""
        writer.close()
    server.close()


@pytest.mark.parametrize("said", ["right", "wrong"])
async def test_a_token_is_compared_in_a_time_that_says_nothing(
    isolated: dict[str, str], said: str
) -> None:
    daemon, server, published = await listening_over_tcp()
    assert daemon._token == published.token
    daemon._token = Uncompared(published.token)
    token = published.token if said == "right" else published.token[:-1]
    answer, _, writer = await answer_to_token(published.port, token)
    assert isinstance(answer, Welcome if said == "right" else Error)
    writer.close()
    server.close()


def test_a_file_that_could_not_be_written_leaves_nothing_behind(folder: Path) -> None:
    (folder / "in the way").mkdir()
    with pytest.raises(IsADirectoryError):
        private.write(folder / "in the way", "a token")
    assert [found.name for found in folder.iterdir()] == ["in the way"]


def test_logs_and_counts_are_this_users_alone(isolated: dict[str, str]) -> None:
    log = daemon_log(Endpoint.of(CONFIG))
    assert log
    count_file.add({"a model": {count_file.SHOWN: 1}}, 10)
    for file in (log, count_file.place()):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        file.chmod(0o644)
    assert daemon_log(Endpoint.of(CONFIG)) == log
    count_file.add({"a model": {count_file.SHOWN: 1}}, 10)
    for file in (log, count_file.place()):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_log_that_is_a_link_is_not_written(isolated: dict[str, str], tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    log = daemon_log(Endpoint.of(CONFIG))
    assert log
    log.unlink()
    log.symlink_to(precious)
    assert daemon_log(Endpoint.of(CONFIG)) is None
    assert precious.read_text() == "mine"
