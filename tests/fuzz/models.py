"""Files of models that are damaged, or are something else: all that is read of them before a model is
loaded, and while it is."""

from __future__ import annotations

import copy
import json
import os
import resource
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from hypothesis import strategies as st

from completion_ls.config.settings import EngineSettings, ModelSettings
from completion_ls.daemon.load import end_of_text_ids
from completion_ls.doctor import architecture, fim, rope, vocabulary
from completion_ls.doctor.limit import within
from completion_ls.doctor.lines import Notes
from completion_ls.engines import vram_headers, vram_model
from completion_ls.engines.same_vocabulary import check_vocabulary
from completion_ls.engines.shape import is_left_to_transformers, read_shape
from completion_ls.engines.weights import read_weights
from completion_ls.models import gguf_to_folder, local
from completion_ls.models.errors import ModelError
from fuzz.bytes import damaged
from fuzz.mixed import mixed
from fuzz.property import Property
from support.tiny_model import HEADS, HIDDEN, KV_HEADS, LAYERS, MIDDLE, write_tiny_model

ROOM = 512 * 2**20
"""Bytes that a look at a model of a hundred kilobytes may take beside what the process has already."""
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
GENERATION, INDEX = "generation_config.json", "model.safetensors.index.json"
NUMBERS: list[Any] = [
    *(0, 1, -1, 2, 7, 1.5, 2**31, 2**40, 2**63, 10**400, 1e308, float("nan"), float("inf"), True),
]
JUNK: list[Any] = [
    *NUMBERS, None, "", "x", "64", [], [1], [[]], {}, {"a": 1}, [None, "x"], "llama3", ["\ud800"],
    {"rope_type": "llama3", "factor": 1e400, "rope_theta": []}, {"quant_method": "exl2"},
    ["Qwen2ForCausalLM"], ["LlamaForCausalLM"], "LlamaForCausalLM", [["LlamaForCausalLM"]],
]  # fmt: skip
KEYS = [
    *("model_type", "architectures", "vocab_size", "hidden_size", "intermediate_size", "head_dim"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "rms_norm_eps"),
    *("max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters", "text_config"),
    *("tie_word_embeddings", "eos_token_id", "quantization_config", "hidden_act", "layer_types"),
    *("partial_rotary_factor", "use_sliding_window", "attention_bias", "mlp_bias"),
]


@cache
def _tiny() -> Mapping[str, bytes]:
    with tempfile.TemporaryDirectory() as place:
        folder = write_tiny_model(Path(place, "model"))
        files = {file.name: file.read_bytes() for file in folder.iterdir()}
    length = 8 + int.from_bytes(files[WEIGHTS][:8], "little")
    names = [name for name in json.loads(files[WEIGHTS][8:length]) if name != "__metadata__"]
    index = {"weight_map": dict.fromkeys(names, WEIGHTS)}
    return files | {GENERATION: b'{"eos_token_id": [0, 1]}', INDEX: json.dumps(index).encode()}


def _spoilt_object(data: bytes, changes: Mapping[str, Any]) -> bytes:
    return json.dumps(json.loads(data) | dict(changes)).encode()


def _header(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:length]), data[length:]


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """Weights of which the header says something else."""
    header, tensors = _header(_tiny()[WEIGHTS])
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(header)))
        part = draw(st.sampled_from(["dtype", "shape", "data_offsets", "all", "gone", "number"]))
        odd = [*JUNK, "F16", "I64", [2**40, 2**40], [0, 2**62], [4, 0]]
        junk = copy.deepcopy(draw(st.sampled_from(odd)))
        if part == "gone":
            header[name] = {}
        elif part == "all" or not isinstance(header[name], dict):
            header[name] = junk
        elif part == "number" and isinstance(header[name].get("shape"), list):
            header[name]["shape"] = [draw(st.sampled_from(NUMBERS)), *header[name]["shape"][1:]]
        else:
            header[name][part] = junk
    text = json.dumps(header).encode()
    length = draw(st.sampled_from([len(text)] * 6 + [0, 2**20, 2**40, 2**63, 2**64 - 1]))
    return length.to_bytes(8, "little") + text + tensors


