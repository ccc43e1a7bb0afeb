"""What lies in a workspace names no program, model or address, and nothing of it is run."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from completion_ls.config import sources, vscode
from completion_ls.config.paths import config_file
from completion_ls.config.settings import Settings
from completion_ls.context import library
from completion_ls.context.library import Library
from completion_ls.context.permitted import Permitted, read_text
from completion_ls.context.surroundings import Opened
from completion_ls.wire.endpoint import DaemonConfig
from support.raw_lsp import heard_until, message

EXTENSION = Path(__file__).parents[2] / "editors" / "vscode"

OF_A_WORKSPACE = {
    *("enabled", "trace.server"),
    *("prompt.max_tokens", "prompt.suffix_share"),
    *("context.files", "context.exclude"),
    *("completion.max_tokens", "completion.temperature", "completion.top_p", "completion.seed"),
    *("completion.lines", "completion.max_lines", "completion.in_comments"),
    *("completion.in_strings", "completion.show_above", "completion.ahead"),
    *("completion.debounce_ms", "server.completion_items", "server.disabled_languages"),
    "server.log_level",
}
"""What a workspace may set: what is offered and when. A new setting is of one of these three lists, and
whoever adds it says which."""
OF_THE_USER_ALONE = {
    *("program", "package", "model.name", "model.format", "draft.lookup", "draft.model"),
    *("draft.max_tokens", "engine.kind", "engine.weights", "engine.threads"),
    *("engine.prefill_chunk", "engine.kv_memory_mb", "engine.kv_cache", "engine.context"),
    *("engine.prefill_stream", "daemon.idle_exit_s", "daemon.transport", "daemon.audit"),
    "daemon.metrics_port",
}
"""Programs, models, sockets and what is loaded."""
OF_THE_USERS_FILE_ALONE = {"remote.url", "remote.model", "remote.timeout_s", "remote.fallback"}
"""Where code is sent. No editor has these: the server could not tell a project's settings from the user's."""


def test_every_setting_is_of_a_workspace_or_of_the_user_alone_or_of_the_users_file() -> None:
    own = set(vscode.OWN)
    of_the_server = {
        f"{section}.{key}" for section, values in Settings().model_dump().items() for key in values
    }
    lists = OF_A_WORKSPACE, OF_THE_USER_ALONE, OF_THE_USERS_FILE_ALONE
    assert own | of_the_server == set().union(*lists)
    assert sum(map(len, lists)) == len(own | of_the_server)


def test_vs_code_takes_no_other_setting_from_a_workspace() -> None:
    """With the scope of a machine VS Code refuses it there, and its editor of settings says so."""
    manifest = json.loads((EXTENSION / "package.json").read_text())
    properties = manifest["contributes"]["configuration"]["properties"]
    assert set(properties) == {vscode.PREFIX + name for name in OF_A_WORKSPACE | OF_THE_USER_ALONE}
    for name in OF_THE_USER_ALONE:
        assert properties[vscode.PREFIX + name]["scope"] == "machine", name
    trust = manifest["capabilities"]["untrustedWorkspaces"]
    assert set(trust["restrictedConfigurations"]) == {vscode.PREFIX + n for n in OF_THE_USER_ALONE}
    # And the extension looks no further itself.
    source = (EXTENSION / "src" / "settings.generated.ts").read_text()
    closed = re.search(r"new Set\((\[.*?\])\)", source, re.DOTALL)
    assert closed
    assert set(json.loads(closed[1])) == OF_THE_USER_ALONE


def test_no_file_of_a_workspace_is_read_for_settings(
    isolated: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("completion-ls.toml", ".completion-ls.toml", "config.toml", "pyproject.toml", ".env")
    text = '[model]\nname = "/evil"\n[tool.completion-ls.model]\nname = "/evil"\n'
    for name in names:
        (tmp_path / name).write_text(text)
    (tmp_path / "cpu.toml").write_text('[model]\nname = "/evil"\n')
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "cpu.toml").write_text('[model]\nname = "/evil"\n')
    monkeypatch.chdir(tmp_path)
    settings, problems = sources.resolve()
    assert problems == []
    assert "evil" not in settings.model_dump_json()


@pytest.mark.parametrize("profile", ["/tmp/x", "../evil", "./evil", "evil.toml", "a/../../evil"])
def test_a_profile_is_one_of_ours(
    profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.toml").write_text('[model]\nname = "/evil"\n')
    settings, problems = sources.resolve([("initializationOptions", {"profile": profile})])
    assert "there is no profile" in str(problems[0])
    assert settings.model.name != "/evil"


@pytest.mark.parametrize("key", ["program", "command", "path", "url", "host", "library"])
def test_what_names_programs_and_addresses_is_no_setting(key: str) -> None:
    """There is nothing to set: not even an editor can."""
    for section in set(Settings.model_fields) - set(sources.OF_THE_USER):
        _, problems = sources.resolve([("initializationOptions", {section: {key: "/evil"}})])
        assert len(problems) == 1
        assert "there is no such setting" in str(problems[0])


EVIL = "http://192.0.2.1"


@pytest.mark.parametrize("wrapper", [None, "completion-ls", "completionLs"])
@pytest.mark.parametrize("source", ["initializationOptions", "workspace/didChangeConfiguration"])
def test_no_editor_says_where_code_is_sent(source: str, wrapper: str | None) -> None:
    for name in OF_THE_USERS_FILE_ALONE:
        section, _, key = name.partition(".")
        sent: object = {section: {key: EVIL}}
        settings, problems = sources.resolve([(source, {wrapper: sent} if wrapper else sent)])
        assert settings == Settings()
        (problem,) = map(str, problems)
        assert f"{name!r} in {source}" in problem and str(config_file()) in problem
        assert f"COMPLETION_LS_REMOTE__{key.upper()}" in problem and EVIL not in problem
    settings, (problem,) = sources.resolve([(source, {"remote": EVIL})])
    assert settings == Settings() and "it says where your code is sent" in str(problem)


def test_an_editor_does_not_exchange_the_users_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPLETION_LS_REMOTE__URL", "https://gpu.example.org")
    sent = {"engine": {"kind": "remote"}, "remote": {"url": EVIL, "model": None}}
    settings, problems = sources.resolve([("initializationOptions", sent)])
    assert settings.engine.kind == "remote"  # that server is the user's choice
    assert settings.remote.url == "https://gpu.example.org"
    assert [problem.key for problem in problems] == ["remote.url"]


def test_an_editor_turns_no_server_on_that_the_user_has_not_named() -> None:
    settings, (problem,) = sources.resolve(
        [("initializationOptions", {"engine": {"kind": "remote"}})]
    )
    assert settings == Settings()
    assert problem.key == "engine.kind" and "COMPLETION_LS_REMOTE__URL" in str(problem)


def test_a_profile_that_an_editor_names_brings_no_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever listens at its port may be another user."""
    (tmp_path / "cpu.toml").touch()
    (tmp_path / "far.toml").write_text(f'[engine]\nkind = "remote"\n[remote]\nurl = "{EVIL}"\n')
    monkeypatch.setattr(sources, "profiles_dir", lambda: tmp_path)
    settings, (problem,) = sources.resolve([("initializationOptions", {"profile": "far"})])
    assert settings == Settings() and "profile far.toml" in str(problem)
    monkeypatch.setenv("COMPLETION_LS_PROFILE", "far")
    settings, problems = sources.resolve()
    assert (settings.engine.kind, settings.remote.url, problems) == ("remote", EVIL, [])


