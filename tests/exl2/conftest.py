"""exllamav2 on the reference kernels, and the tiny models."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from support.exl2.install import install
from support.exl2.tiny import TinyModels, load_model, source, write_tiny_models


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """More of them only wait for each other on work as small as this."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def exllamav2() -> Any:
    """The package, on the CPU."""
    if importlib.util.find_spec("exllamav2") is None:
        pytest.skip("exllamav2 is not installed: pip install --no-deps exllamav2==0.3.2")
    if torch.cuda.is_available():
        pytest.skip("the reference kernels are for machines without a GPU")
    install()
    return importlib.import_module("exllamav2")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """A target, and a draft of its own."""
    return write_tiny_models(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def target_folder(tiny: TinyModels) -> Path:
    """The target's folder."""
    return tiny.target


@pytest.fixture(scope="session")
def target(exllamav2: Any, target_folder: Path) -> Any:
    """The target, loaded."""
    return load_model(target_folder)


@pytest.fixture(scope="session")
def pair(exllamav2: Any, tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """A target, and a draft that agrees often."""
    return write_tiny_models(tmp_path_factory.mktemp("pair"), agreeing=True)


@pytest.fixture(scope="session")
def text(pair: TinyModels) -> list[int]:
    """Tokens of code."""
    tokenizer = Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    return tokenizer.encode(source("engines/torch_cpu.py")).ids
