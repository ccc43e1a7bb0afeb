"""Languages of files on the disk, and which of them are one for whoever looks for context."""

from __future__ import annotations

from pathlib import PurePath

_BY_ENDING = {
    ".c": "c",
    ".cc": "cpp",
    ".cjs": "javascript",
    ".cpp": "cpp",
    ".cts": "typescript",
    ".cxx": "cpp",
    ".go": "go",
    ".h": "cpp",
    ".hh": "cpp",
    ".hpp": "cpp",
    ".hxx": "cpp",
    ".java": "java",
    ".js": "javascript",
    ".jsx": "javascriptreact",
    ".mjs": "javascript",
    ".mts": "typescript",
    ".py": "python",
    ".pyi": "python",
    ".rs": "rust",
    ".ts": "typescript",
    ".tsx": "typescriptreact",
}
_FAMILY = {
    "c": "cpp",
    "javascript": "typescript",
    "javascriptreact": "typescript",
    "typescriptreact": "typescript",
}


def language_of(file: PurePath) -> str:
    """The language id of a file by its name; empty where it is not known here."""
    return _BY_ENDING.get(file.suffix.lower(), "")


def family(language: str) -> str:
    """The language under which those stand that use each other's files."""
    return _FAMILY.get(language, language)
