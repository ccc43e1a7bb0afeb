"""Ranking chunks, and choosing whole ones that stay."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from completion_ls.context.choice import CLEARLY, Choice, choose
from completion_ls.context.chunks import Chunk, chunks_of
from completion_ls.context.imports import imports_of
from completion_ls.context.permitted import Place
from completion_ls.context.ranking import Ranked, Source, rank
from completion_ls.context.scope import scope_of
from completion_ls.context.words import words


def source(path: str, language: str, text: str, *, imported: bool = False, age: int = 0) -> Source:
    return Source(Place(0, path), language, chunks_of(language, text), imported, age)


def ranked(text: str, *sources: Source, language: str = "python") -> list[str]:
    """The first lines of the chunks, the best first; the cursor stands at the end of the text."""
    imports = imports_of(language, text)
    scope = scope_of(language, text, text.count("\n"), imports)
    return [one.chunk.text.split("\n")[0] for one in rank(language, scope, sources)]


def test_words_of_names() -> None:
    assert words("parseHTTPBody = read_line(x1); self.été") == {
        "parse",
        "http",
        "body",
        "read",
        "line",
        "été",
    }


SHAPES = "def perimeter(width, height):\n    return 2 * (width + height)\n\n\ndef unrelated():\n    pass\n"


def test_a_definition_of_a_name_in_use_comes_first() -> None:
    overlap = source("b.py", "python", "def other(room, total, value):\n    total = room\n")
    text = "def total(room, value):\n    return perimeter("
    assert ranked(text, overlap, source("z.py", "python", SHAPES))[0] == (
        "def perimeter(width, height):"
    )


def test_an_imported_name_counts_before_it_is_used() -> None:
    text = "from shapes import perimeter\n\n\ndef total(room):\n    "
    other = source("a.py", "python", "def something(room):\n    return 1\n")
    assert ranked(text, other, source("z.py", "python", SHAPES, imported=True))[0] == (
        "def perimeter(width, height):"
    )


def test_the_same_language_comes_first() -> None:
    script = source("a.ts", "typescript", "function perimeter(width, height) { return width }\n")
    own = source("b.py", "python", "def room_total(room):\n    return room.total\n")
    text = "def total(room):\n    return perimeter("
    assert ranked(text, script, own) == [
        "def room_total(room):",
        "function perimeter(width, height) { return width }",
    ]
    # JavaScript and TypeScript are one, and so are C and C++.
    java = source("a.java", "java", "class perimeter { int width; }\n")
    text = "function total(room) {\n  return perimeter("
    assert ranked(text, java, script, language="javascriptreact")[0].startswith("function")


def test_what_the_file_defines_itself_is_not_looked_for() -> None:
    text = "def perimeter(a):\n    return a\n\n\ndef total():\n    return perimeter("
    other = source("a.py", "python", "def total_of(perimeter):\n    return perimeter\n")
    found = ranked(text, other, source("z.py", "python", SHAPES))
    assert found[0] == "def total_of(perimeter):"


def test_comments_and_imports_alone_are_no_context() -> None:
    text = "def total(room):\n    return perimeter("
    other = source(
        "a.py", "python", "# total of a room: perimeter\n\nfrom shapes import perimeter\n"
    )
    assert ranked(text, other) == []


def chunk(name: str, size: int = 20, line: int = 0) -> Chunk:
    return Chunk(line, f"def {name}(): " + "x" * size + "\n")


def entry(name: str, score: float, path: str = "a.py", size: int = 20, line: int = 0) -> Ranked:
    return Ranked(Place(0, path), chunk(name, size, line), True, score)


def names_of(choice: Choice) -> list[str]:
    return [one.chunk.text[4 : one.chunk.text.index("(")] for one in choice]


def test_the_best_that_fit_in_a_stable_order() -> None:
    ranked = [
        entry("z", 3, "b.py"),
        entry("long", 2, size=500),
        entry("y", 1, line=9),
        entry("x", 1),
    ]
    assert names_of(choose(ranked, 200, ())) == ["x", "y", "z"]
    assert names_of(choose(ranked, 60, ())) == ["z"]
    assert choose(ranked, 10, ()) == ()


def test_what_was_chosen_stays_unless_it_is_clearly_beaten() -> None:
    held = choose([entry("old", 1)], 60, ())
    slightly = [entry("new", CLEARLY - 0.1), entry("old", 1)]
    assert names_of(choose(slightly, 60, held)) == ["old"]
    assert names_of(choose(slightly, 60, ())) == ["new"]
    clearly = [entry("new", CLEARLY + 0.1), entry("old", 1)]
    assert names_of(choose(clearly, 60, held)) == ["new"]


def test_a_chunk_that_is_no_longer_there_gives_way() -> None:
    held = choose([entry("old", 9)], 60, ())
    assert names_of(choose([entry("new", 0.5)], 60, held)) == ["new"]
    assert choose([], 60, held) == held


def test_a_chunk_may_move_in_its_file() -> None:
    held = choose([entry("old", 1, line=3)], 60, ())
    assert choose([entry("old", 1, line=7)], 60, held) == held


def test_a_smaller_budget_counts() -> None:
    held = choose([entry("a", 1), entry("b", 1, line=5)], 200, ())
    assert len(held) == 2
    assert len(choose([entry("a", 1), entry("b", 1, line=5)], 60, held)) == 1


ENTRIES = st.lists(
    st.builds(
        entry,
        st.sampled_from("abcdefgh"),
        st.floats(0.5, 10),
        st.sampled_from(["a.py", "b.py", "c/d.py"]),
        st.integers(0, 200),
        st.integers(0, 50),
    ),
    max_size=12,
    unique_by=lambda one: (one.place, one.chunk.line),
)


@settings(deadline=None)
@given(ENTRIES, ENTRIES, st.integers(0, 800))
def test_whole_chunks_within_the_budget_in_order(
    before: list[Ranked], now: list[Ranked], budget: int
) -> None:
    held = choose(before, budget, ())
    choice = choose(now, budget, held)
    for one in (held, choice):
        assert sum(len(each.chunk.text) for each in one) <= budget
        order = [(each.place.folder, each.place.path, each.chunk.line) for each in one]
        assert order == sorted(set(order))
    given = {(one.place, one.chunk.text) for one in now}
    assert choice == held or {(one.place, one.chunk.text) for one in choice} <= given
    # Asked again in the same place it does not change.
    assert choose(now, budget, choice) == choice
