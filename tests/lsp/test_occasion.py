"""When something is offered that nobody asked for."""

from __future__ import annotations

from typing import Any

import pytest

from completion_ls.config.settings import CompletionSettings, ServerSettings, Settings
from completion_ls.lsp.occasion import is_wanted
from completion_ls.lsp.situation import Situation
from support.session import at

NO_COMMENTS = Settings(completion=CompletionSettings(in_comments=False))
NO_STRINGS = Settings(completion=CompletionSettings(in_strings=False))
TEXT = "import math\n\n"


def place(text: str, **more: Any) -> Situation:
    before, after = text.split("‸")
    return at(before, after, **{"language": "python"} | more)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("na‸me", False),
        ("größ‸e = 1", False),
        ("x1‸_y", False),
        ("name‸", True),
        ("name‸.x", True),
        ("name.‸x", True),
        ("‸name", True),
        ("print(na‸)", True),
    ],
)
def test_not_in_a_word_that_goes_on(text: str, wanted: bool) -> None:
    assert is_wanted(place(TEXT + text), Settings()) is wanted
    assert is_wanted(place(TEXT + text, manual=True), Settings())


def test_what_is_on_the_screen_stays_in_a_word_and_in_a_comment() -> None:
    assert is_wanted(place(TEXT + "na‸me"), Settings(), is_on_screen=True)
    assert is_wanted(place(TEXT + "x = 1  # wh‸"), NO_COMMENTS, is_on_screen=True)
    disabled = Settings(server=ServerSettings(disabled_languages=["python"]))
    assert not is_wanted(place(TEXT + "na‸me"), disabled, is_on_screen=True)


def test_not_with_less_than_ten_characters() -> None:
    assert not is_wanted(place("  x = 123‸  \n"), Settings())
    assert is_wanted(place("x = 123456‸"), Settings())
    assert is_wanted(place("x‸", context="import math\n"), Settings())
    assert is_wanted(place("‸", manual=True), Settings())


def test_not_in_a_language_that_is_turned_off() -> None:
    settings = Settings(server=ServerSettings(disabled_languages=["python"]))
    assert not is_wanted(place(TEXT + "‸"), settings)
    assert is_wanted(place(TEXT + "‸", language="go"), settings)
    assert is_wanted(place(TEXT + "‸", manual=True), settings)


COMMENTS = [
    ("python", TEXT + "# why it‸"),
    ("python", TEXT + "x = 'a'  # it's‸"),
    ("c", "int f(int x) {\n  /* why\n   * it‸\n"),
    ("cpp", "class A {\n  // don't‸\n};"),
    ("go", "package a\n\nfunc f( {\n\t// ‸\n}"),
    ("java", "class A {\n  /** ‸\n   */\n  int x;\n}"),
    ("javascript", "const x = `a`; // `‸"),
    ("javascriptreact", "const x = <p>{/* ‸ */}</p>"),
    ("rust", "/// Gives it ‸\nfn f() {}"),
    ("typescript", "let x: number = ; /*‸"),
    ("typescriptreact", "const x = (<p>a</p>; // ‸"),
]
STRINGS = [
    ("python", TEXT + 'print("a ‸")'),
    ("python", TEXT + "print('a ‸"),
    ("python", TEXT + 'def f(:\n    """Give ‸\n    """\n    return 1'),
    ("python", TEXT + 'def f():\n    """Give.\n\n    It\'s ‸'),
    ("python", TEXT + 'x = f"a {b} ‸'),
    ("c", 'puts(("a (‸'),
    ("cpp", 'auto x = R"(a\n"b" ‸'),
    ("go", "package a\n\nvar x = `a\n‸`"),
    ("java", 'class A {\n  String x = """\n    a "b" ‸'),
    ("javascript", "const x = `a ${b} ‸"),
    ("rust", 'let x = r#"a" b ‸'),
    ("typescript", "const x: string = 'it‸"),
]
CODE = [
    ("python", TEXT + '"""What."""\n‸'),
    ("python", TEXT + "x = 'a' ‸ + 'b'"),
    ("python", TEXT + '# why\nx = ""‸'),
    ("python", TEXT + 'x = f"a {b‸}"'),
    ("c", "int x; /* a */ ‸"),
    ("go", "package a\n\nvar x = `a` + ‸"),
    ("javascript", "const x = `a ${‸}`;"),
    ("rust", "fn f<'a>(x: &'a str, ‸"),
    ("java", "class A {\n  char x = 'a' ‸"),
]


@pytest.mark.parametrize(("language", "text"), COMMENTS)
def test_comments(language: str, text: str) -> None:
    now = place(text, language=language)
    assert not is_wanted(now, NO_COMMENTS)
    assert is_wanted(now, NO_STRINGS)
    assert is_wanted(now, Settings())
    assert is_wanted(place(text, language=language, manual=True), NO_COMMENTS)


@pytest.mark.parametrize(("language", "text"), STRINGS)
def test_strings(language: str, text: str) -> None:
    now = place(text, language=language)
    assert not is_wanted(now, NO_STRINGS)
    assert is_wanted(now, NO_COMMENTS)
    assert is_wanted(now, Settings())
    assert is_wanted(place(text, language=language, manual=True), NO_STRINGS)


@pytest.mark.parametrize(("language", "text"), CODE)
def test_code_is_neither(language: str, text: str) -> None:
    settings = Settings(completion=CompletionSettings(in_comments=False, in_strings=False))
    assert is_wanted(place(text, language=language), settings)


def test_a_language_without_a_grammar_is_allowed() -> None:
    settings = Settings(completion=CompletionSettings(in_comments=False, in_strings=False))
    assert is_wanted(place("-- a comment in Lua ‸", language="lua"), settings)


def test_far_in_a_long_text() -> None:
    text = TEXT + "def f(x):\n    return x\n\n" * 2000
    assert not is_wanted(place(text + "# why ‸"), NO_COMMENTS)
    assert is_wanted(place(text + "x = ‸"), NO_COMMENTS)
