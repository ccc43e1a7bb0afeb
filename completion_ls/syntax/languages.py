"""The languages that have a grammar, by the language ids of LSP."""

from __future__ import annotations

import importlib
from functools import lru_cache

from tree_sitter import Language, Parser

_GRAMMARS = {
    "c": ("tree_sitter_c", "language"),
    "cpp": ("tree_sitter_cpp", "language"),
    "go": ("tree_sitter_go", "language"),
    "java": ("tree_sitter_java", "language"),
    "javascript": ("tree_sitter_javascript", "language"),
    "javascriptreact": ("tree_sitter_javascript", "language"),
    "python": ("tree_sitter_python", "language"),
    "rust": ("tree_sitter_rust", "language"),
    "typescript": ("tree_sitter_typescript", "language_typescript"),
    "typescriptreact": ("tree_sitter_typescript", "language_tsx"),
}
"""The package of each grammar, and its function."""

LANGUAGES = frozenset(_GRAMMARS)


@lru_cache
def grammar(language: str) -> Language:
    """The grammar of a language, which must be one of LANGUAGES."""
    module, function = _GRAMMARS[language]
    return Language(getattr(importlib.import_module(module), function)())


@lru_cache
def parser(language: str) -> Parser:
    """A parser for a language, which must be one of LANGUAGES; for one thread at a time."""
    return Parser(grammar(language))
