"""What the Hugging Face hub answers, from a server on this machine."""

from __future__ import annotations

import hashlib
import http.server
import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "someone/Tiny-exl2"
BRANCH = "4.0bpw"


def safetensors(size: int, fill: int = 7) -> bytes:
    """A whole file of one tensor of `size` bytes."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes([fill]) * size


def model_files(size: int = 3_000_000) -> dict[str, bytes]:
    """A repository as they are: two files of weights, and much that is not needed."""
    return {
        ".gitattributes": b"*.safetensors filter=lfs",
        "README.md": b"# Tiny",
        "config.json": b"{}",
        "generation_config.json": b"{}",
        "measurement.json": b"{}",
        "modeling_tiny.py": b"raise SystemExit",
        "output-00001-of-00002.safetensors": safetensors(size),
        "output-00002-of-00002.safetensors": safetensors(size // 10, 8),
        "original/consolidated.safetensors": safetensors(10),
        "picture.png": b"PNG",
        "pytorch_model.bin": b"a pickle",
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "training_args.pt": b"a pickle",
    }


NEEDED = {
    "config.json",
    "generation_config.json",
    "output-00001-of-00002.safetensors",
    "output-00002-of-00002.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


@dataclass
class Asked:
    """A request for a file."""

    name: str
    start: int
    token: str | None


class FakeHub(http.server.ThreadingHTTPServer):
    """One repository with branches; what it does wrong is set by the test."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.branches: dict[str, dict[str, bytes]] = {
            "main": {"README.md": b"see the branches"},
            BRANCH: model_files(),
        }
        self.asked: list[Asked] = []
        self.heard: list[tuple[str, str]] = []
        """The path of every request, and which program it says that it is of."""
        self.cut = 0
        """So many answers for weights break off half-way."""
        self.stalled: threading.Event | None = None
        """Answers for weights stop half-way until it is set."""
        self.lie: dict[str, int] = {}
        """Sizes that are listed, where they are not the right ones."""
        self.damage = 0
        """So many answers for weights have a wrong byte."""
        self.damaged = ""
        """Of this small file, a byte is wrong."""
        self.ignore_ranges = False
        self.refuse_ranges = False
        self.content_range = ""
        """What every answer for weights says it is a part of, unless empty."""
        self.expired = 0
        """So many answers for weights say that their address has run out."""
        self.gated = False
        self.private = False
        self.status = 0
        """What every request is answered with, unless 0."""
        self.retry_after = ""
        """What goes with it."""
        self.page = b""
        """What every request gets, unless empty: a page to log in to a network."""
        self.refs_page = b""
        """What the request for branches gets, unless empty."""

    def files(self, revision: str) -> dict[str, bytes] | None:
        return self.branches.get(BRANCH if revision == COMMIT else revision)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        hub = self.server
        hub.heard.append((self.path, self.headers["User-Agent"]))
        if hub.status:
            return self.refuse(hub.status)
        if hub.page:
            return self.answer_with(hub.page, "text/html")
        match parts:
            case ["api", "models", owner, name, *rest] if f"{owner}/{name}" == REPOSITORY:
                if hub.private:
                    return self.refuse(401, "RepoNotFound")
                self.tell(rest)
            case [owner, name, "resolve", revision, *path] if f"{owner}/{name}" == REPOSITORY:
                if hub.gated:
                    return self.refuse(403, "GatedRepo")
                files = hub.files(revision) or {}
                file = "/".join(path)
                if file not in files:
                    return self.refuse(404, "EntryNotFound")
                if file.endswith(".safetensors"):  # large files lie on another host
                    return self.refer(f"http://localhost:{hub.server_port}/{revision}/{file}")
                self.send(file, files[file])
            case [revision, file] if file in (hub.files(revision) or {}):
                self.send(file, (hub.files(revision) or {})[file])
            case _:
                self.refuse(404, "RepoNotFound")

    def tell(self, rest: list[str]) -> None:
        hub = self.server
        match rest:
            case ["refs"] if hub.refs_page:
                self.answer_with(hub.refs_page, "text/html")
            case ["refs"]:
                refs = [
                    {"name": name, "ref": f"refs/heads/{name}", "targetCommit": COMMIT}
                    for name in hub.branches
                ]
                self.answer({"branches": refs, "converts": [], "tags": []})
            case ["revision", revision]:
                files = hub.files(revision)
                if files is None:
                    return self.refuse(404, "RevisionNotFound")
                siblings = [self.sibling(name, data) for name, data in files.items()]
                self.answer({"id": REPOSITORY, "sha": COMMIT, "siblings": siblings})
            case _:
                self.refuse(404, "RepoNotFound")

    def sibling(self, name: str, data: bytes) -> dict[str, object]:
        size = self.server.lie.get(name, len(data))
        blob = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
        told: dict[str, object] = {"rfilename": name, "size": size, "blobId": blob}
        if name.endswith(".safetensors"):
            sha256 = hashlib.sha256(data).hexdigest()
            told["lfs"] = {"size": size, "sha256": sha256, "pointerSize": 134}
        return told

    def send(self, name: str, data: bytes) -> None:
        hub = self.server
        start = 0
        asked = self.headers.get("Range", "")
        if asked and not hub.ignore_ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        hub.asked.append(Asked(name, start, self.headers.get("Authorization")))
        if asked and hub.refuse_ranges:
            return self.refuse(416)
        weights = name.endswith(".safetensors")
        if weights and hub.expired > 0:
            hub.expired -= 1
            return self.refuse(403)
        if name == hub.damaged:
            data = data[:-1] + bytes([data[-1] ^ 1])
        body = data[start:]
        other_part = hub.content_range if weights else ""
        self.send_response(206 if start or other_part else 200)
        self.send_header("Content-Length", str(len(body)))
        if other_part:
            self.send_header("Content-Range", other_part)
        elif start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if weights:
            if hub.damage > 0:
                hub.damage -= 1
                body = body[:-1] + bytes([body[-1] ^ 1])
            if hub.cut > 0:
                hub.cut -= 1
                self.wfile.write(body[: len(body) // 2])
                self.close_connection = True
                return
            if hub.stalled:
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                hub.stalled.wait(60)
                body = body[len(body) // 2 :]
        self.wfile.write(body)

    def answer(self, value: object) -> None:
        self.answer_with(json.dumps(value).encode(), "application/json")

    def answer_with(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refer(self, url: str) -> None:
        self.send_response(302)
        self.send_header("Location", url)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def refuse(self, status: int, code: str = "") -> None:
        body = b'{"error": "no"}'
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        if self.server.retry_after:
            self.send_header("Retry-After", self.server.retry_after)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass

    def handle(self) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # whoever asked was killed
            super().handle()


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The server, running, as the hub of this process and of those it starts."""
    from huggingface_hub import constants

    from completion_ls.models import hub as client

    monkeypatch.setattr(client.time, "sleep", lambda seconds: None)  # before it tries again
    hub = FakeHub()
    threading.Thread(target=hub.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("HF_TOKEN", "")
    # Read when the library was imported, which may be long ago.
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    try:
        yield hub
    finally:
        if hub.stalled:
            hub.stalled.set()
        hub.shutdown()
        hub.server_close()
