"""Files as whole chunks, and the names that these define."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_ls.context.chunks import MAX_CHUNK, Chunk, chunks_of, enclosing
from completion_ls.syntax.languages import LANGUAGES

PYTHON = '''\
"""A module."""

import os
from math import pi

# The unit of all lengths.
UNIT = 1


@cached
# of use
def area(width: int) -> int:
    """Its area."""
    inner = 2

    def helper():
        return inner

    return width * helper()


class Circle:
    """Round."""

    radius: int = 0

    def area(self) -> float:
        return pi * self.radius**2
'''
TYPESCRIPT = """\
import { Shape } from "./shape";

/** The unit. */
export const UNIT = 1;

export interface Sized {
  size(): number;
}

/** Round. */
export class Circle implements Sized {
  radius = 1;

  size(): number {
    return this.radius;
  }
}

export default function scaled(value: number): number {
  const local = value * 2;
  return local;
}

const twice = (value: number) => 2 * value;
type Pair = [number, number];
enum Kind { A, B }
"""
RUST = """\
use crate::shape::Shape;

/// Round.
#[derive(Debug)]
pub struct Circle {
    radius: f64,
}

impl Shape for Circle {
    fn area(&self) -> f64 {
        self.radius
    }
}

pub fn scaled(value: f64) -> f64 {
    value * 2.0
}

const UNIT: f64 = 1.0;
macro_rules! twice { ($x:expr) => { 2 * $x }; }
mod inner { pub fn deep() {} }
"""
GO = """\
package shapes

import "math"

// Circle is round.
type Circle struct {
	radius float64
}

// Area is its area.
func (c *Circle) Area() float64 {
	return math.Pi * c.radius
}

func scaled(value int) int {
	local := value
	return local
}

const unit = 1

var (
	first = 1
	second = 2
)
"""
C = """\
#ifndef SHAPES_H
#define SHAPES_H
#define UNIT 1
#include "base.h"

/* Round. */
struct circle {
    int radius;
};

typedef struct pair { int a, b; } pair_t;

enum kind { ROUND };

// Its area.
int area(struct circle *c) {
    int local = c->radius;
    return local;
}

char *name_of(int kind);

#endif
"""
CPP = """\
namespace shapes {

// Round.
template <typename T>
class Circle {
public:
    T area() const;
    int radius() { return r; }
private:
    int r;
};

template <typename T>
T Circle<T>::area() const {
    return 0;
}

int scaled(int value) {
    int local = value;
    return local;
}

using Pair = int;

}  // namespace shapes
"""
JAVA = """\
package shapes;

import java.util.List;

/** Round. */
public class Circle {
    private final int radius;

    public Circle(int radius) {
        this.radius = radius;
    }

    /** Its area. */
    @Override
    public double area() {
        double local = radius;
        return local;
    }
}

