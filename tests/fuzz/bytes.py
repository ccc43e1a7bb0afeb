"""Bytes that were damaged on their way."""

from __future__ import annotations

from hypothesis import strategies as st

Change = tuple[str, int, bytes]

_changes: st.SearchStrategy[Change] = st.tuples(
    st.sampled_from(["flip", "cut", "drop", "put", "twice", "over"]),
    st.integers(0, 2**16),
    st.binary(min_size=1, max_size=8)
    | st.sampled_from([b"\xff" * 4, b"\xff" * 8, b"\x00" * 8, b"\xff" * 7 + b"\x7f"]),
)


def damaged(wholes: st.SearchStrategy[bytes], most: int = 4) -> st.SearchStrategy[bytes]:
    """Some of these, with bits that are others, and pieces that are missing, there twice or new."""
    return st.builds(_all_changed, wholes, st.lists(_changes, min_size=1, max_size=most))


def _all_changed(data: bytes, changes: list[Change]) -> bytes:
    for change in changes:
        data = _changed(data, *change)
    return data


def _changed(data: bytes, kind: str, place: int, given: bytes) -> bytes:
    at = place % (len(data) + 1)
    head, tail = data[:at], data[at:]
    size = len(given)
    match kind:
        case "flip":
            return head + bytes(byte ^ given[0] for byte in tail[:1]) + tail[1:]
        case "cut":
            return head
        case "drop":
            return head + tail[size:]
        case "put":
            return head + given + tail
        case "twice":
            return head + tail[: 8 * size] * 2 + tail[8 * size :]
        case _:
            return head + given + tail[size:]
