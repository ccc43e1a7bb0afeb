"""How prefix and suffix are put into one prompt: a table of FIM formats, by the model's tokens.

PRE, SUF and MID stand before the prefix, the suffix and the text to be written. Sources: the model
cards of Qwen2.5-Coder ("Fill in the middle") and of bigcode/starcoder ("Fill-in-the-middle").
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class FimFormat:
    """The special tokens of a model that was trained to fill in the middle."""

    name: str
    prefix: str
    suffix: str
    middle: str
    stops: tuple[str, ...]
    """Tokens that end the middle, besides the model's own end of text."""


FIM_FORMATS = (
    FimFormat(
        "qwen",
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|endoftext|>", "<|im_end|>"),
    ),
    FimFormat(
        "starcoder",
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        ("<fim_pad>", "<file_sep>", "<|endoftext|>"),
    ),
)


def find_format(name: str, tokenizer: Tokenizer) -> FimFormat | None:
    """The format of this name, or with `auto` the first whose tokens the tokenizer has; None is plain.

    Raises ValueError where the tokenizer lacks tokens of the format that was named.
    """
    if name == "plain":
        return None
    for fim in FIM_FORMATS:
        if name not in ("auto", fim.name):
            continue
        missing = [
            token
            for token in (fim.prefix, fim.suffix, fim.middle)
            if tokenizer.token_to_id(token) is None
        ]
        if not missing:
            return fim
        if name == fim.name:
            raise ValueError(
                f"model.format is {name!r}, but the model's tokenizer has no token {missing[0]!r}. "
                "Use 'auto' or 'plain'."
            )
    return None
