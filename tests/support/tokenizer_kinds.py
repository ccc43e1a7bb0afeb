"""Small tokenizers, each built as those of a family of models are."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXT = [
    "def add(a, b):\n    return a + b\n",
    "for value in values:\n        print(value, 12)\n",
    "class Value:\n    def __init__(self) -> None:\n        self.value = (a == b)\n\n\n",
    "été déjà là, 日本語 日本\n",
] * 4

GPT2 = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
SENTENCEPIECE = r"▁+(?=▁)|▁?\p{L}+|\p{N}|▁?[^\s\p{L}\p{N}▁]+|\n+|▁+"

END, BEGIN = "<|endoftext|>", "<s>"


def _trained(pre_tokenizer: Any, normalizer: Any = None, special: str = END) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = [] if special == BEGIN else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=[special], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def _byte_level(*splits: Any, normalizer: Any = None, **options: Any) -> Tokenizer:
    last = pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **options})
    tokenizer = _trained(pre_tokenizers.Sequence([*splits, last]) if splits else last, normalizer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def _gpt2() -> Tokenizer:
    tokenizer = _byte_level()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer


def _added() -> Tokenizer:
    tokenizer = _byte_level(pre_tokenizers.Digits(individual_digits=True))
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("    ")])
    return tokenizer


def _llama3() -> Tokenizer:
    tokenizer = _byte_level(_split(LLAMA3), use_regex=False)
    tokenizer.model.ignore_merges = True
    _opens_with(tokenizer, END)
    return tokenizer


def _opens_with(tokenizer: Tokenizer, token: str) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", special_tokens=[(token, tokenizer.token_to_id(token))]
    )


def _sentencepiece(newlines: bool) -> Tokenizer:
    """Pieces learned within words, as SentencePiece does, and a token for each byte."""
    trained = _trained(_split(SENTENCEPIECE), normalizers.Replace(" ", "▁"), BEGIN)
    description = json.loads(trained.to_str())["model"]
    pieces = [piece for piece in description["vocab"] if newlines or "\n" not in piece]
    merges = [tuple(m) for m in description["merges"] if newlines or "\n" not in "".join(m)]
    tokens = ["<unk>", BEGIN, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [piece for piece in pieces if piece not in tokens]
    tokenizer = Tokenizer(
        models.BPE(
            {token: id for id, token in enumerate(tokens)},
            merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.add_special_tokens(["<unk>", BEGIN])
    _opens_with(tokenizer, BEGIN)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _metaspace(scheme: str, split: bool = True) -> Tokenizer:
    tokenizer = _sentencepiece(newlines=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, split)
    return tokenizer


def _llama2() -> Tokenizer:
    tokenizer = _sentencepiece(newlines=False)
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def _gemma() -> Tokenizer:
    tokenizer = _sentencepiece(newlines=True)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": _gpt2,
    "gpt2-blank-first": lambda: _byte_level(add_prefix_space=True),
    "smollm2": lambda: _byte_level(pre_tokenizers.Digits(individual_digits=True)),
    "added": _added,
    "qwen2": lambda: _byte_level(_split(QWEN2), normalizer=normalizers.NFC(), use_regex=False),
    "llama3": _llama3,
    "unsplit": lambda: _byte_level(use_regex=False),
    "metaspace-always": lambda: _metaspace("always"),
    "metaspace-first": lambda: _metaspace("first"),
    "metaspace-never": lambda: _metaspace("never"),
    "mistral": lambda: _metaspace("first", split=False),
    "llama2": _llama2,
    "gemma": _gemma,
}


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    """The tokenizer; what looks like a special token in a text is text to it."""
    tokenizer = KINDS[kind]()
    tokenizer.encode_special_tokens = True
    return tokenizer
