"""LSP as bytes, for servers that are started by the test itself."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from completion_ls.lsp.channel import frame


def message(**fields: Any) -> bytes:
    """The frame of a JSON-RPC message with these fields."""
    return frame(json.dumps({"jsonrpc": "2.0", **fields}).encode())


def heard_until(process: subprocess.Popen[bytes], id: int, sent: bytes) -> bytes:
    """Send, and read what a server says up to the block that has its answer to the request of this id,
    or to its end."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(sent)
    process.stdin.flush()
    answer, heard = f'"id": {id}'.encode(), b""
    while answer not in heard and (block := process.stdout.read1(65536)):  # type: ignore[attr-defined]
        heard += block
    return heard
