"""Whether two models know the same tokens. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer


def check_vocabulary(target: Path, draft: Path) -> None:
    """Raise ValueError (a sentence) unless both tokenizers know the same tokens by the same ids: a
    draft in another vocabulary is never right, and nothing but the time would show it."""
    one, other = _vocabulary(target), _vocabulary(draft)
    differing = {id for _, id in one.items() ^ other.items()}
    if not differing:
        return
    first = min(differing)
    names = [
        next((repr(token) for token, id in known.items() if id == first), "none")
        for known in (one, other)
    ]
    raise ValueError(
        f"The draft model in {draft} has another vocabulary than the model in {target}: "
        f"{len(differing)} token ids differ, the first is {first} ({' and '.join(names)}). Name a "
        "draft of the same family in draft.model, or leave it empty."
    )


def _vocabulary(folder: Path) -> dict[str, int]:
    """The ids of all tokens."""
    file = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library has no type of its own
        raise ValueError(
            f"{file} cannot be read ({error}), so nobody knows whether the draft model fits. Name a "
            "draft with its tokenizer in draft.model, or leave it empty."
        ) from error
    return dict(tokenizer.get_vocab(with_added_tokens=True))
