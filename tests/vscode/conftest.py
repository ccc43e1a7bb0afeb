"""A VS Code for each test: one workbench for all tests of a version, until one of them fails."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import vscode
from support.missing import require
from support.outcome import FAILED, pytest_runtest_makereport  # noqa: F401 (a hook)
from support.program import real_program
from support.scripted_daemon import Script
from support.vscode import Window, Workbench

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@dataclass
class Desk:
    """A window, and what the engine says in it."""

    workbench: Workbench
    window: Window
    script: Script

    def open(self, name: str, content: str | bytes) -> Path:
        """Write a file and open it."""
        file = self.workbench.file(name, content)
        self.window.open(file)
        return file


class Pool:
    """Workbenches of one version: one with the script, kept as long as tests leave it in order."""

    def __init__(self, browser: Browser, version: str) -> None:
        self.version = version
        self._browser = browser
        self._folders: list[Path] = []
        self._workbenches: list[Workbench] = []
        self._desk: Desk | None = None

    def desk(self) -> Desk:
        """The common one."""
        if self._desk is None:
            folder = self._folder()
            script = Script.make(folder / "script")
            workbench = self._open(folder, script.program, {})
            self._desk = Desk(workbench, workbench.window(), script)
        self._desk.window.wait_until_ready()
        return self._desk

    def real(self, settings: Mapping[str, object]) -> Workbench:
        """One with the real engine."""
        folder = self._folder()
        return self._open(folder, real_program(folder), settings)

    def another(
        self,
        *,
        has_program: bool = True,
        settings: Mapping[str, object] | None = None,
        trust: bool = True,
        environment: Mapping[str, str] | None = None,
        has_python: bool = False,
    ) -> tuple[Workbench, Script]:
        """One of a test's own; its settings name the script's program, with `has_program`. With
        `has_python`, the program is in the active environment of a Python extension."""
        folder = self._folder()
        script = Script.make(folder / "script")
        program = script.program if has_program else None
        python = script.program.with_name("python") if has_python else None
        workbench = self._open(
            folder, program, settings or {}, trust=trust, environment=environment, python=python
        )
        return workbench, script

    def tidy(self) -> None:
        """Make the common one ready for another test."""
        assert self._desk is not None
        for window in self._desk.workbench.windows[1:]:
            window.close()
        self._desk.script.clear()
        self._desk.workbench.reset()
        self._desk.window.close_all()

    def pictures(self, name: str) -> None:
        """Of all that is open, among the artefacts."""
        for workbench in self._workbenches:
            for number, window in enumerate(workbench.windows):
                window.screenshot(f"{name}-{number}")

    def report(self, name: str) -> None:
        """Pictures and logs."""
        self.pictures(name)
        vscode.ARTEFACTS.mkdir(exist_ok=True)
        for workbench in self._workbenches:
            (vscode.ARTEFACTS / f"{name}.log").write_text(workbench.logs())

    def close(self) -> None:
        """Close all; the next test opens another."""
        self._desk = None
        while self._workbenches:
            self._workbenches.pop().close()
        while self._folders:
            shutil.rmtree(self._folders.pop(), ignore_errors=True)

    def _folder(self) -> Path:
        # A Unix socket's path must be short, and pytest's tmp_path is not.
        folder = Path(tempfile.mkdtemp(prefix="cls-"))
        self._folders.append(folder)
        return folder

    def _open(
        self,
        folder: Path,
        program: Path | None,
        settings: Mapping[str, object],
        *,
        trust: bool = True,
        environment: Mapping[str, str] | None = None,
        python: Path | None = None,
    ) -> Workbench:
        workbench = Workbench(
            self._browser,
            self.version,
            folder,
            program,
            settings,
            trust=trust,
            environment=environment,
            python=python,
        )
        self._workbenches.append(workbench)
        return workbench


@pytest.fixture(scope="module", params=vscode.VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Of code-server. Where it is not installed the test is skipped; where CI is set, it fails."""
    version: str = request.param
    require(vscode.missing(version))
    return version


@pytest.fixture(scope="module")
def pool(version: str) -> Iterator[Pool]:
    """The workbenches of a version."""
    # Not for longer: while Playwright is there, no test with a loop of its own can run.
    with vscode.chromium() as browser:
        pool = Pool(browser, version)
        try:
            yield pool
        finally:
            pool.close()


@pytest.fixture
def watched(pool: Pool, request: pytest.FixtureRequest) -> Iterator[Pool]:
    """The same; a picture of the end is kept. After a test that failed logs are kept, too, and all is
    opened anew."""
    yield pool
    if request.node.stash.get(FAILED, False):
        pool.report(_name(request))
        pool.close()
    elif "desk" not in request.fixturenames:
        pool.pictures(_name(request))


@pytest.fixture
def desk(watched: Pool, request: pytest.FixtureRequest) -> Iterator[Desk]:
    """A window without a file, and an empty script."""
    yield watched.desk()
    if not request.node.stash.get(FAILED, False):
        watched.pictures(_name(request))
        try:
            watched.tidy()
        except BaseException:
            request.node.stash[FAILED] = True
            raise


@pytest.fixture
def another(watched: Pool) -> Callable[..., tuple[Workbench, Script]]:
    """Opens a workbench of the test's own; see `Pool.another`."""
    return watched.another


@pytest.fixture
def real(watched: Pool) -> Callable[..., Workbench]:
    """Opens a workbench with the real engine; settings by name."""
    return lambda **settings: watched.real(settings)


def _name(request: pytest.FixtureRequest) -> str:
    return re.sub(r"[^\w.]+", "-", request.node.name).strip("-")
