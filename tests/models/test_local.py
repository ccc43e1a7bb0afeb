"""What a name can mean, and what is said when it means nothing."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_ls.models import local
from completion_ls.models.convert import converted_folder
from completion_ls.models.local import LocalModel, ModelError, prepare, quantisation


def safetensors(data: bytes = bytes(8)) -> bytes:
    header = json.dumps(
        {
            "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "__metadata__": {"format": "pt"},
        }
    ).encode()
    return struct.pack("<Q", len(header)) + header + data


@pytest.fixture
def folder(tmp_path, cache):
    folder = tmp_path / "some model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(safetensors())
    return folder


def test_a_folder_is_used_as_it_is(folder, cache, listing):
    before = listing(folder)
    assert prepare(str(folder)) == LocalModel("some model", folder)
    assert listing(folder) == before
    assert not cache.exists()


def test_home_and_relative_paths(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert prepare("~/some model").folder == folder
    monkeypatch.chdir(tmp_path)
    assert prepare("some model").folder == folder
    assert prepare("./some model").folder == folder


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_that_lacks_something(folder, name):
    (folder / name).unlink()
    with pytest.raises(ModelError, match="it has no " + name.replace("model.", ".*")):
        prepare(str(folder))


def test_pickles_are_refused(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pickle.*whatever code"):
        prepare(str(folder))


def test_a_folder_around_a_gguf(tmp_path):
    (tmp_path / "x.Q4.gguf").touch()
    with pytest.raises(ModelError, match=r"give the file x\.Q4\.gguf in it"):
        prepare(str(tmp_path))


@given(
    data=st.binary(max_size=300)
    | st.integers(0, len(safetensors()) - 1).map(lambda cut: safetensors()[:cut])
)
def test_weights_that_are_not_whole(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cut")
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match="cut short"):
        prepare(str(folder))


@pytest.mark.parametrize("name", ["x" * 300, "/" + 300 * "x", "~/" + 300 * "x", "/x" * 50_000])
def test_a_name_that_is_too_long(cache, name):
    for look in (local.prepare, local.ready, local.pull, local.tokenizer_folder):
        with pytest.raises(ModelError, match=r"There is no model (called|file or folder)") as found:
            look(name)
        assert len(str(found.value)) < 1000
    assert not (local.is_known(name) or local.hub_model(name) or local.to_fetch(name))
    assert local.quantisation(name) == ""


def test_an_unknown_name(cache):
    with pytest.raises(ModelError, match="did you mean 'smollm2-135m-instruct'"):
        prepare("smolm2-135m")
    assert not cache.exists()
    with pytest.raises(ModelError) as error:
        prepare("starcoder2")
    assert "did you mean" not in str(error.value) and "models list" in str(error.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("https://hub.example/owner/name", "may be 'owner/name' here"),
        ("https://hub.example/owner/name/tree/4_25", "may be 'owner/name' here"),
        ("hf://x", "is an address: name a repository"),
        ("owner/name@", "names no revision behind its @"),
    ],
)
def test_names_that_are_nearly_those_of_the_hub(cache, name, said):
    with pytest.raises(ModelError, match=said):
        prepare(name)


def test_a_relative_path_to_nothing_is_named_as_it_was(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("./x", "a/b"):
        with pytest.raises(ModelError, match=f"file or folder {name}[;,]") as error:
            prepare(name)
        assert str(tmp_path) not in str(error.value)


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ('{"quantization_config": {"quant_method": "exl2"}}', "exl2"),
        ('{"quantization_config": {}}', ""),
        ('{"quantization_config": true}', "unknown"),
        ("{}", ""),
        ("[]", ""),
    ],
)
def test_how_a_model_is_quantised(folder, config, method):
    (folder / "config.json").write_text(config)
    assert quantisation(str(folder)) == method


def test_how_a_model_that_is_not_here_is_quantised(cache):
    for name in (
        "qwen2.5-coder-7b-6.5bpw",
        "bartowski/Qwen2.5-Coder-7B-Instruct-exl2@6_5",
        "someone/some-EXL2@4_25",
    ):
        assert quantisation(name) == "exl2"
    for name in ("smollm2-135m-instruct", "someone/some", "/no/such", "x.gguf"):
        assert quantisation(name) == ""


@pytest.mark.parametrize(
    "name", ["/no/such/model", "~nobody-of-this-name/m", "./x", "x.GGUF", "a/b"]
)
def test_a_path_to_nothing(cache, name):
    with pytest.raises(ModelError, match="no model file or folder"):
        prepare(name)


def test_offline_says_how_to_get_it(cache):
    with pytest.raises(ModelError, match="completion-ls models pull smollm2-135m-instruct"):
        prepare("smollm2-135m-instruct", offline=True)
    assert not cache.exists()


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\3\4 a wheel perhaps"])
def test_a_file_that_is_no_gguf(cache, tmp_path, content):
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(ModelError, match="not a GGUF file"):
        prepare(str(tmp_path / "model.gguf"))


@given(
    name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1),
    size=st.integers(0, 2**50),
    sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
)
def test_any_file_name_gives_a_folder_name(name, size, sha256):
    folder = converted_folder(name * 20, size, sha256)
    assert len(folder.name.encode()) <= 255
    assert folder.name.endswith(f"-{size}-{sha256[:16]}")
