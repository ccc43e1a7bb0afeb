"""Settings: the order of sources, and errors that name the key and where it stands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from completion_ls.config import paths, sources
from completion_ls.config.settings import Settings


@pytest.fixture
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "config.toml"
    file.touch()
    monkeypatch.setenv("COMPLETION_LS_CONFIG", str(file))
    return file


def test_the_default_profile_changes_no_default(user_file: Path) -> None:
    settings, problems = sources.resolve()
    assert problems == []
    assert settings == Settings()


def test_each_source_wins_over_the_one_before(
    user_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seed() -> int:
        settings, problems = sources.resolve(editor)
        assert problems == []
        return settings.completion.seed

    editor: list[tuple[str, object]] = []
    assert seed() == 0
    user_file.write_text("[completion]\nseed = 1\n")
    assert seed() == 1
    monkeypatch.setenv("COMPLETION_LS_COMPLETION__SEED", "2")
    assert seed() == 2
    editor = [("initializationOptions", {"completion": {"seed": 3}})]
    assert seed() == 3
    editor.append(("didChangeConfiguration", {"completion-ls": {"completion": {"seed": 4}}}))
    assert seed() == 4


def test_a_byte_order_mark_is_no_error(user_file: Path) -> None:
    user_file.write_bytes(b"\xef\xbb\xbf[completion]\r\nseed = 1\r\n")
    settings, problems = sources.resolve()
    assert (settings.completion.seed, problems) == (1, [])


@pytest.mark.parametrize(
    ("name", "said"), [("cpux", "Did you mean 'cpu'?"), ("far", "needs a server")]
)
def test_a_fallback_is_a_profile_that_computes_here(
    user_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "cpu.toml").touch()
    (folder / "far.toml").write_text('[engine]\nkind = "remote"\n')
    monkeypatch.setattr(sources, "profiles_dir", lambda: folder)
    user_file.write_text(f'[remote]\nurl = "http://127.0.0.1:8080"\nfallback = "{name}"\n')
    settings, (problem,) = sources.resolve()
    assert (settings.remote.fallback, settings.remote.url) == ("", "http://127.0.0.1:8080")
    assert problem.key == "remote.fallback" and problem.source == str(user_file)
    assert said in str(problem)


def test_the_key_of_a_server_is_no_setting_and_no_problem(
    user_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPLETION_LS_API_KEY", "sk-secret")
    settings, problems = sources.resolve()
    assert problems == [] and "sk-secret" not in settings.model_dump_json()


def test_an_option_is_not_blamed_on_the_variable_it_sets(
    user_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPLETION_LS_PROFILE", "")  # taken back at the end
    sources.use_profile("nvidia-25gb")
    (problem,) = sources.resolve()[1]
    assert problem.source == "--profile"
    monkeypatch.setenv("COMPLETION_LS_PROFILE", "nvidia-26gb")
    (problem,) = sources.resolve()[1]
    assert problem.source == "COMPLETION_LS_PROFILE"


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("[completion]\nmax_token = 3\n", "completion.max_tokens"),
        ("[completions]\nmax_tokens = 3\n", "completion"),
        ("[engine]\nthread = 3\n", "engine.threads"),
        ('profile = "cpi"\n', "'cpu'"),
    ],
)
def test_a_wrong_key_is_named_with_its_file_and_the_nearest_right_one(
    user_file: Path, written: str, hint: str
) -> None:
    user_file.write_text(written)
    settings, problems = sources.resolve()
    assert settings == Settings()
    [problem] = [str(problem) for problem in problems]
    assert str(user_file) in problem
    assert hint in problem


def test_a_wrong_value_is_left_out_and_the_rest_counts(user_file: Path) -> None:
    user_file.write_text('[completion]\nmax_tokens = 0\nlines = "many"\nseed = 7\n')
    settings, problems = sources.resolve()
    assert settings.completion.seed == 7
    assert settings.completion.max_tokens == Settings().completion.max_tokens
    assert {problem.key for problem in problems} == {"completion.max_tokens", "completion.lines"}
    assert all(str(user_file) in str(problem) for problem in problems)


def test_a_file_that_is_not_toml_is_named(user_file: Path) -> None:
    user_file.write_text("[completion\n")
    settings, problems = sources.resolve()
    assert settings == Settings()
    assert str(user_file) in str(problems[0])


@pytest.mark.parametrize("name", ["x" * 5000, "/dev/null/x"])
def test_a_file_that_there_cannot_be_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPLETION_LS_CONFIG", name)
    settings, problems = sources.resolve()
    assert settings == Settings()
    assert {problem.source for problem in problems} == {"COMPLETION_LS_CONFIG", name}


def test_a_file_without_an_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPLETION_LS_CONFIG", "/dev/zero")
    settings, [problem] = sources.resolve()
    assert settings == Settings()
    assert problem.source == "/dev/zero" and "over 1 MiB" in problem.text


def test_a_pipe_is_not_waited_for(user_file: Path) -> None:
    user_file.unlink()
    os.mkfifo(user_file)
    settings, [problem] = sources.resolve([("initializationOptions", {"completion": {"seed": 3}})])
    assert settings.completion.seed == 3
    assert str(user_file) in str(problem) and "pipe" in str(problem)


@pytest.mark.parametrize("value", ["text", 3, [1, 2]])
def test_what_an_editor_sends_in_another_shape_is_refused_in_words(
    user_file: Path, value: object
) -> None:
    settings, problems = sources.resolve([("initializationOptions", value)])
    assert settings == Settings()
    assert "initializationOptions" in str(problems[0])


@pytest.mark.parametrize("value", [None, {}, {"completion-ls": None}, {"completion": None}])
def test_empty_editor_settings_are_no_problem(user_file: Path, value: object) -> None:
    assert sources.resolve([("initializationOptions", value)]) == (Settings(), [])


def test_a_section_that_is_no_table(user_file: Path) -> None:
    _, problems = sources.resolve([("initializationOptions", {"completion": 3})])
    assert "table" in str(problems[0])


def test_environment_values_are_toml_or_text(
    user_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPLETION_LS_SERVER__COMPLETION_ITEMS", "true")
    monkeypatch.setenv("COMPLETION_LS_SERVER__DISABLED_LANGUAGES", '["markdown"]')
    monkeypatch.setenv("COMPLETION_LS_MODEL__NAME", "/models/my model")
    settings, problems = sources.resolve()
    assert problems == []
    assert settings.server.completion_items
    assert settings.server.disabled_languages == ["markdown"]
    assert settings.model.name == "/models/my model"


def test_every_shipped_profile_is_valid(user_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"cpu", "nvidia-24gb"} <= set(sources.profile_names())
    for name in sources.profile_names():
        monkeypatch.setenv("COMPLETION_LS_PROFILE", name)
        _, problems = sources.resolve()
        assert problems == []


def test_null_from_the_editor_is_not_set(user_file: Path) -> None:
    user_file.write_text('[completion]\nlines = "single"\n')
    settings, problems = sources.resolve(
        [("initializationOptions", {"completion": {"lines": None}})]
    )
    assert (settings.completion.lines, problems) == ("single", [])


def test_a_wrong_value_leaves_the_right_one_of_a_weaker_source(user_file: Path) -> None:
    user_file.write_text("[completion]\nmax_tokens = 32\n")
    settings, problems = sources.resolve(
        [("initializationOptions", {"completion": {"max_tokens": "x"}})]
    )
    assert settings.completion.max_tokens == 32
    assert [problem.source for problem in problems] == ["initializationOptions"]


def test_a_variable_that_is_no_setting_is_named(
    user_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPLETION_LS_COMPLETION_LINES", "single")
    _, problems = sources.resolve()
    assert "COMPLETION_LS_COMPLETION_LINES" in str(problems[0])
    assert "two underscores" in str(problems[0])


def test_commands_stop_at_wrong_settings(user_file: Path) -> None:
    user_file.write_text("[completion]\nmax_token = 3\n")
    with pytest.raises(sources.SettingsError, match=r"max_token.*max_tokens"):
        sources.resolve_strict()


def test_the_runtime_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    monkeypatch.setenv("COMPLETION_LS_RUNTIME_DIR", str(folder))
    assert paths.runtime_dir().stat().st_mode & 0o777 == 0o700


def test_a_runtime_folder_that_is_a_link_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "other")
    monkeypatch.setenv("COMPLETION_LS_RUNTIME_DIR", str(tmp_path / "run"))
    with pytest.raises(PermissionError, match="COMPLETION_LS_RUNTIME_DIR"):
        paths.runtime_dir()


def test_the_readme_has_the_table_of_settings() -> None:
    from completion_ls.config.table import with_table

    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert with_table(readme) == readme, "run scripts/settings_table"
