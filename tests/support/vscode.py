"""A real VS Code: its workbench (code-server) in a headless Chromium, with our extension in it.

`Workbench` is one server with its own folders; `Window` is one window of it, and what a user does
and sees there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

from completion_ls.config import paths
from completion_ls.config.settings import Settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
EXTENSION = ROOT / "editors" / "vscode"
ARTEFACTS = ROOT / "tests" / "vscode" / "artefacts"
NAMED_EXTENSION = os.environ.get("COMPLETION_LS_EXTENSION")
"""Another one to test: a .vsix, or a folder with package.json and dist/."""
VERSIONS = ("4.139.1", "4.100.3")
"""Of code-server: VS Code 1.139, and 1.100, the oldest that is supported."""

INSTALL = "Run scripts/editors/vscode."
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SETTINGS: Mapping[str, object] = {
    "editor.autoClosingBrackets": "never",
    "editor.autoIndent": "none",
    "editor.inlineSuggest.enabled": True,
    "editor.parameterHints.enabled": False,
    "editor.quickSuggestions": {"other": "off", "comments": "off", "strings": "off"},
    "editor.suggestOnTriggerCharacters": False,
    "editor.wordBasedSuggestions": "off",
    "chat.disableAIFeatures": True,
    "extensions.autoCheckUpdates": False,
    "extensions.autoUpdate": False,
    "extensions.ignoreRecommendations": True,
    "files.autoSave": "off",  # in a browser it is on
    "files.hotExit": "off",
    "git.enabled": False,
    "telemetry.telemetryLevel": "off",
    "update.mode": "none",
    "workbench.editor.enablePreview": False,
    "workbench.startupEditor": "none",
}

KEYBINDINGS: Mapping[str, str] = {
    "editor.action.inlineSuggest.acceptNextLine": "Control+Alt+Digit1",
    "editor.action.inlineSuggest.trigger": "Control+Alt+Digit2",
    "editor.action.inlineSuggest.showNext": "Control+Alt+Digit3",
    "notifications.clearAll": "Control+Alt+Digit4",
}
"""Commands that need the focus to stay where it is; their keys as Playwright names them."""

LOOK = """() => {
  const plain = text => text.replace(/\\u00a0/g, ' ').replace(/[\\u200b-\\u200d\\ufeff]/g, '');
  const editor = document.querySelector('.monaco-editor.focused')
    || document.querySelector('.editor-instance .monaco-editor') || document;
  const texts = selector => [...editor.querySelectorAll(selector)].map(e => plain(e.textContent));
  const first = texts('.ghost-text-decoration, .ghost-text-decoration-preview').join('');
  const below = texts('.suggest-preview-text .view-line, .ghost-text .view-line');
  const cursor = editor.querySelector('.cursors-layer .cursor');
  const at = cursor && cursor.getBoundingClientRect().top;
  const line = [...editor.querySelectorAll('.view-lines .view-line')].find(e => {
    const box = e.getBoundingClientRect();
    return at !== null && box.top <= at + 2 && at + 2 < box.bottom;
  });
  return {ghost: [first, ...below].join('\\n'), line: line ? plain(line.textContent) : ''};
}"""
RECORDER = f"""(() => {{
  const look = {LOOK};
  let last = '';
  window.completionLsFrames = null;
  const frame = () => {{
    if (window.completionLsFrames) {{
      const now = look(), key = JSON.stringify(now);
      if (key !== last) {{
        window.completionLsFrames.push({{ms: performance.now(), ...now}});
        last = key;
      }}
    }} else {{ last = ''; }}
    requestAnimationFrame(frame);
  }};
  requestAnimationFrame(frame);
}})()"""

TWO_FRAMES = """async () => {
  for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame);
}"""
"""What is in the document at the call has been drawn, and noted, after the second."""
TAKE_FRAMES = f"""async () => {{
  await ({TWO_FRAMES})();
  const frames = window.completionLsFrames;
  window.completionLsFrames = null;
  return frames;
}}"""
DEFAULT_MODEL = Settings().model.name

PYTHON_MANIFEST: Mapping[str, object] = {
    "name": "python",
    "publisher": "ms-python",
    "version": "1.0.0",
    "engines": {"vscode": "^1.90.0"},
    "main": "./main.js",
    "activationEvents": [],
    "capabilities": {"untrustedWorkspaces": {"supported": True}},
}
PYTHON_CODE = """const vscode = require("vscode");
exports.activate = () => {
  let path = "python";
  const choose = resolve => setTimeout(() => { path = PROGRAM; resolve(); }, 500);
  return {
    ready: new Promise(choose),
    environments: {
      getActiveEnvironmentPath: () => ({ id: path, path }),
      resolveEnvironment: async one =>
        one.path === PROGRAM ? { executable: { uri: vscode.Uri.file(PROGRAM) } } : undefined,
    },
  };
};
"""
"""What stands for the Python extension: like that one it has an API, and has chosen an environment
when it is ready, not when it is active."""

T = TypeVar("T")


def missing(version: str) -> str:
    """Why a workbench of this version cannot run here, as a sentence; empty where it can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ModuleNotFoundError:
        return "The Python package playwright is missing; it comes with the extra `editors`."
    if not _chromium():
        return f"There is no Chromium. {INSTALL}"
    if not _code_server(version).exists():
        return f"There is no {_code_server(version)}. {INSTALL}"
    if _extension() is None:
        return f"The extension is not built: run `npm run package` in {EXTENSION}."
    return ""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser for windows. (While it is there this thread has a running event loop.)"""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=_chromium(), args=list(CHROMIUM_ARGUMENTS)
        )
        try:
            yield browser
        finally:
            browser.close()


def _chromium() -> str | None:
    return next((path for name in CHROMIUMS if (path := shutil.which(name))), None)


def _code_server(version: str) -> Path:
    return paths.cache_dir() / "editors" / f"code-server-{version}" / "code-server"


def _extension() -> Path | None:
    """The extension to test: a .vsix, or a folder with package.json and dist/."""
    if NAMED_EXTENSION:
        return Path(NAMED_EXTENSION).absolute()
    built, packed = EXTENSION / "dist" / "extension.js", EXTENSION / "dist" / "completion-ls.vsix"
    found = [file for file in (packed, built) if file.exists()]
    if not found:
        return None
    newest = max(found, key=lambda file: file.stat().st_mtime)
    return packed if newest == packed else EXTENSION


class Workbench:
    """One code-server with the extension, its own settings, and daemons of its own.

    `folder` becomes its own and should have a short name, for sockets lie in it. `workspace` is the
    folder that windows open; it is not trusted with `trust` False. Without a program the settings
    name none. `environment` goes before that of this process. With `python`, there is a Python
    extension (a stand-in) in whose active environment that is the interpreter.
    """

    def __init__(
        self,
        browser: Browser,
        version: str,
        folder: Path,
        program: Path | None,
        settings: Mapping[str, object],
        *,
        trust: bool = True,
        environment: Mapping[str, str] | None = None,
        python: Path | None = None,
    ) -> None:
        self.version = version
        self.folder = folder
        self.workspace = folder / "ws"
        self.workspace.mkdir()
        self._browser = browser
        self.windows: list[Window] = []
        self._data = folder / "data"
        (folder / "config.toml").touch()
        self._trust = trust
        self.environment = {
            **os.environ,
            **(environment or {}),
            "COMPLETION_LS_RUNTIME_DIR": str(folder / "run"),
            "COMPLETION_LS_LOG_DIR": str(folder / "log"),
            "COMPLETION_LS_STATE_DIR": str(folder / "state"),
            "COMPLETION_LS_CONFIG": str(folder / "config.toml"),
            "EXTENSIONS_GALLERY": "{}",  # nothing is looked up
        }
        self.environment.pop("COMPLETION_LS_EXTENSION", None)
        named = {"completion-ls.program": str(program)} if program else {}
        self._first_settings = {**SETTINGS, **named, **settings}
        self.reset()
        self._bind_keys()
        if python:
            self._install_python(python)
        self._install()
        self._start()

    def kill(self, processes: Sequence[int]) -> None:
        """kill -9."""
        assert processes
        for process in processes:
            os.kill(process, signal.SIGKILL)

    def close(self) -> None:
        """Close its windows and stop all of its processes."""
        for window in list(self.windows):
            window.close()
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for process in self._own_processes(lambda words: True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def window(self, file: Path | None = None) -> Window:
        """Open another window on the workspace, with a file in it."""
        context = self._browser.new_context(viewport={"width": 1100, "height": 620})
        context.set_default_timeout(15_000)
        context.add_init_script(RECORDER)
        page = context.new_page()
        query = {"folder": str(self.workspace)}
        if file:
            host = urllib.parse.urlsplit(self._url).netloc
            query["payload"] = json.dumps([["openFile", f"vscode-remote://{host}{file}"]])
        page.goto(f"{self._url}/?{urllib.parse.urlencode(query)}")
        page.wait_for_selector(".monaco-workbench .statusbar", timeout=60_000)
        self.windows.append(Window(self, page))
        return self.windows[-1]

    def file(self, name: str, content: str | bytes) -> Path:
        """Write a file of the workspace."""
        file = self.workspace / name
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    def set(self, **settings: object) -> None:
        """Change settings of the extension; two underscores stand for a dot
        (`set(completion__lines="single")`), None takes a setting away."""
        for name, value in settings.items():
            self._settings[f"completion-ls.{name.replace('__', '.')}"] = value
        self._write_settings()

    def set_others(self, settings: Mapping[str, object]) -> None:
        """Change settings of VS Code, by their whole names."""
        self._settings |= settings
        self._write_settings()

    def set_here(self, settings: Mapping[str, object]) -> None:
        """Write the workspace's own settings, by their whole names."""
        self._own_settings.parent.mkdir(exist_ok=True)
        self._own_settings.write_text(json.dumps(settings))

    def reset(self) -> None:
        """Have the settings that it began with, and none of the workspace."""
        self._settings = dict(self._first_settings)
        self._own_settings.unlink(missing_ok=True)
        self._write_settings()

    def servers(self) -> list[int]:
        """The process ids of the language servers of all windows."""
        return [process.pid for process in self._own_processes(lambda words: "--stdio" in words)]

    def daemons(self) -> list[int]:
        """The process ids of the engine daemons."""
        return [
            process.pid
            for process in self._own_processes(lambda words: {"daemon", "run"} <= set(words))
        ]

    def logs(self) -> str:
        """What code-server, the extension and the daemons have said."""
        files = [self.folder / "code-server.log", *(self.folder / "log").glob("*.log")]
        output = self._data.glob("logs/**/*completion-ls*.log")
        host = self._data.glob("logs/**/remoteexthost.log")
        found = []
        for file in [*files, *output, *host]:
            text = file.read_text(errors="replace")[-20_000:]
            found.append(f"--- {file.relative_to(self.folder)}\n{text}")
        return "\n".join(found)

    def manifest(self) -> dict[str, Any]:
        """The extension's package.json."""
        (file,) = (self._data / "extensions").glob("completion-ls.*/package.json")
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    @property
    def _own_settings(self) -> Path:
        return self.workspace / ".vscode" / "settings.json"

    def _own_processes(self, wanted: Callable[[Sequence[str]], bool]) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                # One that has ended, and is not waited for, has neither.
                environment, words = process.environ(), process.cmdline()
                config = environment.get("COMPLETION_LS_CONFIG")
                if config == self.environment["COMPLETION_LS_CONFIG"] and wanted(words):
                    found.append(process)
        return found

    def _write_settings(self) -> None:
        # What has the scope of a machine is read from the second only.
        for kind in ("User", "Machine"):
            file = self._data / kind / "settings.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            there = {name: value for name, value in self._settings.items() if value is not None}
            file.write_text(json.dumps(there, indent=1))

    def _bind_keys(self) -> None:
        bound = [
            {"key": key.replace("Control", "ctrl").replace("Digit", "").lower(), "command": command}
            for command, key in KEYBINDINGS.items()
        ]
        (self._data / "User" / "keybindings.json").write_text(json.dumps(bound))

    def _install(self) -> None:
        extension = _extension()
        assert extension is not None
        installed = self._data / "extensions"
        installed.mkdir(exist_ok=True)
        if extension.is_file():
            words = [*self._words(), "--install-extension", str(extension)]
            result = subprocess.run(
                words, env=self.environment, capture_output=True, text=True, timeout=60, check=False
            )
            assert result.returncode == 0, result.stdout + result.stderr
            return
        manifest = json.loads((extension / "package.json").read_text())
        name = "{publisher}.{name}-{version}".format(**manifest)
        for part in ("package.json", "dist"):
            copy = shutil.copytree if (extension / part).is_dir() else shutil.copy
            (installed / name).mkdir(exist_ok=True)
            copy(extension / part, installed / name / part)

    def _install_python(self, python: Path) -> None:
        # Before ours: whatever is there when the first one is installed by VS Code counts.
        folder = self._data / "extensions" / "ms-python.python-1.0.0"
        folder.mkdir(parents=True)
        (folder / "package.json").write_text(json.dumps(PYTHON_MANIFEST))
        (folder / "main.js").write_text(
            f"const PROGRAM = {json.dumps(str(python))};\n{PYTHON_CODE}"
        )

    def _words(self) -> list[str]:
        return [
            str(_code_server(self.version)),
            f"--user-data-dir={self._data}",
            f"--extensions-dir={self._data / 'extensions'}",
            f"--config={self._data / 'code-server.yaml'}",
        ]

    def _start(self) -> None:
        port = _free_port()
        self._url = f"http://127.0.0.1:{port}"
        words = [
            *self._words(),
            "--auth=none",
            f"--bind-addr=127.0.0.1:{port}",
            "--disable-telemetry",
            "--disable-update-check",
            *(["--disable-workspace-trust"] if self._trust else []),
            "--disable-getting-started-override",
        ]
        with (self.folder / "code-server.log").open("w") as log:
            self._process = subprocess.Popen(
                words,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"{self._url}/healthz", timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None, self.logs()
                assert time.monotonic() < deadline, self.logs()
                time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@dataclass(frozen=True)
class Frame:
    """What was seen from some animation frame on: the ghost text, and the cursor's whole line with
    the ghost text that stands in it. `ms` is the page's clock."""

    ms: float
    ghost: str
    line: str


class Window:
    """One window: what the user does and sees."""

    def __init__(self, workbench: Workbench, page: Page) -> None:
        self.workbench = workbench
        self.page = page

    def close(self) -> None:
        """Close it."""
        self.page.context.close()
        self.workbench.windows.remove(self)

    # Doing

    def press(self, *keys: str) -> None:
        """Press keys, each with its modifiers (`Control+s`)."""
        for key in keys:
            self.page.keyboard.press(key)

    def type(self, text: str, delay_ms: float = 40) -> None:
        """Type at the cursor."""
        self.page.keyboard.type(text, delay=delay_ms)

    def open(self, file: Path) -> None:
        """Open a file, with the cursor at its start."""
        self.show(file)
        self.wait(
            lambda: self.page.query_selector(".editor-instance .monaco-editor.focused"), "focus"
        )

    def show(self, file: Path) -> None:
        """Bring a file of any kind into view."""
        self.press("Control+p")
        self._answer_quick_input(str(file), file.name)
        self.page.wait_for_selector(f".tab.active[data-resource-name='{file.name}']")

    def go_to(self, line: int, column: int) -> None:
        """Put the cursor there; both count from 1, columns in UTF-16 units."""
        self.press("Control+g")
        self._answer_quick_input(f":{line}:{column}")
        self.wait(lambda: self.page.query_selector(".monaco-editor.focused"), "focus")

    def run(self, command: str) -> None:
        """Run a command of the extension by the palette, by its id (`completion-ls.restart`)."""
        commands = self.workbench.manifest()["contributes"]["commands"]
        found = next(one for one in commands if one["command"] == command)
        title = f"{found['category']}: {found['title']}" if "category" in found else found["title"]
        self.choose(title)

    def run_here(self, command: str) -> None:
        """Run one of KEYBINDINGS, with the focus left where it is."""
        self.press(KEYBINDINGS[command])

    def choose_in_menu(self, label: str) -> None:
        """Click on the extension's item in the status bar and take what begins so."""
        self.page.click(".statusbar-item[id^='completion-ls.'] a")
        row = self.page.locator(".quick-input-list .monaco-list-row", has_text=label)
        row.click()
        self.page.wait_for_selector(".quick-input-widget", state="hidden")

    def answer(self, button: str) -> None:
        """Press a button of a message."""
        self.page.click(f".notification-list-item .monaco-button:has-text('{button}')")

    def choose(self, title: str, choice: str = "") -> None:
        """Run the command of this title by the palette, and take a choice that it offers."""
        self.press("F1")
        self._answer_quick_input(f">{title}", title, closes=not choice)
        if choice:
            self._answer_quick_input(choice, choice)

    def save(self, file: Path) -> bytes:
        """Save the file in view; the bytes on the disk."""
        self.page.evaluate(TWO_FRAMES)  # the tab may not show yet that there is something to save
        self.press("Control+s")
        tab = f".tab.active[data-resource-name='{file.name}']"
        self.page.wait_for_selector(f"{tab}:not(.dirty)", timeout=10_000)
        return file.read_bytes()

    def close_all(self) -> None:
        """Close all editors, and forget what was changed in them."""
        self.press("Escape", "Escape", "Escape")
        for left in reversed(range(self._tabs())):
            self.choose("View: Revert and Close Editor")
            self.wait(lambda left=left: self._tabs() == left, "a tab closes")

    # Seeing

    def ghost(self) -> str:
        """The ghost text now, its lines with \\n between; empty where there is none."""
        found: str = self.page.evaluate(LOOK)["ghost"]
        return found

    def line(self) -> str:
        """The cursor's line as it is drawn, with the ghost text in it."""
        found: str = self.page.evaluate(LOOK)["line"]
        return found

    def status(self) -> str:
        """What the extension's items in the status bar say, with what they say to screen readers."""
        items = self.page.query_selector_all(".statusbar-item[id^='completion-ls.']")
        said = [f"{one.text_content()} {one.get_attribute('aria-label') or ''}" for one in items]
        return " | ".join(said)

    def notifications(self) -> list[str]:
        """The messages on the screen."""
        found = self.page.query_selector_all(".notification-list-item-message")
        return [one.text_content() or "" for one in found]

    def output(self) -> str:
        """The name of the output that is in view; empty where there is none."""
        shown = self.page.query_selector_all(".part.panel .title-actions select")
        found = [
            one.evaluate("e => e.selectedOptions[0]?.text") for one in shown if one.is_visible()
        ]
        return found[0] if found else ""

    def buttons(self) -> list[str]:
        """The buttons of the messages on the screen."""
        found = self.page.query_selector_all(".notification-list-item .monaco-button")
        return [text for one in found if (text := one.text_content())]

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[Frame]]:
        """Each different view from now on, as it was drawn, looked at every animation frame. The list
        is filled when the recording ends."""
        self.page.evaluate("() => { window.completionLsFrames = [] }")
        frames: list[Frame] = []
        try:
            yield frames
        finally:
            taken = self.page.evaluate(TAKE_FRAMES)
            frames += [Frame(**one) for one in taken]

    def screenshot(self, name: str) -> Path:
        """A picture of the window, among the artefacts."""
        ARTEFACTS.mkdir(exist_ok=True)
        file = ARTEFACTS / f"{name}.png"
        self.page.screenshot(path=file)
        return file

    # Waiting

    def wait(self, condition: Callable[[], T], what: str, timeout_s: float = 15) -> T:
        """Wait until a condition holds; its value."""
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"This has not come in {timeout_s:.0f} s: {what}.")
            self.page.wait_for_timeout(20)
        return found

    def wait_for_ghost(self, text: str, timeout_s: float = 15) -> None:
        """Wait until the ghost text is this (empty: until there is none)."""
        seen = ""

        def is_there() -> bool:
            nonlocal seen
            seen = self.ghost()
            return seen == text

        try:
            self.wait(is_there, f"the ghost text {text!r}", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error} There is {seen!r}.") from None

    def wait_for_any_ghost(self, timeout_s: float = 15) -> str:
        """Wait until there is ghost text; what it is."""
        return self.wait(self.ghost, "any ghost text", timeout_s)

    def wait_for_status(self, text: str, timeout_s: float = 30) -> None:
        """Wait until the status bar says this, among other things."""
        self.wait(
            lambda: text.lower() in self.status().lower(), f"{text!r} in the status bar", timeout_s
        )

    def wait_until_ready(self, model: str = DEFAULT_MODEL, timeout_s: float = 30) -> None:
        """Wait until the status bar says that this model is there."""

        def is_ready() -> bool:
            status = self.status()
            return model in status and "loading" not in status.lower()

        self.wait(is_ready, f"{model} ready in the status bar", timeout_s)

    def wait_for_message(self, text: str, timeout_s: float = 30) -> None:
        """Wait until there is a message with this in it."""
        self.wait(
            lambda: any(text in one for one in self.notifications()),
            f"a message with {text!r}",
            timeout_s,
        )

    def pause(self, seconds: float) -> None:
        """Let the window live for a while."""
        self.page.wait_for_timeout(1000 * seconds)

    def _tabs(self) -> int:
        return len(self.page.query_selector_all(".tabs-container .tab"))

    def _answer_quick_input(self, text: str, choice: str = "", *, closes: bool = True) -> None:
        """Write into the box, and take the choice of this name, or just confirm."""
        box = self.page.wait_for_selector(".quick-input-widget input.input", state="visible")
        assert box is not None
        box.fill(text)
        if choice:
            row, name = ".quick-input-list .monaco-list-row", json.dumps(choice)[1:-1]
            self.page.click(f'{row}[aria-label="{name}"], {row}[aria-label^="{name},"]')
        else:
            self.press("Enter")
        if closes:
            self.page.wait_for_selector(".quick-input-widget", state="hidden")
