"""Traces: what is one, its rhythm, and that they replay to their end."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_ls.bench.trace import Patch, Trace, apply, cut, read_trace, recorded_gaps

ROOT = Path(__file__).parents[2]
OWN = ROOT / "tests" / "data" / "own_trace.json.gz"


def record_trace() -> ModuleType:
    loader = SourceFileLoader("record_trace", str(ROOT / "scripts" / "record_trace"))
    spec = importlib.util.spec_from_loader("record_trace", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


RECORD = record_trace()


def written(folder: Path, **changed: Any) -> Path:
    step = {"time": "2020-10-19T00:22:45.000Z", "patches": [[0, 0, "a"]]}
    value = {"startContent": "", "endContent": "a", "txns": [step], **changed}
    (folder / "trace.json").write_text(json.dumps(value))
    return folder / "trace.json"


def test_a_trace_is_read(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path))
    assert trace == Trace("", "a", ((Patch(0, 0, "a"),),), (1603066965.0,))
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress((tmp_path / "trace.json").read_bytes()))
    assert read_trace(packed) == trace


def test_a_trace_needs_no_times(tmp_path: Path) -> None:
    assert read_trace(written(tmp_path, txns=[{"patches": [[0, 0, "a"]]}])).times == (None,)


@pytest.mark.parametrize(
    "changed",
    [
        {"startContent": None},
        {"txns": None},
        {"txns": [[]]},
        {"txns": [{}]},
        {"txns": [{"patches": [[0, "a"]]}]},
        {"txns": [{"patches": [[0, 0, 1]]}]},
        {"txns": [{"patches": [["here", 0, "a"]]}]},
        {"txns": [{"patches": [], "time": "yesterday"}]},
        {"txns": [{"patches": [], "time": 7}]},
    ],
)
def test_what_is_no_trace_is_named(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"trace\.json is no keystroke trace"):
        read_trace(written(tmp_path, **changed))


def damaged() -> bytes:
    """A compressed trace with one wrong byte in its midst."""
    whole = bytearray(
        gzip.compress(json.dumps({"startContent": "a" * 99, "txns": []}).encode(), mtime=0)
    )
    whole[len(whole) // 2] ^= 0xFF
    return bytes(whole)


@pytest.mark.parametrize("data", [b"", b"[]", b"no json", b"\x1f\x8bcut", b"\xff\xfe", damaged()])
def test_junk_is_no_trace(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "junk").write_bytes(data)
    with pytest.raises(ValueError, match="is no keystroke trace"):
        read_trace(tmp_path / "junk")


@pytest.mark.parametrize("patch", [Patch(4, 0, "a"), Patch(2, 2, ""), Patch(-1, 0, "a")])
def test_a_patch_outside_of_the_text_is_an_error(patch: Patch) -> None:
    with pytest.raises(ValueError, match="it is damaged"):
        apply("abc", (patch,))


def test_a_stretch_begins_where_the_typing_begins() -> None:
    steps = ((Patch(0, 0, "ab\n"),), (Patch(2, 0, "c"),), (Patch(2, 1, ""),), (Patch(0, 0, "x"),))
    trace = Trace("", "xab\n", steps, (None,) * 4)
    gaps = [0.1, 0.2, 0.3, 0.4]
    # The first transaction of a trace without a start is the text that the recording began with.
    whole = cut(trace, start=0, keystrokes=99, gaps_s=gaps)
    assert (whole.text, whole.cursor, whole.transactions) == ("ab\n", 2, steps[1:])
    assert (whole.first, whole.gaps_s) == (1, (0.2, 0.3, 0.4))
    backspace = cut(trace, start=2, keystrokes=1, gaps_s=gaps)
    assert (backspace.text, backspace.cursor) == ("abc\n", 3)
    assert backspace.transactions == steps[2:3]


@pytest.mark.parametrize(("start", "keystrokes"), [(4, 10), (1, 0), (1, -1)])
def test_a_stretch_of_nothing_is_an_error(start: int, keystrokes: int) -> None:
    steps = ((Patch(0, 0, "a"),),) * 4
    with pytest.raises(ValueError, match="There is nothing to type"):
        cut(Trace("", "aaaa", steps, (None,) * 4), start=start, keystrokes=keystrokes, gaps_s=[])


@pytest.mark.parametrize(
    ("times", "gaps"),
    [
        ([], []),
        ([5.0], [0.0]),
        ([1.25, 1.5, 1.5, 1.0, 9.0], [0.25, 0.0, 0.0, 2.0, 0.0]),  # milliseconds are as they are
        ([1.0, 2.0, 2.0, 3.0], [1.0, 0.5, 0.5, 0.0]),  # two in second 2
        ([7.0, 7.0, 7.0, 7.0, 60.0], [0.25, 0.25, 0.25, 2.0, 0.0]),
    ],
)
def test_recorded_gaps(times: list[float], gaps: list[float]) -> None:
    assert recorded_gaps(times, most_s=2.0) == pytest.approx(gaps)


def test_gaps_need_times() -> None:
    with pytest.raises(ValueError, match="--gap-ms"):
        recorded_gaps([1.0, None], most_s=2.0)


def test_our_own_trace_replays_to_its_end() -> None:
    trace = read_trace(OWN)
    text = trace.start
    for transaction in trace.transactions:
        text = apply(text, transaction)
    assert text == trace.end != trace.start
    assert 400 <= len(trace.transactions) <= 800
    assert all(
        len(patch.inserted) == 1 or patch.inserted.isspace() or not patch.inserted
        for (patch,) in trace.transactions
    )


def test_our_own_trace_has_a_rhythm() -> None:
    gaps = recorded_gaps(read_trace(OWN).times, most_s=10.0)
    assert all(0 < gap < 10 for gap in gaps[:-1])


TEXTS = st.text(alphabet="ab (\n\t ", max_size=60)


@given(TEXTS, TEXTS)
def test_recorded_keystrokes_make_the_new_version(old: str, new: str) -> None:
    patches = list(RECORD.typed(old, new))
    assert RECORD.applied(old, patches) == new
    assert all(inserted == "" or deleted == 0 for _, deleted, inserted in patches)
    assert all(len(text) <= 1 or text.isspace() for _, _, text in patches)
    seconds = list(RECORD.pauses(patches, random.Random(1)))
    assert len(seconds) == len(patches)
    assert all(pause > 0 for pause in seconds)


def test_a_stretch_that_cannot_be_typed_is_refused_before_it_begins(tmp_path: Path) -> None:
    outside = {"startContent": "abc", "txns": [{"patches": [[99, 9, "z"]]}]}
    trace = read_trace(written(tmp_path, **outside))
    with pytest.raises(ValueError, match="damaged"):
        cut(trace, start=0, keystrokes=1, gaps_s=[0.0])
