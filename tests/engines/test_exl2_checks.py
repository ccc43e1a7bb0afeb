"""What the exllamav2 engine asks of a machine, without exllamav2."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from completion_ls.config.sources import profile_names, resolve
from completion_ls.daemon.load import load
from completion_ls.engines.exl2 import checks, gpu
from completion_ls.engines.exl2.checks import Piece, check_cuda, check_paged, check_pieces, pieces
from completion_ls.models.errors import ModelError
from completion_ls.wire.endpoint import DaemonConfig

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make a package that is found before any other of its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(module: str, version: str, texts: Mapping[str, str] = MappingProxyType({})) -> None:
        monkeypatch.delitem(sys.modules, module, raising=False)
        (tmp_path / module).mkdir()
        for name, text in {"__init__": "raise AssertionError('imported')", **texts}.items():
            (tmp_path / module / f"{name}.py").write_text(text)
        about = tmp_path / f"{module}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Name: {module}\nVersion: {version}\n")

    return make


@pytest.fixture
def remove(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """As if there were no such module."""
    return lambda name: monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]


def piece(name: str) -> Piece:
    (found,) = [one for one in pieces() if one.name == name]
    return found


@pytest.mark.parametrize("version", ["2.5.7", "2.8.3", "2.7.4.post1+cu12", "3.0"])
def test_flash_attn_that_reads_pages(install: Install, version: str) -> None:
    install("flash_attn", version)
    assert piece("flash-attn").found == version


@pytest.mark.parametrize("version", ["2.5.6", "1.0.9", "2.5"])
def test_flash_attn_that_is_too_old(install: Install, version: str) -> None:
    install("flash_attn", version)
    found = piece("flash-attn")
    assert found.found is None
    assert f"Version {version} is here" in found.how_to_get and "2.5.7" in found.how_to_get


@pytest.mark.parametrize(
    ("module", "name", "advice"),
    [
        ("torch", "torch with CUDA", "Install a torch made for CUDA"),
        ("exllamav2", "exllamav2", "pip install exllamav2==0.3.2"),
        ("exllamav2_ext", "exllamav2's compiled extension", "Install a wheel"),
        ("flash_attn", "flash-attn", "Install a wheel of flash-attn"),
        ("tokenizers", "tokenizers", "pip install tokenizers"),
    ],
)
def test_pieces_that_are_missing(
    remove: Callable[[str], None], module: str, name: str, advice: str
) -> None:
    remove(module)
    assert piece(name).found is None and piece(name).how_to_get.startswith(advice)


def test_another_version_of_exllamav2(install: Install) -> None:
    install("exllamav2", "0.2.9")
    assert piece("exllamav2").found is None
    assert "Version 0.2.9 is here, and 0.3.2 is needed" in piece("exllamav2").how_to_get


def test_a_version_of_exllamav2_for_some_torch(install: Install) -> None:
    install("exllamav2", "0.3.2+cu128.torch2.8.0")
    assert piece("exllamav2").found == "0.3.2+cu128.torch2.8.0"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("cuda: Optional[str] = '12.8'", "2.9.1+cu128, CUDA 12.8"),
        ('cuda = "11.8"', "2.9.1+cu128, CUDA 11.8"),
        ("cuda: Optional[str] = None", None),
        ("hip: Optional[str] = '6.2'", None),
    ],
)
def test_torch_says_in_a_file_whether_it_has_cuda(
    install: Install, line: str, found: str | None
) -> None:
    install("torch", "2.9.1+cu128", {"version": f"__version__ = '2.9.1+cu128'\n{line}\n"})
    assert piece("torch with CUDA").found == found
    if found is None:
        assert "(2.9.1+cu128) has none" in piece("torch with CUDA").how_to_get


def test_sources_of_the_extension_are_no_extension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "exllamav2_ext", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "exllamav2_ext").mkdir()
    assert piece("exllamav2's compiled extension").found is None


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "DRIVER", "libno-such-driver.so.1")
    assert piece("NVIDIA driver and GPU").found is None


def test_all_that_is_missing_is_named_and_who_says_what_to_do() -> None:
    check_pieces([Piece("one", "1.0", "Get one.")])
    with pytest.raises(RuntimeError) as refusal:
        check_pieces(
            [Piece("one", "1", ""), Piece("two", None, "Get two."), Piece("three", None, "")]
        )
    assert "Missing: two, three; `completion-ls doctor` says how" in str(refusal.value)
    assert "init --profile cpu" in str(refusal.value)
    assert "Get two" not in str(refusal.value) and " one" not in str(refusal.value)


@pytest.mark.skipif(all(one.found for one in pieces()), reason="nothing is missing here")
@pytest.mark.parametrize("profile", profile_names())
def test_what_is_missing_is_said_before_a_download(
    profile: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("COMPLETION_LS_PROFILE", profile)
    settings, _ = resolve()
    if settings.engine.kind != "exllamav2":
        pytest.skip("it needs none of these")
    with pytest.raises(RuntimeError, match=r"Missing: .*completion-ls doctor") as error:
        load(DaemonConfig.of(settings), lambda text, fraction: None)
    assert "pull" not in str(error.value)


@pytest.mark.parametrize("key", ["model", "draft"])
def test_the_cpu_engine_refuses_exl2_before_a_download(
    key: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMPLETION_LS_CACHE_DIR", str(tmp_path))
    variable = {"model": "MODEL__NAME", "draft": "DRAFT__MODEL"}[key]
    monkeypatch.setenv(f"COMPLETION_LS_{variable}", "qwen2.5-coder-0.5b-8.0bpw")
    with pytest.raises(ModelError, match=rf"^{key}\..*quantised \(EXL2\)") as error:
        load(DaemonConfig.of(resolve()[0]), lambda text, fraction: None)
    assert "pull" not in str(error.value)


def test_the_card() -> None:
    check_cuda(True, lambda: (8, 0))
    with pytest.raises(RuntimeError, match=r"compute capability 7\.5"):
        check_cuda(True, lambda: (7, 5))
    with pytest.raises(RuntimeError, match="torch finds no usable GPU"):
        check_cuda(False, lambda: pytest.fail("there is no card to ask"))


def test_flash_attn_in_use() -> None:
    check_paged(True, False)
    with pytest.raises(RuntimeError, match="EXLLAMA_NO_FLASH_ATTN"):
        check_paged(False, False)
    with pytest.raises(RuntimeError, match="switched flash-attn off for this model"):
        check_paged(True, True)


def test_assertions_must_be_on() -> None:
    checks.check_assertions()
    code = "from completion_ls.engines.exl2.checks import check_assertions; check_assertions()"
    ended = subprocess.run(
        [sys.executable, "-O", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1 and "`python -O`" in ended.stderr


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    def write(**values: Any) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(values))
        return tmp_path

    return write


QWEN, GEMMA = ["Qwen2ForCausalLM"], ["Gemma3ForConditionalGeneration"]


@pytest.mark.parametrize(
    "values",
    [
        {"architectures": QWEN, "rope_theta": 1e6},
        {"architectures": QWEN, "text_config": {"rope_theta": 10000}},
        {"architectures": GEMMA, "text_config": {}},
        {"rope_theta": 1e6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {
            "rope_theta": 1e6,
            "rope_scaling": {"type": "yarn"},
            "rope_parameters": {"rope_type": "yarn"},
        },
    ],
)
def test_ropes_that_exllamav2_finds(config: Callable[..., Path], values: dict[str, Any]) -> None:
    checks.check_rope(config(**values))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"architectures": QWEN}, "Add its rope_theta there"),
        ({"rope_parameters": {"rope_theta": 5e5}}, 'Add "rope_theta": 500000.0 there'),
        ({"rope_theta": 1e6, "rope_parameters": {"rope_type": "yarn"}}, "its 'yarn' rope only in"),
        ({"rope_theta": "much"}, "has no rope_theta"),
        ({"text_config": {"rope_parameters": {"rope_theta": 2e4}}}, "20000.0"),
    ],
)
def test_ropes_that_exllamav2_does_not_find(
    config: Callable[..., Path], values: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        checks.check_rope(config(**values))


@pytest.mark.parametrize("where", ["top", "text_config"])
def test_contexts(config: Callable[..., Path], where: str) -> None:
    known = {"max_position_embeddings": 8000}
    folder = config(**(known if where == "top" else {"text_config": known}))
    checks.check_context(folder, 7936, is_draft=True)
    with pytest.raises(
        ValueError, match=r"8,000 positions.* Set engine.context to 7936 or less\.$"
    ):
        checks.check_context(folder, 8192, is_draft=False)
    with pytest.raises(ValueError, match=r"draft model in .*name another draft in draft\.model"):
        checks.check_context(folder, 8192, is_draft=True)
    checks.check_context(config(), 2**20, is_draft=False)  # not said, so nothing to hold against it
