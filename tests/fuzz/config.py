"""Settings of every source: right, nearly right and wrong."""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from pydantic import ValidationError

from completion_ls.config import sources, user_file
from completion_ls.config.settings import Settings
from completion_ls.wire.endpoint import DaemonConfig
from fuzz.bytes import damaged
from fuzz.mixed import mixed
from fuzz.property import Property

KEYS = [
    f"{section}.{key}"
    for section, field in Settings.model_fields.items()
    for key in field.annotation.model_fields  # type: ignore[union-attr]
]
NAMES = [*KEYS, "completion.max_token", "completions.seed", "profile.x", "x.y", "model.", ".name"]
VALUES: list[Any] = [
    *(True, False, 0, 1, -1, 7, 64, 2048, 2**31, 2**63, 2**64, 10**30, 0.5, 1.0, -0.0, 1e308),
    *(float("nan"), float("inf"), "", "auto", "cpu", "single", "int8", "torch_cpu", "debug", "x"),
    *("64", "true", "~", "~nobody/x.gguf", "a/b", "\ud800", "é" * 200, "\x00", "a\nb", "9" * 400),
    *([], ["markdown"], [1], ["*.py", "["], [None], {}, {"a": 1}, [[[]]], ["\ud800"]),
]
values = st.sampled_from(VALUES)


def _deep(depth: int, of_lists: bool) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if of_lists else {"a": value}
    return value


def _deep_text(depth: int, of_lists: bool) -> str:
    name = "[draft]\nmodel = "
    return (
        name + ("[" * depth + "]" * depth if of_lists else "{a=" * depth + "1" + "}" * depth) + "\n"
    )


depths = st.sampled_from([5, 100, 200, 300, 400, 900, 2000])
deep = st.builds(_deep, st.sampled_from([5, 100, 300, 800, 900, 950, 980]), st.booleans())


@st.composite
def tables(draw: st.DrawFn, deeply: int = 0) -> dict[str, Any]:
    """Settings, section by section; `deeply` of ten are deep."""
    found: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=5)):
        section, _, key = name.partition(".")
        table = found.setdefault(section, {})
        if isinstance(table, dict):
            table[key] = draw(mixed((9, values), (deeply, deep)))
    if draw(st.integers(0, 3)) == 0:
        name = draw(st.sampled_from(["profile", "completion", "x", "", "model", "\ud800"]))
        found[name] = draw(mixed((5, values), (2, st.sampled_from(["gpu", "cpu"]))))
    return found


def as_toml(table: Mapping[str, Any]) -> str:
    """A table as text, where TOML has its values."""
    lines = []
    for section, found in table.items():
        if isinstance(found, dict):
            lines.append(f"[{_key(section)}]")
            lines += [f"{_key(key)} = {_toml(value)}" for key, value in found.items()]
        else:
            lines.insert(0, f"{_key(section)} = {_toml(found)}")
    return "\n".join(lines) + "\n"


def _key(text: str) -> str:
    return text if re.fullmatch("[A-Za-z0-9_-]+", text) else json.dumps(text)


