"""Rows of the table of FIM formats, and tokenizers that have their tokens."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer

from completion_ls.prompt.formats import CHAT_FORMATS, FIM_FORMATS, FimFormat
from support.tokenizer_kinds import KINDS

ROWS = {one.name: one for one in (*FIM_FORMATS, *CHAT_FORMATS)}

_KINDS = {
    "codegemma": "gemma",
    "gemma": "gemma",
    "qwen": "qwen2",
    "qwen-chat": "qwen2",
    "chatml": "qwen2",
    "codeqwen": "metaspace-never",
    "mellum": "smollm2",
    "deepseek": "llama3",
    "codellama": "llama2",
    "codestral": "mistral",
    "seed-coder": "llama3",
    "llama3": "llama3",
}


def row(name: str) -> FimFormat:
    """The row of this name."""
    return ROWS[name]


def setting(name: str) -> str:
    """The value of `model.format` that chooses the row."""
    return name if row(name) in FIM_FORMATS else "chat"


def tokenizer_for(name: str, *, special: bool = True) -> Tokenizer:
    """A small tokenizer like that of the row's models, with all tokens of the row; not all that
    steer a model are called special in its tokenizer."""
    tokenizer = KINDS[_KINDS.get(name, "gpt2")]()
    tokenizer.add_tokens(
        [AddedToken(token, special=special, normalized=False) for token in row(name).control]
    )
    return tokenizer