def _deep(kind: bytes) -> bytes:
    return (b"[" if kind == b"]" else b'{"a":') * 100_000 + b"1" + kind * 100_000


odd_json = st.sampled_from(
    [
        *(b"", b"[]", b"{}", b"null", b"3", b'"x"', b"\xff\xfe{\x00}\x00", b"\x80", b"{" * 9),
        *(_deep(b"]"), _deep(b"}"), b'{"eos_token_id": ' + b"9" * 5000 + b"}", b'{"a": 1e999}'),
    ]
)
objects = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(JUNK), min_size=1, max_size=3)


def _object(name: str) -> st.SearchStrategy[bytes]:
    good = st.deferred(lambda: st.just(_tiny()[name]))
    spoilt = st.builds(lambda changes: _spoilt_object(_tiny()[name], changes), objects)
    return mixed((6, spoilt), (1, damaged(good)), (2, odd_json))


def _weights() -> st.SearchStrategy[bytes]:
    good = st.deferred(lambda: st.just(_tiny()[WEIGHTS]))
    begun = st.builds(
        lambda text: len(text).to_bytes(8, "little") + text,
        odd_json,
    )
    return mixed((5, headers()), (2, damaged(good)), (2, begun), (1, st.binary(max_size=20)))


folders: st.SearchStrategy[dict[str, bytes | str]] = st.dictionaries(
    st.sampled_from([CONFIG, CONFIG, WEIGHTS, TOKENIZER, GENERATION, INDEX]),
    st.none(),
    min_size=1,
    max_size=2,
).flatmap(
    lambda names: st.fixed_dictionaries(
        {
            name: mixed((12, _any(name)), (1, st.sampled_from(["pipe", "folder", "gone"])))
            for name in names
        }
    )
)


def _any(name: str) -> st.SearchStrategy[bytes]:
    return _weights() if name == WEIGHTS else _object(name)


