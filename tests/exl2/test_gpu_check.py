"""scripts/gpu_check.sh: what its figures come from, on the reference kernels and without a card."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import completion_ls
from completion_ls.bench.card_figures import (
    DIFFERENT,
    EQUAL,
    TIE,
    Part,
    differences,
    exit_status,
    joined,
    verdict,
)
from completion_ls.engines.contract import Event
from completion_ls.engines.exl2.checks import pieces
from completion_ls.engines.vram import VramSetting, plan_vram
from completion_ls.engines.vram_model import read_exl2
from support.exl2.sparse import DRAFTS, SHAPES, bits_of_groups, disk_bytes, fill, write_sparse
from support.exl2.tiny import load_model, load_tokenizer, make_cache

pytestmark = pytest.mark.exl2

ROOT = Path(completion_ls.__file__).parents[1]
SCRIPT = ROOT / "scripts/gpu_check.py"
KEYS = [
    "weights",
    "vram_planned",
    "vram_loaded",
    "pass_1",
    "pass_2",
    "pass_4",
    "pass_8",
    "pass_16",
    "pass_17",
    "draft_ms",
    "long_pass_1",
    "prefill_512",
    "prefill_256",
    "copied",
    "floor_ms",
    "keystroke_ms",
    "keystroke_over_floor",
    "cold_ms",
    "cold_no_waits_ms",
    "cold_stream_ms",
    "vram_used",
    "vram_reserved",
    "no_graphs_1",
    "no_graphs_4",
    "pieces",
    "plain_per_s",
    "model_per_s",
    "model_accepted",
    "lookup_per_s",
    "lookup_accepted",
    "compared_tokens",
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**os.environ, "PYTHONPATH": path, "PYTHONOPTIMIZE": ""},
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.fixture
def gpu_check(exllamav2: Any) -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_a_dry_run_has_every_row(exllamav2: Any, tmp_path: Path) -> None:
    done = run("--dry-run", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "figures.json").read_text())
    assert [row["key"] for row in found["rows"]] == KEYS
    assert all(math.isfinite(row["value"]) for row in found["rows"])
    assert found["problems"] == []
    positive = {row["key"] for row in found["rows"] if row["value"] > 0}
    # Where a pass on this machine costs so much more with guesses, nothing is guessed.
    assert positive >= {
        key for key in KEYS if not key.startswith("vram") and not key.endswith("_accepted")
    }
    assert "the times mean nothing" in done.stdout
    assert "beside that without: equal." in done.stdout


def test_drafts_that_change_the_text_are_seen(
    gpu_check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from completion_ls.engines.exl2.engine import Exl2Engine

    checked = Exl2Engine._choose

    def unchecked(self: Any, running: Any, work: Any, draft: Sequence[int]) -> Event:
        """Take what the draft model says for the truth."""
        if not draft:
            return checked(self, running, work, draft)
        self._look(work, draft)
        self._note(running, work, draft)
        return running.event(tuple(draft), (0.0,) * len(draft), running.full)  # type: ignore[no-any-return]

    options = gpu_check.Options(True, "", tmp_path)
    right = gpu_check.run_part("pair", options)
    assert (verdict(right), exit_status(right), right.problems) == (EQUAL, 0, [])
    monkeypatch.setattr(Exl2Engine, "_choose", unchecked)
    wrong = gpu_check.run_part("pair", options)
    assert wrong.problems == []
    assert (verdict(wrong), exit_status(wrong)) == (DIFFERENT, 1)


def test_a_part_that_fails_is_a_sentence_and_the_others_count(
    gpu_check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from completion_ls.models import local
    from completion_ls.models.errors import ModelError

    def nowhere(name: str) -> None:
        raise ModelError("There is no network.")

    monkeypatch.setattr(local, "prepare", nowhere)
    monkeypatch.setattr(gpu_check, "_tiny_pair", gpu_check._real_pair)
    part = gpu_check.run_part("pair", gpu_check.Options(True, "", tmp_path))
    other = Part()
    other.add("one", "one", 1.0, "ms")
    whole = joined([other, part])
    assert [row.key for row in whole.rows] == ["one"]
    assert whole.problems == ["The part 'pair' ended early: ModelError: There is no network."]
    assert (verdict(whole), exit_status(whole)) == ("", 3)


@pytest.mark.skipif(
    all(piece.found for piece in pieces()), reason="nothing that the engine needs is missing here"
)
def test_without_a_card_it_says_what_is_missing() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    for piece in pieces():
        assert (f"Missing: {piece.name}." in done.stderr) == (piece.found is None)


def test_without_a_card_the_shell_script_says_so_at_once(tmp_path: Path) -> None:
    if pieces()[0].found:
        pytest.skip("there is a card")
    done = subprocess.run(
        ["bash", str(ROOT / "scripts/gpu_check.sh")],
        env={**os.environ, "PYTHON": sys.executable, "COMPLETION_LS_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "No NVIDIA card is to be seen here" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_shape_that_fits_is_chosen(gpu_check: Any, tmp_path: Path) -> None:
    options = gpu_check.Options(False, "", tmp_path)
    gib = 2**30
    for free, name in ((24 * gib, "32b"), (20 * gib, "14b"), (8 * gib, "7b"), (4 * gib, "1.5b")):
        assert gpu_check._shape_that_fits(options, free) == name
    with pytest.raises(RuntimeError, match=r"has 1\.0 GiB free"):
        gpu_check._shape_that_fits(options, gib)


@pytest.mark.parametrize("name", ["32b", "1.5b"])
def test_a_folder_of_holes_has_the_weights_of_its_shape(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    model = read_exl2(write_sparse(tmp_path / shape.name, shape))
    assert disk_bytes(tmp_path / shape.name) < 50e6
    expected = 2 * (2 * shape.layers + 1) * shape.hidden  # norms
    sizes = [(size, 4) for size in [*shape.matrices()] * shape.layers]
    for (part, inputs, outputs), bits in [*sizes, (("lm_head", shape.hidden, shape.rows), 6)]:
        groups = bits_of_groups(inputs, bits)
        expected += sum(128 * one * outputs // 8 for one in groups)  # the numbers
        expected += len(groups) * (outputs // 2 + 2 + 4) + 8 * inputs  # scales, groups, order
        expected += 2 * outputs * (part[-6:] in ("q_proj", "k_proj", "v_proj"))  # biases
    assert model.weights == pytest.approx(expected, rel=1e-3)
    rows = dict(plan_vram(VramSetting(model, None, "q8", 16384)).rows)
    assert rows["target weights"] == model.weights
    parameters = shape.layers * sum(inputs * outputs for _, inputs, outputs in shape.matrices())
    head = shape.rows * shape.hidden * 6.05 / 8
    assert 8 * (model.weights - head) / parameters == pytest.approx(4.0, rel=0.02)


def test_every_shape_has_a_draft_of_its_vocabulary() -> None:
    for target, draft in DRAFTS.items():
        assert SHAPES[target].tokens == SHAPES[draft].tokens
        assert SHAPES[target].hidden > SHAPES[draft].hidden


@pytest.mark.parametrize("holes", [True, False])
def test_what_is_in_such_a_folder_computes(exllamav2: Any, tmp_path: Path, holes: bool) -> None:
    model = load_model(write_sparse(tmp_path / "tiny", SHAPES["tiny"], holes=holes))
    assert load_tokenizer(model).get_vocab_size() == 500
    logits = model.forward(torch.arange(40).unsqueeze(0), make_cache(model)).float()
    assert torch.isfinite(logits).all()
    spread = float(logits.std())
    assert spread == 0.0 if holes else 0.1 < spread < 10


def test_filling_leaves_no_hole(exllamav2: Any, tmp_path: Path) -> None:
    model = load_model(write_sparse(tmp_path / "tiny", SHAPES["tiny"]))
    fill(model)
    modules = model.modules_dict
    packed = [one.q_tensors["q_weight"] for one in modules.values() if getattr(one, "q_tensors", 0)]
    assert len(packed) == 7 * 2 + 1
    for tensor in [*packed, modules["model.embed_tokens"].embedding.weight]:
        assert (tensor != 0).float().mean() > 0.99


def drafted(*texts: Sequence[int]) -> Callable[[int], Sequence[int]]:
    left = iter(texts)
    return lambda start: next(left)


def test_a_text_goes_on_behind_a_tie_and_ends_at_a_difference() -> None:
    plain = [1, 2, 3, 4]
    gaps = {(1, 2): 0.0, (1, 9): TIE, (3, 4): 0.0, (3, 8): 2.0}
    assert differences(plain, drafted([1, 2, 3, 4]), lambda at, token: 1.0) == []
    found = differences(plain, drafted([1, 9, 5, 5], [3, 4]), lambda at, token: gaps[at, token])
    assert found == [TIE]
    found = differences(plain, drafted([1, 9, 5, 5], [3, 8]), lambda at, token: gaps[at, token])
    assert found == [TIE, 2.0]
    assert differences(plain, drafted([1, 2]), lambda at, token: 0.0) == [math.inf]


@pytest.mark.parametrize(
    ("gaps", "said"),
    [
        ([], EQUAL),
        ([0.0], "equal up to 1 tie"),
        ([0.0, TIE], "equal up to 2 ties"),
        ([0.0, TIE + 0.01], DIFFERENT),
        ([math.nan], DIFFERENT),
    ],
)
def test_the_verdict(gaps: list[float], said: str) -> None:
    part = Part(differences=gaps)
    assert verdict(part) == ""
    part.add("compared_tokens", "compared", 8, "")
    assert verdict(part) == said
    assert exit_status(part) == (1 if said == DIFFERENT else 0)
    assert verdict(Part.of(json.loads(json.dumps(part.as_dict())))) == said


def test_a_figure_that_is_no_number_is_a_problem() -> None:
    part = Part()
    part.add("one", "one", math.nan, "ms")
    assert part.problems == ["The figure of 'one' is nan."]
    assert exit_status(part) == 3
