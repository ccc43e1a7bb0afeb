"""Which files may be read."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from completion_ls.context.permitted import Permitted, Place, patterns, read_text
from completion_ls.context.surroundings import MAX_LENGTH


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    (made / ".git" / "info").mkdir(parents=True)
    return made


def write(file: Path, text: str = "x = 1\n") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_a_file_in_the_workspace_may_be_read(folder: Path) -> None:
    rules = Permitted([folder], [])
    file = write(folder / "src" / "a.py")
    assert rules.allows(file)
    assert rules.place(file) == Place(0, "src/a.py")
    assert rules.path(Place(0, "src/a.py")) == file


def test_nothing_outside_of_the_folders(folder: Path, tmp_path: Path) -> None:
    outside = write(tmp_path / "outside.py")
    other = write(tmp_path / "work-too" / "a.py")
    rules = Permitted([folder], [])
    for file in (outside, other, folder, folder / ".." / "outside.py"):
        assert not rules.allows(file)
        assert rules.place(file) is None
    assert not Permitted([], []).allows(outside)


def test_a_folder_with_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    nowhere = tmp_path / (300 * "x")
    # It cannot be read, which is seen later.
    assert Permitted([nowhere], []).allows(nowhere / "a.py")


def test_what_an_ignored_folder_holds_need_not_be_looked_at(folder: Path) -> None:
    (folder / ".gitignore").write_text("/made/\n*.d\n")
    rules = Permitted([folder], ["vendor/"])
    for name in ("made", "made/inner", "src/a.d", "vendor", "src/vendor", ".ssh", "src/.git"):
        assert not rules.enters(folder / name), name
    for name in ("src", "src/made", "src/inner"):
        assert rules.enters(folder / name), name


def test_links_count_where_they_lead(folder: Path, tmp_path: Path) -> None:
    outside = write(tmp_path / "outside" / "a.py")
    write(folder / ".env", "KEY=1")
    real = write(folder / "real.py")
    (folder / "out.py").symlink_to(outside)
    (folder / "out").symlink_to(outside.parent)
    (folder / "plain.py").symlink_to(folder / ".env")
    (folder / "key.pem").symlink_to(real)
    (folder / "same.py").symlink_to(real)
    rules = Permitted([folder], [])
    for name in ("out.py", "out/a.py", "plain.py", "key.pem"):
        assert not rules.allows(folder / name), name
    (outside.parent / ".env").symlink_to(real)
    assert not rules.allows(outside.parent / ".env")
    assert rules.allows(folder / "same.py")
    assert rules.place(folder / "same.py") == Place(0, "real.py")
    # A workspace that is opened by a link is its folder.
    (tmp_path / "link").symlink_to(folder)
    assert Permitted([tmp_path / "link"], []).allows(tmp_path / "link" / "real.py")


def test_a_folder_of_secrets_that_is_a_link(folder: Path) -> None:
    write(folder / "deploy" / "settings.py")
    (folder / ".aws").symlink_to(folder / "deploy")
    rules = Permitted([folder], [])
    assert rules.allows(folder / "deploy" / "settings.py")
    assert not rules.allows(folder / ".aws" / "settings.py")


def test_a_link_that_is_ignored_by_its_own_name(folder: Path) -> None:
    real = write(folder / "real.py")
    (folder / "hidden.py").symlink_to(real)
    write(folder / ".gitignore", "hidden.py\n")
    assert not Permitted([folder], []).allows(folder / "hidden.py")
    assert Permitted([folder], []).allows(real)


def test_ignore_files_as_git_reads_them(folder: Path) -> None:
    write(folder / ".gitignore", "*.log\nbuild/\n/top.py\n!keep.log\nlocal/*\n!local/in.py\n")
    write(folder / "pkg" / ".gitignore", "made.py\n!special.log\n")
    write(folder / ".git" / "info" / "exclude", "private.py\n")
    rules = Permitted([folder], [])
    ignored = [
        "a.log",
        "pkg/b.log",
        "build/x.py",
        "pkg/build/y/z.py",
        "top.py",
        "pkg/made.py",
        "local/out.py",
        "private.py",
        ".git/config",
    ]
    for name in ignored:
        assert not rules.allows(write(folder / name)), name
    read = ["keep.log", "pkg/special.log", "pkg/top.py", "made.py", "builder/x.py", "local/in.py"]
    for name in read:
        assert rules.allows(write(folder / name)), name


def test_what_a_folder_that_is_ignored_holds_is_not_brought_back(folder: Path) -> None:
    write(folder / ".gitignore", "out/\n!out/a.py\n")
    write(folder / "out" / ".gitignore", "!a.py\n")
    assert not Permitted([folder], []).allows(write(folder / "out" / "a.py"))


def test_patterns_above_a_folder_of_the_workspace_count(folder: Path) -> None:
    write(folder / ".gitignore", "sub/made/\n")
    file = write(folder / "sub" / "made" / "a.py")
    assert not Permitted([folder / "sub"], []).allows(file)
    assert Permitted([folder / "sub"], []).allows(write(folder / "sub" / "a.py"))


def test_what_git_ignores_for_this_user(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "settings" / "git" / "ignore", "mine.py\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    rules = Permitted([folder], [])
    assert not rules.allows(write(folder / "mine.py"))
    assert rules.allows(write(folder / "a.py"))


def test_patterns_that_change_count_at_once(folder: Path) -> None:
    file = write(folder / "a.py")
    rules = Permitted([folder], [])
    assert rules.allows(file)
    write(folder / ".gitignore", "a.py\n")
    assert not rules.allows(file)
    write(folder / ".gitignore", "b.py\n")
    assert rules.allows(file)
    write(folder / ".gitignore", "a.py # no comment\na.py\n")
    assert not rules.allows(file)
    (folder / ".gitignore").unlink()
    assert rules.allows(file)


SECRETS = [
    ".env",
    ".env.local",
    "production.env",
    ".envrc",
    "server.pem",
    "server.KEY",
    "id_rsa",
    "id_ed25519.pub",
    ".netrc",
    ".npmrc",
    ".pypirc",
    "credentials",
    "aws_credentials.json",
    "credentials.py",
    "secrets.yaml",
    "app_secrets.py",
    "client_secret_1.json",
    "store.jks",
    "release.keystore",
    "vault.kdbx",
    "terraform.tfstate",
    "prod.tfvars",
    ".ssh/config",
    ".aws/config",
    "deploy/.kube/config",
    ".git-credentials",
]


@pytest.mark.parametrize("name", SECRETS)
def test_secrets(folder: Path, name: str) -> None:
    assert not Permitted([folder], []).allows(write(folder / name))


@pytest.mark.parametrize("name", ["environment.py", "keys.py", "tokens.py", "key.rs", "env.ts"])
def test_code_about_such_things_is_code(folder: Path, name: str) -> None:
    assert Permitted([folder], []).allows(write(folder / name))


def test_the_users_own_patterns(folder: Path) -> None:
    rules = Permitted([folder], ["vendor/", "*.sql", "!open.sql", "/top/*.py"])
    for name in ("vendor/a.py", "deep/vendor/b/c.py", "x.sql", "deep/y.sql", "top/a.py"):
        assert not rules.allows(write(folder / name)), name
    for name in ("open.sql", "deep/top/a.py", "vendors.py"):
        assert rules.allows(write(folder / name)), name


def test_the_inner_one_of_two_folders_names_the_file(folder: Path) -> None:
    inner = folder / "inner"
    file = write(inner / "a.py")
    assert Permitted([folder, inner], []).place(file) == Place(1, "a.py")


def test_only_texts_of_some_length_are_read(tmp_path: Path) -> None:
    assert read_text(write(tmp_path / "a.py", "é\n")) == "é\n"
    (tmp_path / "bom.py").write_bytes(b"\xef\xbb\xbfx = 1\n")
    assert read_text(tmp_path / "bom.py") == "x = 1\n"
    (tmp_path / "latin.py").write_bytes(b"\xe9\n")
    (tmp_path / "binary.py").write_bytes(b"a\0b")
    write(tmp_path / "long.py", "x" * (MAX_LENGTH + 1))
    write(tmp_path / "key.txt", "-----BEGIN RSA " + "PRIVATE KEY-----\nabc\n")
    os.mkfifo(tmp_path / "pipe.py")
    for name in ("latin.py", "binary.py", "long.py", "key.txt", "pipe.py", "none.py", "."):
        assert read_text(tmp_path / name) is None, name


def test_nothing_stays_open(tmp_path: Path) -> None:
    def lowest() -> int:
        """The number that the next file gets."""
        number = os.open(os.devnull, os.O_RDONLY)
        os.close(number)
        return number

    write(tmp_path / "deep" / "a.py")
    before = lowest()
    for name in ("deep/a.py", "deep/none.py", "none/a.py", "deep/a.py/b.py"):
        read_text(tmp_path / name)
        assert lowest() <= before, name


COPIES = [".env~", ".env-prod", "#server.pem#", ".#server.key", "server.pem.bak", "db.env.old"]
COPIES += [".netrc.swp", "secrets/db.py", ".secrets", "server.key.~1~", "secrets.yaml.orig.bak"]


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_secrets_are_secrets(folder: Path, name: str) -> None:
    assert not Permitted([folder], []).allows(write(folder / name))


def test_other_private_keys(tmp_path: Path) -> None:
    for text in (
        "---- BEGIN SSH2 ENCRYPTED " + "PRIVATE KEY ----",
        "PuTTY-User-Key-File-" + "3: x",
    ):
        assert read_text(write(tmp_path / "a.txt", f"{text}\nabc\n")) is None


def test_a_file_of_patterns_from_another_editor(folder: Path) -> None:
    (folder / ".gitignore").write_bytes(b"\xef\xbb\xbfa.py\r\n!\r\n[z-a]x\r\nb\xe9.py\r\nc.py")
    rules = Permitted([folder], [])
    for name in (b"a.py", b"b\xe9.py", b"c.py"):
        assert not rules.allows(folder / os.fsdecode(name)), name
    assert rules.allows(folder / "d.py")


def test_a_file_of_patterns_that_cannot_be_read_ignores_all(folder: Path) -> None:
    rules = Permitted([folder], [])
    os.mkfifo(folder / ".gitignore")
    assert not rules.allows(folder / "a.py")
    (folder / ".gitignore").unlink()
    write(folder / ".gitignore", "b.py\n" * MAX_LENGTH)
    assert not rules.allows(folder / "a.py")


@pytest.mark.parametrize("piece", ["a", "?", "[ab]", "(", "\\*", "."])
def test_patterns_of_many_stars_take_no_time(folder: Path, piece: str) -> None:
    # Without an end where each star may give back what it took.
    rules = Permitted([folder], [f"*{piece}" * 40 + "x"])
    assert rules.allows(folder / ("a(*." * 50))
    assert rules.allows(folder / ("a" * 200))


@pytest.mark.parametrize("line", ["private.py", "**/private.py", "/top/**/in/**/private.py"])
def test_a_folder_with_a_line_end_in_its_name_hides_nothing(folder: Path, line: str) -> None:
    write(folder / ".gitignore", f"{line}\n")
    assert not Permitted([folder], []).allows(folder / "top/a\nb/in/c\nd/private.py")
    assert not Permitted([folder], [line]).allows(folder / "top/a\nb/in/c\nd/private.py")


def test_a_name_with_a_line_end_behind_it_is_another_name(folder: Path) -> None:
    write(folder / ".gitignore", "*\n!a.py\n")
    rules = Permitted([folder], [])
    assert rules.allows(write(folder / "a.py"))
    assert not rules.allows(write(folder / "a.py\n"))


@pytest.mark.parametrize("piece", ["**/a/", "a/**/", "*/**/", "**/a*/b?/", "**/*a*/"])
def test_patterns_of_many_double_stars_take_no_time(folder: Path, piece: str) -> None:
    # Without an end where each of them may give back the folders that it took.
    rules = Permitted([folder], [piece * 20 + "x"])
    assert rules.allows(folder / ("a/" * 60 + "y"))
    assert rules.allows(folder / ("a/ba/" * 30 + "y"))


FOLDERS = st.lists(st.sampled_from(["a", "b", "ab", "ba"]), min_size=1, max_size=7).map("/".join)
DOUBLE_STARS = st.lists(
    st.sampled_from(["**", "**", "*", "a", "b", "a*", "*b", "?", "*a*"]), min_size=1, max_size=7
).map("/".join)


@given(DOUBLE_STARS, st.sampled_from(["", "/"]), st.lists(FOLDERS, min_size=1, max_size=8))
def test_double_stars_mean_the_same(pattern: str, top: str, names: list[str]) -> None:
    expected = GitIgnoreSpec.from_lines([top + pattern])
    for name in names:
        assert (
            patterns([top + pattern]).check_file(name).include == expected.check_file(name).include
        )


NAMES = st.text("ab.[]!-/*?(", max_size=8)


@given(st.text("ab*?[]!-/\\.(^#", min_size=1, max_size=12), st.lists(NAMES, min_size=1, max_size=8))
def test_they_mean_the_same(pattern: str, names: list[str]) -> None:
    try:
        expected = GitIgnoreSpec.from_lines([pattern])
    except (ValueError, re.error):
        with pytest.raises(ValueError):
            patterns([pattern])
        return
    for name in names:
        assert patterns([pattern]).check_file(name).include == expected.check_file(name).include


def test_a_pattern_that_cannot_be_read_is_named() -> None:
    for bad in ("!", "a\\", "[z-a]"):
        with pytest.raises(ValueError, match=re.escape(bad)):
            patterns(["*.py", bad])
