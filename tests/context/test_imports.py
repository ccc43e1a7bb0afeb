"""Imports, and the files of the workspace that they lead to."""

from __future__ import annotations

from pathlib import Path

import pytest

from completion_ls.context.imports import imported_files, imports_of


def found(
    tmp_path: Path, language: str, name: str, text: str, others: dict[str, str] | list[str]
) -> set[str]:
    """The files that a file with this text imports, among these."""
    for other in others:
        file = tmp_path / other
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(others[other] if isinstance(others, dict) else "")
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    files = imported_files(language, imports_of(language, text), file, tmp_path)
    return {path.relative_to(tmp_path).as_posix() for path in files}


PYTHON = ["pkg/__init__.py", "pkg/a.py", "pkg/b.py", "pkg/sub/__init__.py", "pkg/sub/c.py", "d.py"]
PYTHON_CASES = [
    ("import pkg.a", {"pkg/a.py"}),
    ("import pkg.a as other, d", {"pkg/a.py", "d.py"}),
    ("from pkg.a import name", {"pkg/a.py"}),
    ("from pkg import a, name", {"pkg/__init__.py", "pkg/a.py"}),
    ("from . import b", {"pkg/__init__.py", "pkg/b.py"}),
    ("from .a import (\n    one,\n    two,\n)", {"pkg/a.py"}),
    ("from .sub import c", {"pkg/sub/__init__.py", "pkg/sub/c.py"}),
    ("from .sub.c import name", {"pkg/sub/c.py"}),
    ("from .. import d", {"d.py"}),
    ("from ..... import d", set()),
    ("import os.path, numpy", set()),
    ("def f():\n    from pkg import b", {"pkg/__init__.py", "pkg/b.py"}),
]


@pytest.mark.parametrize(("text", "expected"), PYTHON_CASES)
def test_python(tmp_path: Path, text: str, expected: set[str]) -> None:
    assert found(tmp_path, "python", "pkg/here.py", text + "\n", PYTHON) == expected


def test_python_below_src(tmp_path: Path) -> None:
    others = ["src/pkg/a.py", "tests/support/tool.py"]
    text = "import pkg.a\nfrom support.tool import x\n"
    assert found(tmp_path, "python", "tests/lsp/test_a.py", text, others) == set(others)


SCRIPTS = ["src/a.ts", "src/b.tsx", "src/c/index.ts", "lib/d.js", "src/e.d.ts", "src/f.mts"]
SCRIPT_CASES = [
    ('import { a } from "./a";', {"src/a.ts"}),
    ('import a from "./a.js";', {"src/a.ts"}),
    ('import f from "./f.mjs";', {"src/f.mts"}),
    ('import * as b from "./b"', {"src/b.tsx"}),
    ('import type { C } from "./c";', {"src/c/index.ts"}),
    ('export { d } from "../lib/d";', {"lib/d.js"}),
    ('import "./e";', {"src/e.d.ts"}),
    ('const d = require("../lib/d");', {"lib/d.js"}),
    ('import("./a").then(use)', {"src/a.ts"}),
    ('import fs from "node:fs"; import r from "react";', set()),
    ('import x from "../../../../../etc/x";', set()),
]


@pytest.mark.parametrize("language", ["typescript", "javascript", "typescriptreact"])
@pytest.mark.parametrize(("text", "expected"), SCRIPT_CASES)
def test_scripts(tmp_path: Path, language: str, text: str, expected: set[str]) -> None:
    if language == "javascript" and "import type" in text:
        return
    assert found(tmp_path, language, "src/here.ts", text + "\n", SCRIPTS) == expected


RUST = ["src/lib.rs", "src/a.rs", "src/b/mod.rs", "src/b/c.rs", "src/here/inner.rs"]
RUST_CASES = [
    ("mod inner;", {"src/here/inner.rs"}),
    ("use crate::a::Name;", {"src/a.rs"}),
    ("use crate::b::c::{One, Two};", {"src/b/c.rs"}),
    (
        "use crate::{a::Name, b::{c::One, Two as Three}};",
        {"src/a.rs", "src/b/c.rs", "src/b/mod.rs"},
    ),
    ("use super::a;", {"src/a.rs"}),
    ("use self::inner::Deep;", {"src/here/inner.rs"}),
    ("use std::collections::HashMap;", set()),
    ("mod tests { use super::*; }", {"src/lib.rs"}),
]


@pytest.mark.parametrize(("text", "expected"), RUST_CASES)
def test_rust(tmp_path: Path, text: str, expected: set[str]) -> None:
    assert found(tmp_path, "rust", "src/here.rs", text + "\n", RUST) >= expected


