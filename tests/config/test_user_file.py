"""Changes of the user's settings file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_ls.config.user_file import UserFileError, as_toml, with_settings

FILE = Path("f")
CHANGES = {"draft.max_tokens": 4, "engine.threads": 2}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "# mine\n[draft]  # guesses\nmax_tokens = 16  # all\nlookup = true\n\n[engine]\nthreads = 0\n",
            "# mine\n[draft]  # guesses\nmax_tokens = 4  # all\nlookup = true\n\n[engine]\nthreads = 2\n",
        ),
        ("", "[draft]\nmax_tokens = 4\n\n[engine]\nthreads = 2\n"),
        ("engine.threads = 1 # x\ndraft = { max_tokens = 1 }\n",
         "engine.threads = 2 # x\ndraft = { max_tokens = 4 }\n"),
    ],
)  # fmt: skip
def test_only_these_settings_change(before: str, after: str) -> None:
    assert with_settings(before, CHANGES, FILE) == after
    assert with_settings(after, CHANGES, FILE) == after


def test_line_ends_stay_those_of_the_file() -> None:
    new = with_settings("# mine\r\na = 1\r\n", CHANGES, FILE)
    assert new.startswith("# mine\r\na = 1\r\n") and "\n" not in new.replace("\r\n", "")
    assert tomllib.loads(new) == {"a": 1, "draft": {"max_tokens": 4}, "engine": {"threads": 2}}


@pytest.mark.parametrize("text", ["draft = 3\n", "[[draft]]\nmax_tokens = 1\n", "[draft\n"])
def test_a_file_that_cannot_be_changed_is_refused(text: str) -> None:
    with pytest.raises(UserFileError, match="left as it is"):
        with_settings(text, CHANGES, FILE)


def test_toml_of_all_kinds_of_values() -> None:
    text = as_toml({"draft.model": "a/b", "draft.lookup": True, "engine.threads": 2})
    assert text == '[draft]\nmodel = "a/b"\nlookup = true\n\n[engine]\nthreads = 2'


LINES = st.one_of(
    st.just(""),
    st.just("  # max_tokens = 3"),
    st.just("k{} = nan # c"),
    st.just("[draft.t{}]"),
    st.just("[[l{}]]"),
    st.just("[t{}]"),
)


@given(st.lists(LINES, max_size=8), st.sampled_from(["", "[draft]\nmax_tokens = 1 # c\n"]))
def test_any_file_keeps_what_it_holds(lines: list[str], own: str) -> None:
    numbered = [line.replace("{}", str(number)) for number, line in enumerate(lines)]
    text = own + "\n".join(numbered)
    try:
        new = with_settings(text, CHANGES, FILE)
    except UserFileError:
        return
    after, before = tomllib.loads(new), tomllib.loads(text)
    assert after["draft"]["max_tokens"] == 4 and after["engine"] == {"threads": 2}
    for line in numbered:
        assert line in new
    assert repr({**after, "draft": 0, "engine": 0}) == repr({**before, "draft": 0, "engine": 0})