def test_a_folder_of_the_workspace_does_not_stand_in_for_a_model_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owner" / "model").mkdir(parents=True)
    (tmp_path / "smollm2-135m-instruct").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in (
        "owner/model",
        "owner/model@main",
        "owner/model@refs/pr/1",
        "smollm2-135m-instruct",
    ):
        config = DaemonConfig.of(Settings.model_validate({"model": {"name": name}}))
        assert config.model.name == name


MODULES = ("random", "tomllib", "torch", "pygls", "msgpack", "platformdirs", "sitecustomize")


def trapped(folder: Path) -> Path:
    """A workspace full of programs and modules that say so when they run; returns where they say it."""
    folder.mkdir()
    told = folder.parent / "told"
    for name in MODULES:
        (folder / f"{name}.py").write_text(f"open({str(told)!r}, 'a').write('{name} ')\n")
    for name in ("git", "cc", "gcc", "clang", "python", "python3", "rg", "sh", "completion-ls"):
        program = folder / name
        program.write_text(f"#!/bin/sh\necho {name} >> {told}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    hooks = folder / ".git"
    hooks.mkdir()
    (hooks / "config").write_text(
        f"[core]\n\tfsmonitor = {folder / 'git'}\n\tsshCommand = {folder}/sh\n"
    )
    return told


@pytest.mark.process
@pytest.mark.parametrize("start", [["-P", "-m"], ["-m"]])
def test_nothing_of_the_workspace_is_run(
    isolated: dict[str, str], tmp_path: Path, start: list[str]
) -> None:
    """The server is started in it, told of it, and asked; its daemon, too, is started from there."""
    workspace = tmp_path / "workspace"
    told = trapped(workspace)
    uri = (workspace / "main.py").as_uri()
    text = "import helper\n\n\ndef area():\n    "
    (workspace / "helper.py").write_text("def helper():\n    return 1\n")

    folders = [{"uri": workspace.as_uri(), "name": "w"}]
    params = {"processId": None, "capabilities": {}, "rootUri": None, "workspaceFolders": folders}
    opened = {"uri": uri, "languageId": "python", "version": 1, "text": text}
    where = {"textDocument": {"uri": uri}, "position": {"line": 4, "character": 4}}
    asked = {**where, "context": {"triggerKind": 1}}
    sent = (
        message(id=1, method="initialize", params=params)
        + message(method="initialized", params={})
        + message(method="textDocument/didOpen", params={"textDocument": opened})
        + message(id=2, method="textDocument/inlineCompletion", params=asked)
    )
    with subprocess.Popen(
        [sys.executable, *start, "completion_ls", "--stdio"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=workspace,
        env={**os.environ, "COMPLETION_LS_MODEL__NAME": "no such model"},
    ) as process:
        heard = heard_until(process, 2, sent)
        assert process.stdin
        process.stdin.close()
        process.wait(60)
    assert b'"id": 2' in heard
    assert not told.exists(), told.read_text()


def test_files_of_a_workspace_that_lead_out_of_it_are_not_read(tmp_path: Path) -> None:
    workspace, outside = tmp_path / "workspace", tmp_path / "outside"
    for folder in (workspace, outside):
        folder.mkdir()
        (folder / "a.py").write_text("secret")
    (workspace / "link.py").symlink_to(outside / "a.py")
    (workspace / "folder").symlink_to(outside)
    permitted = Permitted([workspace], [])
    assert permitted.allows(workspace / "a.py")
    for name in ("link.py", "folder/a.py", "../outside/a.py"):
        assert not permitted.allows(workspace / name), name


@pytest.mark.parametrize("name", ["a.py", "sub/a.py", "link/a.py"])
def test_what_becomes_a_link_after_it_was_looked_at_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """By somebody else who may write in the workspace."""
    workspace, outside = tmp_path / "workspace", tmp_path / "outside"
    for folder in (workspace / "sub", workspace / "more", outside):
        folder.mkdir(parents=True)
        (folder / "a.py").write_text("inside = 1\n")
    (workspace / "a.py").write_text("inside = 1\n")
    (workspace / "link").symlink_to("more")
    (outside / "a.py").write_text("outside = 1\n")
    place = workspace / name if name == "a.py" else (workspace / name).parent.resolve()
    target = outside / "a.py" if name == "a.py" else outside

    def read(file: Path) -> str | None:
        place.rename(workspace / "away")
        place.symlink_to(target)
        return read_text(file)

    opened = Opened(workspace / name, "", None)
    kept = Library([workspace], [])._read(opened)
    assert kept and "inside" in kept.chunks[0].text
    monkeypatch.setattr(library, "read_text", read)
    assert Library([workspace], [])._read(opened) is None
    assert place.is_symlink()