def _toml(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


NUMBERS = ["9" * 5000, "-" + "9" * 4400, "0x" + "f" * 5000, "1e999999", "1979-05-27", "07:32:00"]
odd_lines = st.sampled_from(
    [
        *(f"[engine]\nthreads = {number}\n" for number in NUMBERS),
        *(f"x = {number}\n" for number in NUMBERS),
        *(
            "[",
            "]",
            "=",
            "a = [" * 400,
            "a." * 2000 + "b = 1\n",
            '"',
            '"""',
            "\ufeff",
            "\x00",
            "a = 1\r",
        ),
        *(
            "[[completion]]\n",
            "[completion.seed]\n",
            "completion.seed = 3\n",
            "profile = 'x'\n",
            "# é\n",
        ),
    ]
)
texts = mixed(
    (4, tables().map(as_toml)),
    (1, st.builds(_deep_text, depths, st.booleans())),
    (2, st.lists(st.one_of(odd_lines, tables().map(as_toml)), max_size=3).map("".join)),
)
files: st.SearchStrategy[bytes] = mixed(
    (6, texts.map(lambda text: text.encode("utf-8", "surrogatepass"))),
    (1, texts.map(lambda text: text.encode("utf-16", "surrogatepass"))),
    (2, damaged(texts.map(lambda text: text.encode("utf-8", "surrogatepass")))),
    (1, st.binary(max_size=30)),
)


@dataclass(frozen=True)
class Sources:
    """What is in the places where settings come from. `file` may say what is there in its place."""

    file: bytes | str
    environment: dict[str, str]
    editor: list[tuple[str, Any]]


@contextmanager
def _there(given: Sources) -> Iterator[Path]:
    """A place with all that."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="cls-fuzz-") as folder:
        file = Path(folder, "config.toml")
        if isinstance(given.file, bytes):
            file.write_bytes(given.file)
        elif given.file == "pipe":
            os.mkfifo(file)
        elif given.file == "folder":
            file.mkdir()
        elif given.file == "loop":
            file.symlink_to(file)
        os.environ.pop(sources.PROFILE_VARIABLE, None)
        os.environ["COMPLETION_LS_CONFIG"] = str(file)
        os.environ.update(given.environment)
        try:
            yield file
        finally:
            os.environ.clear()
            os.environ.update(before)


def settings_or_a_sentence(given: Sources) -> None:
    """Whatever the sources hold there are settings; what was not taken is said with its source and its
    key; and what is right in the editor's last words is taken."""
    with _there(given) as file:
        settings, problems = sources.resolve(given.editor)
        DaemonConfig.of(settings).identity.encode()
        named = {
            str(file),
            "COMPLETION_LS_CONFIG",
            *given.environment,
            *(name for name, _ in given.editor),
            "the default",
        }
        for problem in problems:
            text = str(problem)
            assert problem.source in named, text
            assert text.endswith((".", "?")) and repr(problem.key)[1:80].rstrip("'\"") in text, text
            assert len(text) < 2000, len(text)
        if given.editor:
            _is_taken(given.editor[-1][1], settings, problems)
        if not isinstance(given.file, bytes) and given.file != "nothing":
            assert any(str(file) in str(problem) for problem in problems)


def _is_taken(value: Any, settings: Settings, problems: list[sources.Problem]) -> None:
    """Each of these settings is right by itself if and only if it is in force, but for those that no editor
    decides."""
    for section, table in value.items() if isinstance(value, dict) else ():
        known = Settings.model_fields.get(section)
        if known is None or not isinstance(table, dict):
            continue
        for key, one in table.items():
            if key not in known.annotation.model_fields or one is None:  # type: ignore[union-attr]
                continue
            if section in sources.OF_THE_USER:
                assert any(problem.key.startswith(section) for problem in problems), section
                continue
            if (section, key, one) == ("engine", "kind", "remote"):
                continue  # it counts where the user's own sources name a server
            try:
                alone = known.annotation.model_validate({key: one})  # type: ignore[union-attr]
            except ValidationError:
                assert any(problem.key == f"{section}.{key}" for problem in problems), key
            else:
                wanted, found = getattr(alone, key), getattr(getattr(settings, section), key)
                assert repr(wanted) == repr(found), (section, key)


def _variable(name: str) -> str:
    return "COMPLETION_LS_" + name.replace(".", "__").upper()


variables = st.dictionaries(
    st.sampled_from([*map(_variable, NAMES), "COMPLETION_LS_PROFILE", "COMPLETION_LS_X"]),
    mixed((3, values.map(_toml)), (1, odd_lines), (1, st.text(max_size=9)))
    .map(lambda text: text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape"))
    .filter(lambda text: "\0" not in text),
    max_size=3,
)
editors = st.lists(
    st.tuples(
        st.sampled_from(["initializationOptions", "workspace/didChangeConfiguration"]),
        mixed(
            (6, tables(1)),
            (1, tables(1).map(lambda one: {"completion-ls": one})),
            (2, values),
            (1, deep),
        ),
    ),
    max_size=2,
)
places = st.builds(
    Sources,
    mixed((8, files), (1, st.sampled_from(["pipe", "folder", "loop", "nothing"]))),
    variables,
    editors,
)


@dataclass(frozen=True)
class Writing:
    """A settings file, and what is to be changed in it."""

    text: str
    changes: dict[str, Any]


def a_file_keeps_what_it_holds(given: Writing) -> None:
    """With these values in it, all else is as before; or it is left as it is, with a sentence."""
    file = Path("config.toml")
    try:
        new = user_file.with_settings(given.text, given.changes, file)
    except user_file.UserFileError as error:
        assert "left as it" in str(error)
        return
    before, after = tomllib.loads(given.text), tomllib.loads(new)
    for name, value in given.changes.items():
        section, _, key = name.partition(".")
        assert after[section].pop(key) == value
        if isinstance(before.get(section), dict):
            before[section].pop(key, None)
    assert _kept(before) == _kept(after)
    for line in given.text.splitlines():
        if line.lstrip().startswith("#"):
            assert line in new


def _kept(found: dict[str, Any]) -> str:
    """What is there, but for sections in which nothing is."""
    return repr({name: found[name] for name in sorted(found) if found[name] != {}})


changes = st.dictionaries(
    st.sampled_from(KEYS),
    st.sampled_from([True, 0, 7, 0.5, "", "a", 'é"\n\\', "a/b"]),
    min_size=1,
    max_size=3,
)
comments = st.sampled_from(["# mine\n", "\n", "  # seed = 1\n", "[x] # y\n", "", "\r\n", "\ufeff"])
written = st.builds(Writing, st.lists(st.one_of(comments, texts), max_size=4).map("".join), changes)

WRITTEN = (
    Sources(
        b"engine.threads = " + b"9" * 5000,
        {},
        [("initializationOptions", {"engine": {"threads": 2}})],
    ),
    Sources(b"", {"COMPLETION_LS_ENGINE__THREADS": "9" * 5000}, []),
    Sources("pipe", {}, []),
    Sources(b"", {"COMPLETION_LS_PROFILE": ""}, []),
    Sources(b"", {}, [("initializationOptions", {"profile": "x" * 10_000, "y" * 10_000: {}})]),
)

CONFIG = (
    Property("config", "sources", places, settings_or_a_sentence, WRITTEN, budget=250),
    Property("config", "user-file", written, a_file_keeps_what_it_holds, budget=150),
)
