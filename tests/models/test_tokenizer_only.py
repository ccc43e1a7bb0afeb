"""Of a model that a server has, only the tokenizer is fetched; the weights may follow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from completion_ls.cli import init, models
from completion_ls.cli.main import main
from completion_ls.config.settings import (
    EngineSettings,
    ModelSettings,
    RemoteSettings,
    Settings,
)
from completion_ls.doctor import model
from completion_ls.doctor.lines import Line, Notes
from completion_ls.models import hub, local, store, verify
from completion_ls.models.errors import ModelError
from completion_ls.models.hub import HubModel
from support.fake_hub import BRANCH, NEEDED, REPOSITORY, FakeHub, serving

NAME = f"{REPOSITORY}@{BRANCH}"
MODEL = HubModel(REPOSITORY, BRANCH)
FILES = {name for name in NEEDED if not name.endswith(".safetensors")}
WEIGHTS = NEEDED - FILES


@pytest.fixture
def server(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serving(monkeypatch) as server:
        yield server


def asked(server: FakeHub) -> list[str]:
    """The files that were asked for since the last look."""
    names = [one.name for one in server.asked]
    server.asked.clear()
    return names


def test_no_weights_come_and_a_whole_model_is_none_of_it(server, listing):
    folder = local.pull_tokenizer(NAME)
    assert listing(folder) == FILES | {"completion-ls.json"}
    assert set(asked(server)) == FILES
    assert local.tokenizer_folder(NAME) == folder
    assert hub.find(MODEL) is None and NAME not in local.pulled()
    server.status = 500
    assert local.pull_tokenizer(NAME) == folder  # what is here needs no hub
    with pytest.raises(
        ModelError, match=f"only the tokenizer.*needs its weights.*models pull {NAME}` fetches"
    ):
        local.prepare(NAME)


def test_the_weights_follow_and_what_is_here_is_kept(server, listing):
    local.pull_tokenizer(NAME)
    asked(server)
    folder = local.pull(NAME).folder
    assert set(asked(server)) == WEIGHTS
    assert listing(folder) == NEEDED | {"completion-ls.json"}
    assert hub.find(MODEL) == local.tokenizer_folder(NAME) == folder


def test_of_a_whole_model_the_tokenizer_is_here(server):
    folder = local.pull(NAME).folder
    asked(server)
    assert local.pull_tokenizer(NAME) == local.tokenizer_folder(NAME) == folder
    assert asked(server) == []


def test_weights_that_came_in_part_stay_and_are_gone_on_with(server, cache, monkeypatch):
    monkeypatch.setattr(hub.time, "sleep", lambda seconds: None)
    server.cut = 100
    with pytest.raises(ModelError, match="lost"):
        local.pull(NAME)
    part = next(MODEL.unfinished.glob("*.safetensors.part"))
    have = part.stat().st_size
    assert have > 0
    server.cut = 0
    folder = local.pull_tokenizer(NAME)
    assert part.stat().st_size == have
    assert local.tokenizer_folder(NAME) == folder == MODEL.unfinished
    asked(server)
    assert local.pull(NAME).folder == local.tokenizer_folder(NAME) == MODEL.folder
    assert set(asked(server)) <= WEIGHTS


def test_a_whole_model_that_lost_its_tokenizer_keeps_its_weights(server):
    folder = local.pull(NAME).folder
    (folder / "tokenizer.json").unlink()
    asked(server)
    assert local.pull_tokenizer(NAME) == folder
    assert asked(server) == ["tokenizer.json"]
    assert hub.find(MODEL) == folder


def test_a_repository_without_weights_has_a_tokenizer(server):
    files = server.branches[BRANCH]
    server.branches[BRANCH] = {name: files[name] for name in ("README.md", "tokenizer.json")}
    assert local.pull_tokenizer(NAME) == MODEL.folder
    with pytest.raises(ModelError, match=r"no config\.json and no"):
        local.pull(NAME)
    assert local.tokenizer_folder(NAME) == MODEL.folder


def test_a_repository_without_a_tokenizer_is_refused(server):
    del server.branches[BRANCH]["tokenizer.json"]
    with pytest.raises(ModelError, match=r"is no tokenizer that can be used.*no tokenizer\.json"):
        local.pull_tokenizer(NAME)


def test_a_tokenizer_that_is_not_here_is_named_with_its_command(cache):
    with pytest.raises(ModelError, match=f"completion-ls models pull {NAME} --tokenizer`"):
        local.tokenizer_folder(NAME)


def test_any_folder_with_a_tokenizer_will_do(tmp_path: Path):
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        local.tokenizer_folder(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    assert local.tokenizer_folder(str(tmp_path)) == tmp_path
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"no \*\.safetensors, only a tokenizer"):
        local.prepare(str(tmp_path))


def test_the_list_says_what_is_here(server, capsys):
    assert main(["models", "pull", NAME, "--tokenizer"]) == 0
    assert f"The tokenizer of {NAME} is ready in" in capsys.readouterr().err
    assert models.list_models() == 0
    assert "tokenizer only" in capsys.readouterr().out


def test_settings_with_a_server_want_no_weights(server, monkeypatch, capsys):
    monkeypatch.setenv("COMPLETION_LS_ENGINE__KIND", "remote")
    monkeypatch.setenv("COMPLETION_LS_REMOTE__URL", "http://127.0.0.1:9")
    monkeypatch.setenv("COMPLETION_LS_MODEL__NAME", NAME)
    assert main(["models", "pull"]) == 0
    assert set(asked(server)) == FILES
    assert "tokenizer" in capsys.readouterr().err


def test_a_damaged_tokenizer_is_told_with_its_command(server):
    folder = local.pull_tokenizer(NAME)
    assert f"{len(FILES)} files of the tokenizer, which is all" in verify.compare(NAME).text
    assert verify.cut(NAME) == ""
    (folder / "config.json").write_bytes(b"[]")
    [wrong] = verify.compare(NAME).wrong
    assert f"models pull {NAME} --tokenizer`" in wrong
    (folder / "tokenizer.json").unlink()
    assert f"models pull {NAME} --tokenizer`" in verify.cut(NAME)


def looked(look) -> Line:
    """The one line that a look writes."""
    notes = Notes("model files")
    look(notes)
    [line] = notes.lines
    return line


def test_the_doctor_wants_the_tokenizer_where_a_server_computes_and_weights_else(server):
    def of_server(notes: Notes) -> None:
        model.tokenizer(notes, NAME, store.silent)

    def of_engine(notes: Notes) -> None:
        model.look(notes, "model", NAME, store.silent)

    assert looked(of_server).verdict == "failed"
    assert f"models pull {NAME} --tokenizer`" in looked(of_server).text
    local.pull_tokenizer(NAME)
    assert looked(of_server).verdict == "ok"
    assert "only the tokenizer is on this machine" in looked(of_engine).text


def test_init_says_that_the_tokenizer_is_fetched(server):
    engine, remote = EngineSettings(kind="remote"), RemoteSettings(url="http://127.0.0.1:9")
    settings = Settings(model=ModelSettings(name=NAME), engine=engine, remote=remote)
    sentence = f"`completion-ls models pull` fetches the tokenizer of {NAME}."
    assert sentence in list(init.steps(settings, "remote", None))
    local.pull_tokenizer(NAME)
    assert not any("models pull" in step for step in init.steps(settings, "remote", None))
