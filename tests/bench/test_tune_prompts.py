"""Prompts from a user's folder."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from completion_ls.bench.tune_prompts import FEWEST_TOKENS, places, prompts, texts_of
from completion_ls.config.settings import Settings
from completion_ls.context.permitted import BadPattern
from support.tiny_model import write_tiny_model

CODE = "".join(
    f"def function_{number}(value):\n    total = value + {number}\n    return total\n\n\n"
    for number in range(20)
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    (project / "inner").mkdir(parents=True)
    (project / "a.py").write_text(CODE)
    (project / "inner" / "b.rs").write_text(CODE.replace("def", "fn"))
    return project


def read(folder: Path, *exclude: str) -> list[str]:
    return sorted(texts_of(folder, exclude, random.Random(0)))


def test_files_that_may_not_be_read_are_not(folder: Path) -> None:
    before = read(folder)
    assert len(before) == 2
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / ".gitignore").write_text("made/\n*.gen.py\n")
    (folder / "made").mkdir()
    for name in ("made/c.py", "d.gen.py", "secrets.py", ".env.py", "readme.md", "data.json"):
        (folder / name).write_text(CODE + f"# {name}\n")
    (folder / "short.py").write_text("a = 1\n")
    (folder / "minified.js").write_text("x" * 5000 + "\n" * 50)
    (folder / "binary.py").write_bytes(b"\0" * 5000)
    assert read(folder) == before
    assert len(read(folder, "inner/")) == 1
    with pytest.raises(BadPattern):
        read(folder, "[z-a]")


def test_places_are_what_was_written_there() -> None:
    found = []
    for place in places([CODE], random.Random(0)):
        assert place.before + place.written + place.after == CODE
        assert place.written.strip() and place.before
        found.append(place)
        if len(found) == 40:
            break
    assert len({place.before for place in found}) == 40
    inside, behind = found[::2], found[1::2]
    assert all("\n" not in place.written for place in inside)
    assert all(not place.before.rpartition("\n")[2].strip() for place in behind)
    assert any("\n" in place.written for place in behind)


def test_the_same_folder_and_seed_give_the_same_prompts(folder: Path, model: Path) -> None:
    settings = Settings.model_validate({"completion": {"max_tokens": 10}})
    one, another, other = (
        prompts(folder, model, settings, count=6, most=200, seed=seed) for seed in (0, 0, 1)
    )
    assert one == another != other
    found, is_own = one
    assert is_own and len(found) == 6
    assert all(0 < len(prompt.ids) <= 200 for prompt in found)
    assert all(FEWEST_TOKENS <= prompt.tokens <= 10 for prompt in found)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    assert all("function_" in tokenizer.decode(prompt.ids) for prompt in found)


def test_a_folder_without_code_gives_prompts_from_the_package(tmp_path: Path, model: Path) -> None:
    (tmp_path / "notes.txt").write_text(CODE)
    found, is_own = prompts(tmp_path, model, Settings(), count=4, most=200)
    assert not is_own and len(found) == 4
