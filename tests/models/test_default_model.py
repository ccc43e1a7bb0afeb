"""The default model from the real index, and the commands around it."""

from __future__ import annotations

import json
import sys

import pytest
from tokenizers import Tokenizer

from completion_ls.cli import models
from completion_ls.models import catalogue, fetch
from completion_ls.models.local import find, prepare

ENTRY = catalogue.find(catalogue.DEFAULT)
assert ENTRY is not None


@pytest.fixture(scope="module")
def default(tmp_path_factory):
    """The cache after the model was pulled into it."""
    cache = tmp_path_factory.mktemp("default")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPLETION_LS_CACHE_DIR", str(cache))
        assert models.pull(None) == 0
    return cache


@pytest.mark.model
def test_the_special_tokens(default, monkeypatch):
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(default))
    folder = prepare(catalogue.DEFAULT, offline=True).folder
    config = json.loads((folder / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"], config["vocab_size"]) == (1, 2, 49152)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "<|endoftext|><|im_start|><|im_end|>"
    assert tokenizer.encode(text, add_special_tokens=False).ids == [0, 1, 2]
    tokenizer.encode_special_tokens = True
    plain = tokenizer.encode(text, add_special_tokens=False).ids
    assert not {0, 1, 2} & set(plain)
    assert tokenizer.decode(plain, skip_special_tokens=False) == text


@pytest.mark.model
def test_digits_stand_alone(default, monkeypatch):
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(default))
    folder = prepare(catalogue.DEFAULT, offline=True).folder
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    # As llama.cpp splits it.
    assert tokenizer.encode("x  =   12").tokens == ["x", "Ġ", "Ġ=", "ĠĠĠ", "1", "2"]


@pytest.mark.model
def test_a_second_start_needs_nothing(default, monkeypatch):
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(default))
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    fetch.gguf_path(ENTRY).unlink()  # not even the file that it came from
    assert prepare(catalogue.DEFAULT) == find(ENTRY)


@pytest.mark.model
def test_the_commands_find_it(default, monkeypatch, capsys):
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(default))
    ready = find(ENTRY)
    assert ready is not None
    assert models.path(None) == 0
    assert capsys.readouterr() == (f"{ready.folder}\n", "")
    assert models.list_models() == 0
    assert "ready" in capsys.readouterr().out
    assert models.pull(catalogue.DEFAULT) == 0
    assert capsys.readouterr().out == ""


def test_the_commands_when_it_is_missing(cache, capsys):
    assert models.path(None) == 1
    said = capsys.readouterr()
    assert said.out == "" and "completion-ls models pull" in said.err
    assert models.list_models() == 0
    assert "not fetched" in capsys.readouterr().out


def test_the_list_is_whole_in_eighty_columns(cache, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert models.list_models() == 0
    said = capsys.readouterr().out
    assert "…" not in said and all(len(line) <= 80 for line in said.splitlines())
    for entry in (*catalogue.ENTRIES, *catalogue.HUB_ENTRIES):
        assert entry.name in said and entry.licence in said
        assert set(entry.description.split()) <= set(said.split())


def test_the_commands_with_an_unknown_name(cache, capsys):
    assert models.pull("smollm3") == 1
    assert "`completion-ls models list` names some" in capsys.readouterr().err
    assert models.path("smollm3") == 1
    assert capsys.readouterr().out == ""
