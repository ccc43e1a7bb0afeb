"""A Neovim of each version for all tests, until one of them fails; the engine says what the test's
script has."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import nvim
from support.missing import require
from support.nvim import Neovim
from support.outcome import FAILED, pytest_runtest_makereport  # noqa: F401 (a hook)
from support.program import real_program
from support.scripted_daemon import Script


class Editors:
    """Neovims of one version, each with a script: a common one, and those of single tests."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._open: list[Neovim] = []
        self._common: tuple[Neovim, Script] | None = None

    def common(self) -> tuple[Neovim, Script]:
        """One that is set up as by default."""
        if self._common is None:
            self._common = self.another()
            self._common[0].setup(wait=False)
        return self._common

    def another(self) -> tuple[Neovim, Script]:
        """One that nobody has set up."""
        folder = Path(tempfile.mkdtemp(prefix="nv-"))
        script = Script.make(folder / "script")
        editor = Neovim(self.version, folder, script.program)
        self._open.append(editor)
        return editor, script

    def real(self) -> Neovim:
        """One that is set up with the real engine."""
        folder = Path(tempfile.mkdtemp(prefix="nv-"))
        editor = Neovim(self.version, folder, real_program(folder))
        self._open.append(editor)
        editor.setup(wait=False)
        return editor

    def close(self, *, all: bool) -> None:
        """Those of single tests, or all."""
        kept = None if all or self._common is None else self._common[0]
        for editor in self._open:
            if editor is not kept:
                editor.close()
                shutil.rmtree(editor.folder, ignore_errors=True)
        self._open = [kept] if kept else []
        if kept is None:
            self._common = None


@pytest.fixture(scope="module", params=nvim.VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Of Neovim. Where it is not installed the test is skipped; where CI is set, it fails."""
    version: str = request.param
    require(nvim.missing(version))
    return version


@pytest.fixture(scope="module")
def editors(version: str) -> Iterator[Editors]:
    """The Neovims of a version."""
    editors = Editors(version)
    yield editors
    editors.close(all=True)


@pytest.fixture
def watched(editors: Editors, request: pytest.FixtureRequest) -> Iterator[Editors]:
    """The same; after a test that failed all are started anew."""
    yield editors
    editors.close(all=request.node.stash.get(FAILED, False))


@pytest.fixture
def editor(watched: Editors, request: pytest.FixtureRequest) -> Iterator[Neovim]:
    """Set up as by default, without a file. In the end nothing may have gone wrong in it."""
    editor, script = watched.common()
    yield editor
    if not request.node.stash.get(FAILED, False):
        try:
            assert not editor.complaints()
            editor.reset()
            script.clear()
        except BaseException:
            request.node.stash[FAILED] = True
            raise


@pytest.fixture
def script(editor: Neovim, watched: Editors) -> Script:
    """What the engine says in `editor`."""
    return watched.common()[1]


@pytest.fixture
def another(watched: Editors) -> Callable[[], tuple[Neovim, Script]]:
    """A Neovim of the test's own, before setup, and its script."""
    return watched.another


@pytest.fixture
def real(watched: Editors) -> Neovim:
    """A Neovim of the test's own with the real engine."""
    return watched.real()