@contextmanager
def _folder(changes: Mapping[str, bytes | str]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cls-fuzz-") as place:
        folder = Path(place, "model")
        folder.mkdir()
        files: dict[str, bytes | str] = {**_tiny(), **changes}
        if INDEX in changes:
            files["part.safetensors"] = files.pop(WEIGHTS)
        for name, data in files.items():
            if isinstance(data, bytes):
                (folder / name).write_bytes(data)
            elif data == "pipe":
                os.mkfifo(folder / name)
            elif data == "folder":
                (folder / name).mkdir()
        yield folder


@contextmanager
def little_memory() -> Iterator[None]:
    """A size that is only announced cannot be had."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def a_folder_is_a_model_or_a_sentence(changes: Mapping[str, bytes | str]) -> None:
    """Each that reads it says what it says of whole ones, or a sentence in the class that is caught."""
    with _folder(changes) as folder, little_memory():
        local.quantisation(str(folder))
        try:
            local.prepare(str(folder), offline=True)
        except ModelError as error:
            _is_sentence(error)
            return
        with _sentence():
            end_of_text_ids(folder)
        is_left_to_transformers(folder)
        with _sentence():
            read_weights(folder, read_shape(folder))
        with _sentence():
            vram_headers.read_headers(folder)
        with _sentence():
            vram_model.read_exl2(folder)
        with _sentence():
            check_vocabulary(folder, folder)
        _, lines = within(60, "model", lambda notes: _look(notes, folder))
        for line in lines:
            assert "failed by itself" not in line.text, line.text


def _look(notes: Notes, folder: Path) -> None:
    """As `doctor/examine.py`."""
    settings = EngineSettings()
    if architecture.look(notes, "model", folder, settings, compiled=True):
        rope.look(notes, "model", folder, settings)
        tokenizer = vocabulary.look(notes, "model", folder)
        if tokenizer:
            fim.look(notes, tokenizer, ModelSettings(), settings)


@contextmanager
def _sentence() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        _is_sentence(error)


def _is_sentence(error: Exception) -> None:
    assert type(error).__module__.startswith(("completion_ls", "builtins")), repr(error)
    text = str(error)
    assert " " in text and text.endswith(".") and len(text) < 3000, text[:3000]


@cache
def _gguf() -> bytes:
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "model.gguf")
        writer = GGUFWriter(file, "llama")
        writer.add_block_count(1)
        for add in (writer.add_context_length, writer.add_embedding_length):
            add(32)
        writer.add_feed_forward_length(64)
        writer.add_head_count(4)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(["a", "b", "é"])
        writer.add_token_types([1, 1, 3])
        writer.add_token_merges(["a b"])
        writer.add_tensor("token_embd.weight", np.zeros((3, 32), np.float32))
        writer.add_tensor("blk.0.attn_q.weight", np.zeros((32, 32), np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return file.read_bytes()


@dataclass(frozen=True)
class Put:
    """A number in the place of another one."""

    at: int
    number: int
    size: int


def _with_numbers(puts: list[Put]) -> bytes:
    data = bytearray(_gguf())
    for put in puts:
        at = put.at % len(data)
        data[at : at + put.size] = put.number.to_bytes(8, "little")[: put.size]
    return bytes(data)


numbers = st.sampled_from([0, 1, 2, 8, 9, 2**16, 2**31, 2**32 - 1, 2**40, 2**60, 2**63, 2**64 - 1])
puts = st.builds(Put, st.integers(0, 900), numbers, st.sampled_from([1, 4, 8]))
ggufs = mixed(
    (4, st.lists(puts, min_size=1, max_size=3).map(_with_numbers)),
    (2, damaged(st.deferred(lambda: st.just(_gguf())))),
    (1, st.binary(max_size=40).map(lambda data: b"GGUF" + data)),
)


def a_gguf_is_a_model_or_a_sentence(data: bytes) -> None:
    """Its header is read, or a sentence says why not."""
    with tempfile.TemporaryDirectory(prefix="cls-fuzz-") as place, little_memory():
        file = Path(place, "model.gguf")
        file.write_bytes(data)
        try:
            reader = gguf_to_folder.read(file)
            gguf_to_folder.check(reader)
            tokens = gguf_to_folder.tokens_of(reader)
            gguf_to_folder.configuration(reader, len(tokens))
        except gguf_to_folder.Unusable as error:
            _is_sentence(error)


def _config(**changes: Any) -> bytes:
    sizes = {"hidden_size": HIDDEN, "intermediate_size": MIDDLE, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": 300}
    other = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096}
    return json.dumps({**sizes, **heads, **other, "tie_word_embeddings": True, **changes}).encode()


def _weights_of(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


WRITTEN: tuple[dict[str, bytes | str], ...] = (
    {CONFIG: "pipe"},
    {WEIGHTS: "pipe"},
    {CONFIG: _deep(b"]")},
    {WEIGHTS: _weights_of(_deep(b"}"))},
    {WEIGHTS: _weights_of(b'{"a": {"data_offsets": [0, 1e999]}}')},
    {CONFIG: _config(architectures=3)},
    {CONFIG: _config(architectures=[["LlamaForCausalLM"]])},
    {CONFIG: _config(layer_types=[[]])},
    {CONFIG: _config(hidden_size=2**40)},
    {CONFIG: _config(vocab_size=2**40)},
    {CONFIG: _config(rms_norm_eps=10**400)},
    {CONFIG: _config(rope_theta=float("inf"), num_hidden_layers=float("inf"))},
    {CONFIG: _config(rope_theta=10**400, hidden_act=0)},
    {INDEX: _deep(b"}")},
    {GENERATION: b"[]"},
    {GENERATION: b'{"eos_token_id": [[]]}'},
)
WRITTEN_GGUFS = (
    # One field, a list of 2**60 numbers.
    b"GGUF\x03\0\0\0" + bytes(8) + (1).to_bytes(8, "little") + (1).to_bytes(8, "little") + b"a"
    b"\x09\0\0\0\x04\0\0\0" + (2**60).to_bytes(8, "little"),
)

MODELS = (
    Property("models", "folders", folders, a_folder_is_a_model_or_a_sentence, WRITTEN, budget=150),
    Property("models", "ggufs", ggufs, a_gguf_is_a_model_or_a_sentence, WRITTEN_GGUFS, budget=150),
)
