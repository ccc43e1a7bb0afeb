"""A model is data: no file of it is run, and this package has no way to do so."""

from __future__ import annotations

import ast
import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import completion_ls
from completion_ls.engines.shape import is_left_to_transformers
from completion_ls.models import hub, local
from completion_ls.models.errors import ModelError
from support.fake_hub import serving

PACKAGE = Path(completion_ls.__file__).parent

MODULES = {
    *("pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"),
    *("yaml", "code", "codeop", "imp", "pty", "jsonpickle"),
}
CALLS = {
    *("eval", "exec", "compile", "__import__", "execfile"),
    *("os.system", "os.popen", "os.execv", "os.execvp", "os.spawnv", "pty.spawn"),
    *("subprocess.getoutput", "subprocess.getstatusoutput"),
    *("torch.load", "torch.hub.load", "torch.jit.load", "torch.package.PackageImporter"),
    *("importlib.import_module", "runpy.run_path", "runpy.run_module"),
    *("asyncio.create_subprocess_shell", "numpy.load", "np.load"),
}
UNPACKING = {"extractall", "extract", "unpack_archive"}
"""An archive says itself where its files go; of ours one member is read, and written where we say."""
ALLOWED = {
    # Languages from a table of ours.
    ("syntax/languages.py", "importlib.import_module"),
    # Programs that a model wrote, in a process without rights, for `bench infill`.
    ("bench/sandboxed.py", "runpy.run_path"),
}


def trees() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        yield file.relative_to(PACKAGE).as_posix(), ast.parse(file.read_text(encoding="utf-8"))


def dotted(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def offences(name: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What a module does that none may: its name, and what it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            whence = [one.name for one in node.names]
            if isinstance(node, ast.ImportFrom):
                # `from os import system` is the call by another name.
                whence = [node.module or "", *(f"{node.module}.{one}" for one in whence)]
            for module in whence:
                if module.partition(".")[0] in MODULES or module in CALLS:
                    yield name, f"import {module}"
        if not isinstance(node, ast.Call):
            continue
        called = dotted(node.func)
        if called in CALLS:
            yield name, called
        if isinstance(node.func, ast.Attribute) and node.func.attr in UNPACKING:
            yield name, node.func.attr
        given = {one.arg: ast.unparse(one.value) for one in node.keywords if one.arg}
        if given.get("shell", "False") != "False":
            yield name, "shell"
        if given.get("allow_pickle", "False") != "False":
            yield name, "allow_pickle"
        if given.get("weights_only", "True") != "True":
            yield name, "weights_only"
        if given.get("trust_remote_code", "False") != "False":
            yield name, "trust_remote_code"
        if called.endswith(".from_pretrained"):
            if given.get("trust_remote_code") != "False":
                yield name, "from_pretrained that may trust code"
            if given.get("local_files_only") != "True":
                yield name, "from_pretrained that may fetch"
            is_model = not any(word in called for word in ("Config", "Tokenizer"))
            if is_model and given.get("use_safetensors") != "True":
                yield name, "from_pretrained that may read a pickle"


def test_the_package_runs_no_code_that_is_data() -> None:
    found = {one for name, tree in trees() for one in offences(name, tree)}
    assert found == ALLOWED


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "from os import system",
        "eval(x)",
        "torch.load(f)",
        "torch.load(f, weights_only=True)",
        "subprocess.run(x, shell=True)",
        "subprocess.run(x, shell=is_shell)",
        "np.load(f, allow_pickle=True)",
        "AutoModel.from_pretrained(f, trust_remote_code=False, local_files_only=True)",
        "AutoConfig.from_pretrained(f, local_files_only=True)",
        "AutoConfig.from_pretrained(f, trust_remote_code=True, local_files_only=True)",
        "yaml.load(f)\nimport yaml",
        "zipfile.ZipFile(f).extractall(folder)",
    ],
)
def test_such_code_would_be_seen(source: str) -> None:
    assert list(offences("x.py", ast.parse(source)))


class Trap:
    """What says, when it is unpickled, that it was."""

    def __init__(self, told: Path) -> None:
        self.told = told

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.told,)


@pytest.fixture
def told(tmp_path: Path) -> Path:
    return tmp_path / "told"


def with_pickle(folder: Path, name: str, told: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for other in ("config.json", "tokenizer.json"):
        (folder / other).write_text("{}")
    (folder / name).write_bytes(pickle.dumps(Trap(told)))
    return folder


NAMES = (
    *("pytorch_model.bin", "model.pt", "consolidated.00.pth", "last.ckpt", "x.pkl", "x.pickle"),
    "X.BIN",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_pickles_is_refused(cache: Path, tmp_path: Path, told: Path, name: str) -> None:
    folder = with_pickle(tmp_path / "model", name, told)
    with pytest.raises(ModelError, match="runs whatever code it holds") as refused:
        local.prepare(str(folder))
    assert name in str(refused.value)
    assert "safetensors" in str(refused.value)
    assert not told.exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_pickle_is_refused(cache: Path, tmp_path: Path, told: Path, name: str) -> None:
    folder = with_pickle(tmp_path / "model", name, told)
    with pytest.raises(ModelError, match="runs whatever code it holds"):
        local.prepare(str(folder / name))
    assert not told.exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_repository_of_pickles_is_refused(
    cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with serving(monkeypatch) as server:
        files = server.branches["4.0bpw"]
        server.branches["old"] = {
            name: b"x",
            **{kept: files[kept] for kept in hub.NEEDED},
        }
        with pytest.raises(ModelError, match="runs whatever code it holds") as refused:
            local.pull("someone/Tiny-exl2@old")
        assert name in str(refused.value)
        assert server.asked == []
    assert not (hub.HubModel("someone/Tiny-exl2", "old").folder).exists()


@pytest.mark.long
def test_code_beside_a_model_is_not_run(tmp_path: Path, told: Path) -> None:
    """With `auto_map` a model names classes in files of its own."""
    from completion_ls.engines.transformers_model import TransformersModel

    folder = with_pickle(tmp_path / "model", "pytorch_model.bin", told)
    (folder / "own.py").write_text(f"open({str(told)!r}, 'w')\nclass Own: pass\n")
    config = {
        "model_type": "own",
        "architectures": ["OwnForCausalLM"],
        "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"},
    }
    for kind in ("own", "gpt2"):
        known = {**config, "model_type": kind}
        (folder / "config.json").write_text(json.dumps(known))
        assert is_left_to_transformers(folder)
        with pytest.raises(ValueError):
            TransformersModel.read(folder)
    assert not told.exists()


@pytest.mark.long
def test_compiled_code_is_not_loaded_where_others_may_write(cache: Path) -> None:
    """The engine's own functions are compiled once and kept."""
    from completion_ls.engines import native

    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(PermissionError, match="written by others"):
        native._library(["true"])
    cache.chmod(0o755)
    (cache / "kernels").chmod(0o777)
    with pytest.raises(PermissionError, match="written by others"):
        native._library(["true"])