interface Sized {
    int size();
}
"""
TEXTS = {
    "python": PYTHON,
    "typescript": TYPESCRIPT,
    "rust": RUST,
    "go": GO,
    "c": C,
    "cpp": CPP,
    "java": JAVA,
}
DEFINED = {
    "python": {"UNIT", "area", "Circle"},
    "typescript": {"UNIT", "Sized", "Circle", "scaled", "twice", "Pair", "Kind"},
    "rust": {"Circle", "area", "scaled", "UNIT", "twice", "inner"},
    "go": {"Circle", "Area", "scaled", "unit", "first"},
    "c": {"UNIT", "circle", "pair_t", "kind", "area", "name_of"},
    "cpp": {"Circle", "area", "radius", "scaled", "Pair"},
    "java": {"Circle", "area", "Sized"},
}
NOT_DEFINED = {"local", "inner_value", "helper", "value", "width", "pi", "os"}


def that_defines(name: str, chunks: list[Chunk]) -> Chunk:
    return next(chunk for chunk in chunks if name in chunk.defines)


@pytest.mark.parametrize("language", TEXTS)
def test_joined_they_are_the_file(language: str) -> None:
    chunks = chunks_of(language, TEXTS[language])
    assert "".join(chunk.text for chunk in chunks) == TEXTS[language]
    assert len(chunks) > 3


@pytest.mark.parametrize("language", TEXTS)
def test_names_that_are_defined(language: str) -> None:
    found = {name for chunk in chunks_of(language, TEXTS[language]) for name in chunk.defines}
    assert found >= DEFINED[language]
    assert not found & NOT_DEFINED


COMMENTED = [
    ("python", "area", "@cached\n# of use\ndef area", "return width * helper()\n\n\n"),
    ("python", "UNIT", "# The unit of all lengths.\nUNIT", "= 1\n\n\n"),
    ("typescript", "Circle", "/** Round. */\nexport class Circle", "}\n\n"),
    ("typescript", "scaled", "export default function scaled", "}\n\n"),
    ("rust", "Circle", "/// Round.\n#[derive(Debug)]\npub struct Circle", "}\n\n"),
    ("go", "Area", "// Area is its area.\nfunc (c *Circle) Area", "}\n\n"),
    ("c", "area", "// Its area.\nint area", "}\n\n"),
    ("java", "Circle", "/** Round. */\npublic class Circle", "}\n\n"),
]


@pytest.mark.parametrize(("language", "name", "begin", "end"), COMMENTED)
def test_a_definition_is_whole_with_what_belongs_to_it(
    language: str, name: str, begin: str, end: str
) -> None:
    chunk = that_defines(name, chunks_of(language, TEXTS[language]))
    assert chunk.text.startswith(begin)
    assert chunk.text.endswith(end)


def long_python_class() -> str:
    methods = "".join(
        f"    def method_{number}(self) -> int:\n"
        f'        """{"Number " * 20}."""\n        return {number}\n\n'
        for number in range(12)
    )
    return f'class Long:\n    """Many methods."""\n\n    size = 1\n\n{methods}'


def test_a_long_class_is_its_head_and_its_methods() -> None:
    text = long_python_class()
    chunks = chunks_of("python", text)
    assert "".join(chunk.text for chunk in chunks) == text
    assert that_defines("Long", chunks).text == text[: text.index("    size")]
    method = that_defines("method_3", chunks)
    assert method.text.startswith("    def method_3(self)")
    assert method.text.endswith("return 3\n\n")
    assert method.owners == {"Long"}


@pytest.mark.parametrize(
    ("language", "opens", "closes"),
    [
        ("typescript", "export class Long {\n", "}\n"),
        ("java", "public class Long {\n", "}\n"),
        ("cpp", "class Long {\n", "};\n"),
        ("rust", "impl Long {\n", "}\n"),
    ],
)
def test_methods_of_a_long_type(language: str, opens: str, closes: str) -> None:
    heads = {
        "typescript": "  method_{}(): number {{\n",
        "java": "  int method_{}() {{\n",
        "cpp": "  int method_{}() {{\n",
        "rust": "  fn method_{}() {{\n",
    }
    body = "    // a comment of some length, to make it long enough\n" * 4
    methods = "".join(heads[language].format(n) + body + "  }\n\n" for n in range(9))
    chunks = chunks_of(language, opens + methods + closes)
    assert "".join(chunk.text for chunk in chunks) == opens + methods + closes
    method = that_defines("method_4", chunks)
    assert method.text == heads[language].format(4) + body + "  }\n\n"
    assert method.owners == {"Long"}


def test_a_method_outside_of_its_type_belongs_to_it() -> None:
    go = that_defines("Area", chunks_of("go", GO))
    assert "Circle" in go.owners
    cpp = chunks_of("cpp", "int Circle::area() {\n    return 0;\n}\n")
    assert that_defines("area", cpp).owners == {"Circle"}


def test_pieces_of_a_long_function_belong_to_it() -> None:
    body = "".join(f"    value_{number} = compute({number})\n" for number in range(90))
    chunks = chunks_of("python", f"def long():\n{body}")
    assert "long" in chunks[0].defines
    assert all(chunk.owners == {"long"} for chunk in chunks[1:])
    assert all(len(chunk.text) <= MAX_CHUNK for chunk in chunks)


def test_other_languages_by_blank_lines_and_indentation() -> None:
    text = "def one\n  a\n\n  b\nend\n\n\ndef two\n  c\nend\n"
    chunks = [chunk.text for chunk in chunks_of("ruby", text)]
    assert chunks == ["def one\n  a\n\n  b\nend\n\n\n", "def two\n  c\nend\n"]


def test_broken_code_has_chunks() -> None:
    text = "def area(width:\n    return 1\n\n\nclass Circle:\n    x = = 1\n\n\ndef scaled(value):\n    pass\n"
    chunks = chunks_of("python", text)
    assert "".join(chunk.text for chunk in chunks) == text
    assert that_defines("scaled", chunks).text == "def scaled(value):\n    pass\n"


def test_the_definition_around_a_line() -> None:
    first, last = enclosing("python", PYTHON, PYTHON[: PYTHON.index("inner = 2")].count("\n"))
    lines = PYTHON.split("\n")
    assert lines[first] == "@cached"
    assert lines[last - 1] == "    return width * helper()"
    assert enclosing("python", PYTHON, 3) == (3, 3)


LINES = st.sampled_from(
    [
        *(line for text in TEXTS.values() for line in text.split("\n")),
        "",
        "x" * 2000,
        "é = '🥸'",
        "a\rb\x0cc\u2028d",
        "\ud800",
    ]
)


@settings(deadline=None)
@given(
    st.sampled_from([*sorted(LANGUAGES), "ruby", ""]),
    st.lists(LINES, max_size=60).map("\n".join),
)
def test_any_text_is_its_chunks(language: str, text: str) -> None:
    chunks = chunks_of(language, text)
    assert "".join(chunk.text for chunk in chunks) == text
    at = 0
    for chunk in chunks:
        assert chunk.line == at
        assert len(chunk.text) <= MAX_CHUNK or chunk.text.count("\n") <= 1
        at += chunk.text.count("\n")


def test_this_package() -> None:
    package = Path(__file__).parents[2] / "completion_ls"
    for file in package.rglob("*.py"):
        text = file.read_text()
        assert "".join(chunk.text for chunk in chunks_of("python", text)) == text


def test_a_file_of_thousands_of_definitions() -> None:
    # Where each chunk looks at each definition, this takes minutes.
    text = "".join(f"NAME_{number} = {number}\n" for number in range(8000))
    chunks = chunks_of("python", text)
    assert "".join(chunk.text for chunk in chunks) == text
    for chunk in chunks:
        assert chunk.defines == {line.split()[0] for line in chunk.text.splitlines()}
