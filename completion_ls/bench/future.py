"""What came next at a place of a recorded session: the truth that a suggestion is held against."""

from __future__ import annotations

from collections.abc import Sequence

from completion_ls.bench.trace import MOST_LATER, Transaction


def came_next(after: str, cursor: int, transactions: Sequence[Transaction]) -> str:
    """The text right of a place once the user had written there, by the next transactions; `after` is
    that text now.

    The place is followed until a change anywhere else: left of it (what the suggestion stood behind
    is gone), or beyond the text that was written since. Such a change counts as leaving for good, since
    what is done to the text after coming back is another decision. At most `MOST_LATER` transactions count.
    """
    written = ""
    for transaction in transactions[:MOST_LATER]:
        text, length = written + after, len(written)
        for patch in transaction:
            start, end = patch.position - cursor, patch.position - cursor + patch.deleted
            if not 0 <= start <= length:
                return written + after
            text = text[:start] + patch.inserted + text[end:]
            length = start + len(patch.inserted) + max(0, length - end)
        written, after = text[:length], text[length:]
    return written + after
