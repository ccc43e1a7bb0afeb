"""Whether a model's tokenizer can be read and is its own, and the draft model's is the same."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

from completion_ls.doctor.lines import Notes
from completion_ls.engines.same_vocabulary import check_vocabulary


def look(notes: Notes, role: str, folder: Path) -> Tokenizer | None:
    """The tokenizer; None where it is of no use."""
    label = f"{role}: tokenizer"
    file = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library has no type of its own
        notes.failed(label, f"{file} cannot be read ({error}); fetch the model again.")
        return None
    last = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    rows = _rows(folder)
    if rows is not None and last >= rows:
        notes.failed(
            label,
            f"{file} knows tokens up to {last:,}, and the model only {rows:,} in all: it is another "
            "model's. Fetch the model again, or copy the right tokenizer.json there.",
        )
        return None
    notes.ok(label, f"{last + 1:,} tokens")
    return tokenizer


def match(notes: Notes, folder: Path, draft: Path) -> None:
    """Compare both, token by token."""
    try:
        check_vocabulary(folder, draft)
    except ValueError as error:
        notes.failed("draft: match", f"draft.model: {error}")
    else:
        notes.ok("draft: match", "it knows the same tokens by the same ids as the model")


def _rows(folder: Path) -> int | None:
    """Tokens that the model has weights for, if config.json says so."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:  # a tokenizer alone, for a server that computes
        return None
    inner = config.get("text_config")
    found = config.get("vocab_size") or (
        inner.get("vocab_size") if isinstance(inner, dict) else None
    )
    return found if isinstance(found, int) else None