def test_rust_modules_of_the_crates_top(tmp_path: Path) -> None:
    assert found(tmp_path, "rust", "src/main.rs", "mod a;\nmod b;\n", RUST) == {
        "src/a.rs",
        "src/b/mod.rs",
    }


def test_go(tmp_path: Path) -> None:
    others = {
        "go.mod": "module example.com/shop\n\ngo 1.22\n",
        "cart/total.go": "",
        "cart/total_test.go": "",
        "api/other.go": "",
        "store/db.go": "",
    }
    text = 'package api\n\nimport (\n\t"fmt"\n\tc "example.com/shop/cart"\n)\n'
    assert found(tmp_path, "go", "api/here.go", text, others) == {"cart/total.go", "api/other.go"}


@pytest.mark.parametrize(("place", "count"), [("work/real.mod", 1), ("real.mod", 0)])
def test_a_module_of_go_that_is_named_by_a_link(tmp_path: Path, place: str, count: int) -> None:
    """It counts where it leads into the workspace."""
    folder = tmp_path / "work"
    (folder / "cart").mkdir(parents=True)
    (folder / "cart" / "total.go").touch()
    (tmp_path / place).write_text("module shop\n")
    (folder / "go.mod").symlink_to(tmp_path / place)
    imports = imports_of("go", 'package api\n\nimport "shop/cart"\n')
    assert len(imported_files("go", imports, folder / "here.go", folder)) == count


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_includes(tmp_path: Path, language: str) -> None:
    others = ["src/here.h", "src/near.h", "include/shop/api.h", "src/deep/x.h"]
    text = '#include <stdio.h>\n#include "near.h"\n#include "shop/api.h"\n#include "deep/x.h"\n'
    text = f"#ifndef X\n{text}#endif\n"
    assert found(tmp_path, language, "src/here.c", text, others) == set(others)


def test_java(tmp_path: Path) -> None:
    top = "src/main/java/org/shop"
    others = [f"{top}/cart/Total.java", f"{top}/api/Other.java", f"{top}/db/A.java"]
    others += [f"{top}/db/B.java", f"{top}/not/C.java", f"{top}/tools/Text.java"]
    text = (
        "package org.shop.api;\nimport java.util.List;\nimport org.shop.cart.Total;\n"
        "import org.shop.db.*;\nimport static org.shop.tools.Text.join;\n"
    )
    files = found(tmp_path, "java", f"{top}/api/Here.java", text, others)
    assert files == {other for other in others if "/not/" not in other}


def test_names_of_an_import() -> None:
    [one] = imports_of("python", "from pkg.a import (\n    one,\n    two as three,\n)\n")
    assert one.module == "pkg.a"
    assert one.names >= {"one", "two", "three"}


def test_a_file_does_not_import_itself(tmp_path: Path) -> None:
    assert found(tmp_path, "python", "pkg/a.py", "from . import a\n", ["pkg/b.py"]) == set()


def test_other_languages_import_nothing(tmp_path: Path) -> None:
    assert found(tmp_path, "ruby", "a.rb", 'require "./b"\n', ["b.rb"]) == set()


LONG = "a" * 300
GROUPS = "use " + "a::{" * 3000 + "x" + "}" * 3000 + ";\n"
IMPOSSIBLE = [
    ("python", "here.py", f"import {LONG}\nimport good\n", "good.py"),
    ("typescript", "here.ts", f'import "./{LONG}"\nimport "{"../" * 80}"\nimport "./good"\n', "good.ts"),
    ("c", "here.c", f'#include "{LONG}"\n#include "a\0"\n#include "good.h"\n', "good.h"),
    ("go", "here.go", 'package a\nimport "m/a\0b"\nimport "m/good"\n', "good/a.go"),
    ("java", "Here.java", f"import {LONG}.A;\nimport a.Good;\n", "a/Good.java"),
    ("rust", "main.rs", f"use {LONG}::a;\nuse a::/* x/y */b;\nmod good;\nuse good::b;\n", "good.rs"),
    ("rust", "main.rs", f"use {'super::' * 80}a;\n{GROUPS}use good::b;\n", "good.rs"),
]  # fmt: skip


@pytest.mark.parametrize(("language", "name", "text", "good"), IMPOSSIBLE)
def test_what_cannot_be_a_file_does_not_end_the_search(
    tmp_path: Path, language: str, name: str, text: str, good: str
) -> None:
    (tmp_path / "go.mod").write_text("module m\n")
    assert found(tmp_path, language, name, text, [good]) == {good}


def test_imports_from_the_root_of_the_file_system() -> None:
    for language, name, text in (
        ("python", "/a.py", "from . import b\n"),
        ("rust", "/a/b.rs", "use super::super::super::x;\n"),
    ):
        imports = imports_of(language, text)
        assert imported_files(language, imports, Path(name), Path("/")) == []
