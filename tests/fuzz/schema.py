"""JSON for any type of lsprotocol: what the protocol allows, with the names and numbers that editors
seldom have."""

from __future__ import annotations

import collections.abc
import enum
import types as python
import typing
from functools import cache
from typing import Any

import attrs
from hypothesis import strategies as st

from fuzz.config import tables
from fuzz.mixed import mixed

PLAIN = "file:///home/u/a.py"
CELL = "vscode-notebook-cell:/home/u/n.ipynb#W0"
NOTEBOOK = "file:///home/u/n.ipynb"
URIS = [
    *(
        "untitled:Untitled-1",
        "untitled:a b/ü",
        "file:///home/u/a%2Epy",
        "file:///home/u/b.py",
        "a.py",
    ),
    *("", "%", "%zz%", "file:", "file:///", "//", "http://[", "file://[::1/a", "file:///%00a"),
    *("file:///%ff%fe", "file:///\ud800.py", "file:///" + "x" * 5000, "file:///C:/a.py", "C:\\a"),
    *("file://host/share/a.py", "git:/home/u/a.py?%7B%22ref%22%3A%22~%22%7D", "\x00", "🎉:\u2028"),
    *("file:///home/u/.env", "file:///home/u/sub/../a.py", "urn:x", "file:///home/u/a.py#L1"),
]
TEXTS = [
    *("", "x", "def f(a):\n    ", "\r\n", "\r", "\n" * 9, "\t", "🎉", "\ud83d", "\udd78", "\x00"),
    *("e\u0301", "\u2028", "(" * 30, "f(x)[0]", "return a\n    b", '"""', "# é\n", ")", "pass"),
]
LANGUAGES = ["python", "go", "plaintext", "", "PYTHON", "\ud800", "c", "rust", "typescriptreact"]

uris = st.sampled_from([*[PLAIN] * 40, *[CELL, NOTEBOOK] * 10, *URIS])
texts = mixed((3, st.sampled_from(TEXTS)), (1, st.text(max_size=12)))
places = st.sampled_from([*range(5), *range(5), *range(5), 9, 30, 2**31 - 1])
words = st.sampled_from(["", "a", "utf-8", "utf-16", "utf-32", "é", "\ud800", "completion-ls", "*"])
ids = st.sampled_from([1, 2, 3, 4, 5, "a", "b", "", 0, -1, 2**31 - 1])
JUNK = [
    *(None, True, False, 0, -1, 2**31, 2**53, 2**64, 1.5, 1e308, "", "x", "\ud800", [], {}, [[]]),
    *([None], {"": None}, {"uri": 1}, [1] * 40, {"a": {"b": {"c": []}}}, "9" * 400),
]
junk = st.sampled_from(JUNK)
MOST_DEPTH = 6


def params(kind: Any) -> st.SearchStrategy[Any]:
    """What a message of this type of parameters carries."""
    return st.none() if kind is None else value(kind, "", 0)


@cache
def value(kind: Any, name: str, depth: int) -> st.SearchStrategy[Any]:
    """JSON of a type; `name` is that of its field."""
    if name in ("settings", "initialization_options"):
        return mixed((4, tables()), (1, junk))
    if (simple := _simple(kind, name)) is not None:
        return simple
    if attrs.has(kind):
        return st.deferred(lambda: _object(kind, depth))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from([one.value for one in kind])
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return st.sampled_from(inner)
    if origin in (typing.Union, python.UnionType):
        return st.one_of([value(one, name, depth) for one in inner if one is not type(None)])
    if origin in (collections.abc.Sequence, list):
        return st.lists(value(inner[0], name, depth), max_size=3)
    if origin is tuple:
        return st.tuples(*[value(one, name, depth) for one in inner]).map(list)
    if origin in (collections.abc.Mapping, dict):
        return st.dictionaries(uris, value(inner[1], name, depth), max_size=2)
    return junk


def _simple(kind: Any, name: str) -> st.SearchStrategy[Any] | None:
    if kind is str:
        if name.endswith("uri") or name == "document":
            return uris
        return {
            "text": texts,
            "new_text": texts,
            "language_id": st.sampled_from(LANGUAGES),
        }.get(name, words)
    if kind is int:
        return places
    if kind is bool:
        return st.booleans()
    return st.floats(0, 10) if kind is float else None


@cache
def _object(kind: Any, depth: int) -> st.SearchStrategy[dict[str, Any]]:
    hints = typing.get_type_hints(kind)
    needed, other = {}, {}
    for field in attrs.fields(kind):
        of = value(hints[field.name], field.name, depth + 1)
        into = needed if field.default is attrs.NOTHING else other
        into[_camel(field.name)] = of
    if not other or depth > MOST_DEPTH:
        return st.fixed_dictionaries(needed)

    @st.composite
    def made(draw: st.DrawFn) -> dict[str, Any]:
        chosen = draw(st.lists(st.sampled_from(sorted(other)), max_size=3, unique=True))
        return draw(st.fixed_dictionaries(needed | {name: other[name] for name in chosen}))

    return made()


def _camel(name: str) -> str:
    first, *rest = name.rstrip("_").split("_")
    return first + "".join(word.capitalize() for word in rest)
