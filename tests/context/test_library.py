"""Looking around in a small workspace."""

from __future__ import annotations

from pathlib import Path

import pytest

from completion_ls.context.library import Library
from completion_ls.context.surroundings import MAX_LENGTH, NOTHING, Opened, Query, Surroundings

SHAPES = '''\
def perimeter(width, height):
    """The length of all sides."""
    return 2 * (width + height)
'''
TOTAL = "from shapes import perimeter\n\n\ndef total(room):\n    return "


class Workspace:
    """A folder, and what is looked for in it."""

    def __init__(self, folder: Path, exclude: list[str]) -> None:
        self.folder = folder
        self.library = Library([folder], exclude)
        self.held = NOTHING

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def look(
        self, name: str, language: str, text: str, *others: Opened, budget: int = 2000
    ) -> Surroundings:
        """From the end of a text, with what was found the last time."""
        query = Query(self.folder / name, language, text, text.count("\n"), list(others), budget)
        self.held = self.library.look(query, self.held)
        return self.held


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    folder = tmp_path / "work"
    folder.mkdir()
    return Workspace(folder, ["excluded.py"])


def test_an_imported_file_need_not_be_open(work: Workspace) -> None:
    work.write("shapes.py", SHAPES)
    found = work.look("main.py", "python", TOTAL)
    assert found.repository == "work"
    assert found.path == "main.py"
    assert found.files == (("shapes.py", SHAPES),)


IMPORTED = [
    (
        "typescript",
        "main.ts",
        'import { perimeter } from "./shapes";\n\nfunction total(room: Room) {\n  return ',
        "shapes.ts",
        "export function perimeter(width: number, height: number): number {\n  return 2;\n}\n",
    ),
    (
        "rust",
        "src/main.rs",
        "mod shapes;\nuse shapes::perimeter;\n\nfn total(room: Room) -> f64 {\n    ",
        "src/shapes.rs",
        "pub fn perimeter(width: f64, height: f64) -> f64 {\n    2.0 * (width + height)\n}\n",
    ),
    (
        "go",
        "main.go",
        "package main\n\nfunc total(room Room) int {\n\treturn perimeter(",
        "shapes.go",
        "func perimeter(width int, height int) int {\n\treturn 2 * (width + height)\n}\n",
    ),
    (
        "c",
        "main.c",
        '#include "shapes.h"\n\nint total(struct room *room) {\n    return perimeter(',
        "shapes.h",
        "int perimeter(int width, int height);\n",
    ),
    (
        "cpp",
        "main.cpp",
        '#include "shapes.hpp"\n\nint total(const Room &room) {\n    return perimeter(',
        "shapes.hpp",
        "int perimeter(int width, int height);\n",
    ),
    (
        "java",
        "org/shop/Main.java",
        "package org.shop;\n\nclass Main {\n    int total(Room room) {\n        return Shapes.",
        "org/shop/Shapes.java",
        "class Shapes {\n    static int perimeter(int width, int height) { return 2; }\n}\n",
    ),
    (
        "javascript",
        "main.js",
        'const { perimeter } = require("./shapes");\n\nfunction total(room) {\n  return ',
        "shapes.js",
        "function perimeter(width, height) {\n  return 2 * (width + height);\n}\n",
    ),
]


@pytest.mark.parametrize(("language", "name", "text", "other", "definition"), IMPORTED)
def test_each_language(
    work: Workspace, language: str, name: str, text: str, other: str, definition: str
) -> None:
    work.write(other, definition)
    assert work.look(name, language, text).files == ((other, definition),)


def test_what_a_package_hands_on(work: Workspace) -> None:
    work.write("shapes/__init__.py", "from shapes.sides import perimeter\n")
    work.write("shapes/sides.py", SHAPES)
    assert work.look("main.py", "python", TOTAL).files == (("shapes/sides.py", SHAPES),)


def test_an_open_document_counts_as_it_is_in_the_editor(work: Workspace) -> None:
    file = work.write("shapes.py", SHAPES)
    edited = SHAPES.replace("width", "breadth")
    found = work.look("main.py", "python", TOTAL, Opened(file, "python", edited))
    assert found.files == (("shapes.py", edited),)


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends(work: Workspace, end: str) -> None:
    file = work.folder / "shapes.py"
    file.write_bytes(SHAPES.replace("\n", end).encode())
    assert work.look("main.py", "python", TOTAL).files == (("shapes.py", SHAPES),)


@pytest.mark.parametrize("name", [".env", "ignored.py", "excluded.py", "../outside.py", "key.pem"])
def test_what_may_not_be_read_is_no_context_open_or_not(work: Workspace, name: str) -> None:
    work.write(".gitignore", "ignored.py\n")
    file = work.write(name, SHAPES)
    assert work.look("main.py", "python", TOTAL, Opened(file, "python", SHAPES)) == NOTHING
    assert work.look("main.py", "python", TOTAL, Opened(file, "python", None)) == NOTHING
    text = TOTAL.replace("shapes", file.stem)
    assert work.look("main.py", "python", text) == NOTHING


def test_what_may_no_longer_be_read_goes_at_once(work: Workspace) -> None:
    work.write("shapes.py", SHAPES)
    assert work.look("main.py", "python", TOTAL).files
    work.write(".gitignore", "shapes.py\n")
    assert work.look("main.py", "python", TOTAL) == NOTHING


def test_a_document_outside_gets_nothing(work: Workspace) -> None:
    work.write("shapes.py", SHAPES)
    assert work.look("../main.py", "python", TOTAL) == NOTHING


def test_long_and_binary_documents_are_no_context(work: Workspace) -> None:
    file = work.write("shapes.py", SHAPES)
    without = TOTAL.split("\n\n\n")[1] + "perimeter("
    assert work.look("main.py", "python", without, Opened(file, "python", SHAPES)) != NOTHING
    long = SHAPES + "# long\n" * (MAX_LENGTH // 7)
    assert work.look("main.py", "python", without, Opened(file, "python", long)) == NOTHING
    assert work.look("main.py", "python", without, Opened(file, "python", SHAPES + "\0")) == NOTHING


def test_the_choice_stays_while_one_types(work: Workspace) -> None:
    work.write("shapes.py", SHAPES)
    first = work.look("main.py", "python", TOTAL)
    for typed in ("per", "perimeter(", "perimeter(room.width, ", "perimeter(room.width, 2)\n"):
        assert work.look("main.py", "python", TOTAL + typed) is first


def test_it_changes_where_another_place_needs_others(work: Workspace) -> None:
    work.write("shapes.py", SHAPES)
    colours = "def mixed(first, second):\n    return (first + second) / 2\n"
    work.write("colours.py", colours)
    first = work.look("main.py", "python", TOTAL, budget=130)
    assert [path for path, _ in first.files] == ["shapes.py"]
    text = (
        TOTAL
        + "1\n"
        + "\n" * 40
        + "from colours import mixed\n\n\ndef blend(one, two):\n    mixed("
    )
    second = work.look("main.py", "python", text.replace(" perimeter", " x"), budget=130)
    assert [path for path, _ in second.files] == ["colours.py"]


def test_two_folders(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    other = tmp_path / "two" / "shapes.py"
    other.write_text(SHAPES)
    library = Library([tmp_path / "one", tmp_path / "two"], [])
    query = Query(tmp_path / "one" / "a.py", "python", TOTAL, 4, [Opened(other, "", None)], 2000)
    found = library.look(query, NOTHING)
    assert found.files == (("two/shapes.py", SHAPES),)
