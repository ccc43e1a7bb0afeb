"""The README's table of settings, made from the types, so that it cannot be wrong."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic_core import PydanticUndefined

from completion_ls.config import settings
from completion_ls.config.sources import OF_THE_USER

BEGIN, END = "<!-- settings -->\n", "<!-- /settings -->\n"


def table() -> str:
    """The Markdown table: key, type, default, meaning."""
    rows = ["| setting | value | default | |", "|---|---|---|---|"]
    for section, field in settings.Settings.model_fields.items():
        model: Any = field.annotation
        texts = meanings(model)
        for key, setting in model.model_fields.items():
            default = "" if setting.default is PydanticUndefined else _toml(setting.default)
            kind = _kind(setting.annotation)
            mark = " Never taken from an editor." if section in OF_THE_USER else ""
            rows.append(f"| `{section}.{key}` | {kind} | `{default}` | {texts[key]}{mark} |")
    return "\n".join(rows) + "\n"


def with_table(text: str) -> str:
    """A document with the table between its two marks."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + table() + END + after


def meanings(model: type) -> dict[str, str]:
    """The docstrings that stand under the fields of a class."""
    tree = ast.parse(inspect.getsource(model)).body[0]
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            assert isinstance(field.target, ast.Name)
            assert isinstance(below.value, ast.Constant)
            found[field.target.id] = " ".join(str(below.value.value).split())
    return found


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) is list:
        return "list of texts"
    return {int: "integer", float: "number", bool: "true, false", str: "text"}[annotation]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(with_table(file.read_text()))
