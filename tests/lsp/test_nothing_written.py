"""What is accepted is counted by a real server, and no code is written anywhere."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as t
from pytest_lsp import make_test_lsp_client

from completion_ls.lsp import messages
from support.scripted_daemon import Script
from support.window import Window

pytestmark = pytest.mark.process

MARK = "Zyzzogeton"
AREA = f"def {MARK}(width):\n    "
SAID = f"return {MARK}_in * 2\n    # {MARK}_more\n"
URI = "file:///marked.py"


@pytest.fixture
def script(isolated: dict[str, str]) -> Iterator[Script]:
    script = Script.make(Path(isolated["COMPLETION_LS_RUNTIME_DIR"]).parent / "script")
    yield script
    subprocess.run([script.program, "daemon", "stop"], stdout=subprocess.DEVNULL, check=True)


async def session(script: Script, environment: dict[str, str], errors: Path) -> Window:
    """A user types, accepts, rejects and edits, and closes the window; told of at level debug."""
    client = make_test_lsp_client()
    window = Window(client, environment)
    line = f'exec "{script.program}" --stdio 2>>"{errors}"'
    await client.start_io("sh", "-c", line)
    options = {"server": {"log_level": "debug", "completion_items": True}}
    own = {"completionLs": {"suggestionUse": True}}
    await window.initialize(initialization_options=options, experimental=own)
    window.open(URI, AREA)
    [item] = await window.inline(URI, 1, 4)
    text = str(item.insert_text)
    assert MARK in text and item.command and item.command.arguments

    def use(action: str, characters: int | None) -> None:
        said = {"suggestion": id, "action": action, "characters": characters}
        client.protocol.notify(messages.DID_USE_SUGGESTION, said)

    [id] = item.command.arguments
    window.insert(URI, 1, 4, "return", 2)
    use("acceptWord", 6)
    window.insert(URI, 1, 10, text[6:], 3)
    use("accept", len(text) - 6)
    command = t.ExecuteCommandParams(messages.ACCEPTED, [id])
    await client.workspace_execute_command_async(command)  # counted already
    client.protocol.notify(messages.DID_USE_SUGGESTION, {"suggestion": {"x": MARK}, "action": MARK})
    window.replace(URI, (1, 4), (1, 10), f"{MARK}_edited", 4)
    params = t.CompletionParams(t.TextDocumentIdentifier(URI), t.Position(1, 4))
    await client.text_document_completion_async(params)
    found: Any = await asyncio.wrap_future(
        client.protocol.send_request(messages.ENGINE_REPORT, None)
    )
    assert found.figures.suggestions.accepted == 1
    await client.shutdown_session()
    await client.stop()
    return window


async def test_counts_and_nothing_else(
    script: Script, isolated: dict[str, str], tmp_path: Path
) -> None:
    script.say("", "    " + SAID)
    script.say("    ", SAID)
    errors = tmp_path / "errors"
    await session(script, isolated, errors)
    folder = Path(isolated["COMPLETION_LS_STATE_DIR"])
    [numbers] = json.loads((folder / "counts.json").read_text())["models"].values()
    size = numbers["characters_accepted"]
    assert (numbers["accepted"], numbers["accepted_words"]) == (1, 1)
    assert numbers["characters_judged_after_5_min"] == size > len(f"return {MARK}")
    assert numbers["characters_kept_after_5_min"] == size - len("return")
    written = [*folder.rglob("*"), *Path(isolated["COMPLETION_LS_LOG_DIR"]).rglob("*"), errors]
    assert {"counts.json", "errors"} < {file.name for file in written}
    for file in written:
        assert file.is_dir() or MARK.encode() not in file.read_bytes(), file
