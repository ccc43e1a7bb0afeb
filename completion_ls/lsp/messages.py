"""Our own LSP messages, beside the standard ones (ARCHITECTURE.md shows an exchange).

LSP's inline completion has no partial results, so a client that wants text as it comes sends
`completionLs/streamInlineCompletion`: the parameters of `textDocument/inlineCompletion` and a
`streamId` of its choice. Until the response, which is that of the standard request, it receives
`completionLs/partialInlineCompletion` notifications. Attribute names are those on the wire.

A client whose `experimental` capabilities have `completionLs: {engineState: true}` receives
`completionLs/didChangeEngineState` whenever the engine begins to load, gets on with it, is ready or
fails; any client may ask for the state and the figures with `completionLs/engineReport`.

A client may also say which document the user has come to look at, `completionLs/didShowDocument`:
its prompt is computed before the first key.

Every item has a command, `completionLs.accepted`, with the item's id as its argument: an editor runs
it when the item was accepted, as LSP has it, and so it is counted. A client that has `suggestionUse:
true` beside `engineState` runs no such command, but says more, `completionLs/didUseSuggestion`: also of
a part that was accepted, and of what was rejected. It says so after the change of the document.

With `wholeSettings: true` beside `engineState`, each `workspace/didChangeConfiguration` has all that
the client sets: what it leaves out is set no longer, although `initializationOptions` had it.
"""

from __future__ import annotations

from typing import Any, Literal

import attrs
from lsprotocol import types

from completion_ls.lsp.first_answer import ACCEPTED_COMMAND

STREAM_INLINE_COMPLETION = "completionLs/streamInlineCompletion"
PARTIAL_INLINE_COMPLETION = "completionLs/partialInlineCompletion"
DID_SHOW_DOCUMENT = "completionLs/didShowDocument"
DID_CHANGE_ENGINE_STATE = "completionLs/didChangeEngineState"
ENGINE_REPORT = "completionLs/engineReport"
DID_USE_SUGGESTION = "completionLs/didUseSuggestion"
ACCEPTED = ACCEPTED_COMMAND
"""A command, for `workspace/executeCommand`. No client of ours has one of this name."""

CAPABILITIES = "completionLs"
"""Our part of a client's `experimental` capabilities."""
ENGINE_STATE = "engineState"
WHOLE_SETTINGS = "wholeSettings"
SUGGESTION_USE = "suggestionUse"

Action = Literal["accept", "acceptWord", "acceptLine", "reject"]


@attrs.define
class StreamInlineCompletionParams:
    """What a streaming request carries."""

    streamId: str | int
    textDocument: types.TextDocumentIdentifier
    position: types.Position
    context: types.InlineCompletionContext


@attrs.define
class StreamInlineCompletionRequest:
    """`completionLs/streamInlineCompletion`."""

    id: int | str
    params: StreamInlineCompletionParams
    method: str = STREAM_INLINE_COMPLETION
    jsonrpc: str = "2.0"


@attrs.define
class PartialInlineCompletionParams:
    """The suggestion so far: each notification holds the whole text, and `seq` counts from 0.

    `done` is true in the last one, which holds the same item as the response.
    """

    streamId: str | int
    seq: int
    items: list[types.InlineCompletionItem]
    done: bool


@attrs.define
class DidShowDocumentParams:
    """A document came into view, with the cursor at `position` where the client knows it."""

    textDocument: types.TextDocumentIdentifier
    position: types.Position | None = None


@attrs.define
class DidShowDocumentNotification:
    """`completionLs/didShowDocument`."""

    params: DidShowDocumentParams
    method: str = DID_SHOW_DOCUMENT
    jsonrpc: str = "2.0"


@attrs.define
class EngineStateParams:
    """`text` is what is being done, the model's name, or why there is no engine."""

    state: Literal["loading", "ready", "failed"]
    text: str
    percentage: int


@attrs.define
class EngineReport:
    """The answer to `completionLs/engineReport`: `figures` are those of `completion-ls status --json`,
    none where the engine is not ready."""

    state: EngineStateParams
    figures: dict[str, Any]


@attrs.define
class EngineReportParams:
    """There are none."""


@attrs.define
class EngineReportRequest:
    """`completionLs/engineReport`."""

    id: int | str
    params: EngineReportParams | None = None
    method: str = ENGINE_REPORT
    jsonrpc: str = "2.0"


@attrs.define
class DidUseSuggestionParams:
    """`suggestion` is the argument of the item's command. `characters` (code points, a line end counts
    as one) went into the document just now; left out, the server tells it from the change."""

    suggestion: str
    action: Action
    characters: int | None = None


@attrs.define
class DidUseSuggestionNotification:
    """`completionLs/didUseSuggestion`."""

    params: DidUseSuggestionParams
    method: str = DID_USE_SUGGESTION
    jsonrpc: str = "2.0"
