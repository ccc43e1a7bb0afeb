"""What `status` says of an engine, from the engine's own figures."""

from __future__ import annotations

from typing import Any

import pytest

from completion_ls.config.settings import DraftSettings
from completion_ls.daemon.statistics import MOST_DOCUMENTS, of_engine
from completion_ls.engines.contract import DraftSource, EngineStats, Lane, LaneJobs

LANES = {Lane.KEY: LaneJobs(2, 1), Lane.MANUAL: LaneJobs(), Lane.BACKGROUND: LaneJobs(0, 3)}
LOOKUP = DraftSource("lookup", True, "", drafts=10, proposed=40, checked=30, accepted=24)
MODEL = DraftSource("model", False, "too slow", drafts=10, proposed=60, checked=50, accepted=16)


def stats(**more: Any) -> EngineStats:
    counts = dict.fromkeys(
        (
            "passes",
            "prompt_tokens_reused",
            "prompt_tokens_computed",
            "tokens_generated",
            "jobs_active",
            "sequences_cached",
            "sequences_in_use",
            "kv_bytes",
            "kv_bytes_limit",
            "weight_bytes",
        ),
        0,
    )
    return EngineStats(**{**counts, "drafting": (), "lanes": LANES, "kv_by_document": {}, **more})


def test_jobs_by_lane() -> None:
    assert of_engine(stats(), DraftSettings())["jobs_by_lane"] == {
        "key": {"waiting": 2, "running": 1},
        "manual": {"waiting": 0, "running": 0},
        "background": {"waiting": 0, "running": 3},
    }


def test_drafts() -> None:
    figures = of_engine(stats(drafting=(LOOKUP, MODEL)), DraftSettings())
    assert (figures["draft_tokens_checked"], figures["draft_tokens_accepted"]) == (80, 40)
    assert figures["draft_tokens_accepted_share"] == 0.5
    assert figures["draft_length_mean"] == 5.0
    assert figures["drafting"] == {
        "lookup": {"on": True, "why": "", "checked": 30, "accepted": 24},
        "model": {"on": False, "why": "too slow", "checked": 50, "accepted": 16},
    }
    assert of_engine(stats(), DraftSettings())["draft_length_mean"] == 0.0


@pytest.mark.parametrize(
    ("settings", "lookup", "model"),
    [
        (DraftSettings(max_tokens=0), "draft.max_tokens is 0", "draft.max_tokens is 0"),
        (DraftSettings(lookup=False), "draft.lookup is false", "draft.model names none"),
    ],
)
def test_why_there_are_no_drafts(settings: DraftSettings, lookup: str, model: str) -> None:
    drafting = of_engine(stats(), settings)["drafting"]
    assert [drafting[name]["why"] for name in ("lookup", "model")] == [lookup, model]


def test_documents_are_named_without_their_folders_and_the_largest_first() -> None:
    by_uri = {
        "file:///home/me/secret%20work/a%20b.py": 5,
        "vscode-notebook-cell:/home/me/book.ipynb#W0sZmlsZQ": 7,
        "untitled:Untitled-1": 6,
        "file:///c:/home/x.py": 4,
        "C:\\work\\y.py": 3,
        "": 2,
        "file://[bad/z.py": 1,
        "file:///unused.py": 0,
    }
    found = of_engine(stats(kv_by_document=by_uri), DraftSettings())["kv_by_document"]
    assert [(one["document"], one["bytes"]) for one in found] == [
        ("book.ipynb", 7),
        ("Untitled-1", 6),
        ("a b.py", 5),
        ("x.py", 4),
        ("y.py", 3),
        ("", 2),
        ("z.py", 1),
    ]


def test_the_name_of_a_document_gives_a_terminal_no_orders() -> None:
    by_uri = {"file:///a%1b%5b2J%0Ab%C2%9b%E2%80%AE.py": 1}
    [found] = of_engine(stats(kv_by_document=by_uri), DraftSettings())["kv_by_document"]
    assert found["document"] == "a\ufffd[2J\ufffdb\ufffd\ufffd.py"


def test_not_every_document_is_told_of() -> None:
    by_uri = {f"file:///{number}.py": number + 1 for number in range(3 * MOST_DOCUMENTS)}
    found = of_engine(stats(kv_by_document=by_uri), DraftSettings())["kv_by_document"]
    assert len(found) == MOST_DOCUMENTS
    assert found[0]["document"] == f"{3 * MOST_DOCUMENTS - 1}.py"


def test_the_memory_of_a_card_is_told_where_there_is_one() -> None:
    assert "gpu_memory_bytes" not in of_engine(stats(), DraftSettings())
    figures = of_engine(stats(card_bytes=3, card_bytes_limit=4), DraftSettings())
    assert (figures["gpu_memory_bytes"], figures["gpu_memory_bytes_limit"]) == (3, 4)
