"""Messages of an editor in any order, right, nearly right and wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st
from lsprotocol import types
from lsprotocol.converters import get_converter

from completion_ls.lsp import messages
from fuzz import schema
from fuzz.bytes import damaged
from fuzz.editor import GOOD_URI, Die, Heard, Pause, Release, Say, Script, Skipped, Step, hold
from fuzz.mixed import mixed
from fuzz.property import Property

OURS: dict[str, tuple[Any, bool]] = {
    messages.STREAM_INLINE_COMPLETION: (messages.StreamInlineCompletionParams, True),
    messages.ENGINE_REPORT: (messages.EngineReportParams, True),
    messages.DID_SHOW_DOCUMENT: (messages.DidShowDocumentParams, False),
    messages.DID_USE_SUGGESTION: (messages.DidUseSuggestionParams, False),
}
METHODS: dict[str, tuple[Any, bool]] = {
    method: (known[2], known[1] is not None)
    for method, known in types.METHOD_TO_TYPES.items()
    if types.message_direction(method) != "serverToClient"
} | OURS
"""Type of the parameters, and whether it is a request."""
FREQUENT = [
    *(types.TEXT_DOCUMENT_DID_OPEN, types.TEXT_DOCUMENT_DID_CHANGE, types.TEXT_DOCUMENT_DID_CLOSE),
    *(types.TEXT_DOCUMENT_INLINE_COMPLETION, types.TEXT_DOCUMENT_COMPLETION, *OURS),
    *(types.NOTEBOOK_DOCUMENT_DID_OPEN, types.NOTEBOOK_DOCUMENT_DID_CHANGE),
    *(types.NOTEBOOK_DOCUMENT_DID_CLOSE, types.WORKSPACE_DID_CHANGE_CONFIGURATION),
    *(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS, types.WORKSPACE_EXECUTE_COMMAND),
    *(types.TEXT_DOCUMENT_DID_CHANGE, types.TEXT_DOCUMENT_INLINE_COMPLETION),
    *(types.TEXT_DOCUMENT_DID_CHANGE, types.TEXT_DOCUMENT_INLINE_COMPLETION),
]
OPENED = {
    "uri": schema.PLAIN,
    "languageId": "python",
    "version": 1,
    "text": "def f(a):\n    \n\nf(1)\n",
}
converter = get_converter()


@st.composite
def named(draw: st.DrawFn, methods: Sequence[str]) -> dict[str, Any]:
    """A message of one of these methods."""
    method = draw(st.sampled_from(methods))
    kind, is_request = METHODS[method]
    message = {"jsonrpc": "2.0", "method": method}
    if is_request or draw(st.integers(0, 30)) == 0:
        message["id"] = draw(schema.ids)
    given = draw(schema.params(kind))
    if given is not None:
        message["params"] = given
    return message


@st.composite
def spoilt(draw: st.DrawFn) -> dict[str, Any]:
    """A message of which one value is another, or missing, or there is one too many."""
    message = draw(named(FREQUENT) | named(sorted(METHODS)))
    message = json.loads(json.dumps(message))
    holders = list(_holders(message))
    holder = draw(st.sampled_from(holders))
    keys = sorted(holder) if isinstance(holder, dict) else list(range(len(holder)))
    key = draw(st.sampled_from(keys)) if keys else None
    if key is None or draw(st.integers(0, 5)) == 0:
        name = draw(st.sampled_from(["error", "result", "id", "params", "x", "range", "jsonrpc"]))
        (holder if isinstance(holder, dict) else message)[name] = draw(schema.junk)
    elif draw(st.integers(0, 3)) == 0:
        del holder[key]
    else:
        holder[key] = draw(schema.junk)
    return message


def _holders(found: Any) -> Iterator[Any]:
    if isinstance(found, dict | list):
        yield found
        for inner in found.values() if isinstance(found, dict) else found:
            yield from _holders(inner)


def _request(method: str, id: int | str, given: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": given}


def _notice(method: str, given: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": given}


def _say(message: Any) -> Say:
    return Say(json.dumps(message).encode())


BOTH = {"error": {"code": 1, "message": "no"}, "result": None}
"""What makes a response: a message that asks for something is none, though it has this."""

others = st.one_of(
    named(FREQUENT).map(lambda message: message | {"error": BOTH["error"]}),
    named(FREQUENT).map(lambda message: message | BOTH),
    schema.ids.map(lambda id: _notice(types.CANCEL_REQUEST, {"id": id})),
    schema.ids.map(lambda id: _notice(types.CANCEL_REQUEST, {"id": id})),
    st.builds(
        _request, st.sampled_from(["", "x", "$/x", "textDocument/x"]), schema.ids, schema.junk
    ),
    st.builds(_notice, st.sampled_from(["", "x", "$/x", "window/x"]), schema.junk),
    schema.junk,
)
bodies = mixed((6, named(FREQUENT)), (1, named(sorted(METHODS))), (2, spoilt()), (2, others)).map(
    lambda message: json.dumps(message).encode()
)
rare = [Skipped(), Die(), _say(_request(types.SHUTDOWN, 77, None)), _say({})]
steps: st.SearchStrategy[Step] = mixed(
    (12, st.builds(Say, bodies)),
    (1, st.builds(Say, damaged(bodies))),
    (3, st.builds(Release, st.integers(1, 3))),
    (2, st.builds(Pause, st.sampled_from([0.01, 0.5, 3.0]))),
    (1, st.sampled_from(rare)),
)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """A session that mostly begins as it should."""
    begun: list[Step] = []
    if draw(st.integers(0, 9)):
        given = draw(schema.params(types.InitializeParams))
        begun.append(_say(_request(types.INITIALIZE, "init", given)))
        if draw(st.integers(0, 5)):
            begun.append(_say(_notice(types.INITIALIZED, {})))
            begun.append(_say(_notice(types.TEXT_DOCUMENT_DID_OPEN, {"textDocument": OPENED})))
    speeches = st.lists(schema.texts, min_size=1, max_size=3)
    answers = st.sampled_from(
        [None, {"result": None}, {"result": [{}]}, {"result": [{"completion": {"seed": "x"}}]},
         {"error": {"code": 1, "message": "no"}}, {"result": 3}, {"error": None}, {}]
    )  # fmt: skip
    rest = draw(st.lists(steps, min_size=3, max_size=20))
    return Script([*begun, *rest], draw(speeches), draw(answers), draw(st.booleans()))


def _good_session(begins: bool) -> list[Step]:
    begun: list[Step] = []
    if begins:
        begun.append(_say(_request(types.INITIALIZE, "init", {"capabilities": {}})))
        begun.append(_say(_notice(types.INITIALIZED, {})))
    item = {"uri": GOOD_URI, "languageId": "python", "version": 1, "text": "def f(a):\n    "}
    asked = {
        "textDocument": {"uri": GOOD_URI},
        "position": {"line": 1, "character": 4},
        "context": {"triggerKind": int(types.InlineCompletionTriggerKind.Invoked)},
    }
    begun.append(_say(_notice(types.TEXT_DOCUMENT_DID_OPEN, {"textDocument": item})))
    begun.append(_say(_request(types.TEXT_DOCUMENT_INLINE_COMPLETION, "good", asked)))
    return [*begun, Pause(100.0)]


def a_server_outlives_its_editor(script: Script) -> None:
    """Each request has one response, all that is sent is of the protocol, nothing fails inside, and a
    good session has its completion afterwards."""
    heard = hold(script, _good_session(begins=False))
    _judge(heard)
    if not heard.goes_on:
        heard = hold(Script(_good_session(begins=True)), ())
        _judge(heard)
    [result] = [one.get("result") for one in heard.sent if one.get("id") == "good"]
    assert result and result["items"], "a good session has no completion any more"


def _judge(heard: Heard) -> None:
    assert not heard.faults, "\n".join(heard.faults)
    asked = list(_requests(heard.received))
    wanted = Counter((type(id), id) for id, _ in asked)
    given = Counter(
        (type(one["id"]), one["id"])
        for one in heard.sent
        if "method" not in one and one["id"] is not None
    )
    assert given == wanted, f"responses {given} to requests {wanted}"
    methods = {(type(id), id): method for id, method in asked}
    for message in heard.sent:
        _is_lsp(message, methods, wanted)


def _requests(bodies: Sequence[bytes]) -> Iterator[tuple[int | str, str]]:
    for body in bodies:
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            continue
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            continue
        id, method = message.get("id"), message.get("method")
        if method == types.EXIT and "id" not in message:
            return
        if isinstance(method, str) and isinstance(id, int | str) and not isinstance(id, bool):
            yield id, method
        elif method is not None and not isinstance(method, str) and id is not None:
            yield id, ""


def _is_lsp(message: dict[str, Any], methods: dict[Any, str], wanted: Counter[Any]) -> None:
    assert message["jsonrpc"] == "2.0"
    if method := message.get("method"):
        assert method != types.WORKSPACE_APPLY_EDIT
        if method in types.METHOD_TO_TYPES:
            converter.structure(message, types.METHOD_TO_TYPES[method][0])
        else:
            assert method in (messages.PARTIAL_INLINE_COMPLETION, messages.DID_CHANGE_ENGINE_STATE)
        return
    assert ("error" in message) != ("result" in message), message
    if "error" in message:
        converter.structure(message, types.ResponseErrorMessage)
        assert message["error"]["code"] != types.ErrorCodes.InternalError, message
        return
    key = type(message["id"]), message["id"]
    if wanted[key] == 1 and (known := types.METHOD_TO_TYPES.get(methods[key])) and known[1]:
        converter.structure(message, known[1])


def _begun_with(given: dict[str, Any]) -> Script:
    return Script([_say(_request(types.INITIALIZE, "init", {"capabilities": {}} | given))])


def _asked_in(folder: str, options: dict[str, Any]) -> Script:
    """A completion is asked for beside another document in a folder of this name."""
    here, other = ({**OPENED, "uri": f"file://{folder}/{name}.py"} for name in "ab")
    where = {"textDocument": {"uri": here["uri"]}, "position": {"line": 1, "character": 4}}
    asked = {**where, "context": {"triggerKind": 1}}
    steps = [
        *_begun_with({"rootUri": f"file://{folder}", "initializationOptions": options}).steps,
        _say(_notice(types.INITIALIZED, {})),
        _say(_notice(types.TEXT_DOCUMENT_DID_OPEN, {"textDocument": other})),
        _say(_notice(types.TEXT_DOCUMENT_DID_OPEN, {"textDocument": here})),
        _say(_request(types.TEXT_DOCUMENT_INLINE_COMPLETION, 1, asked)),
        Pause(3.0),
    ]
    return Script(steps)


WRITTEN = (
    _begun_with({"rootUri": "http://["}),
    _begun_with({"rootPath": "//"}),
    _asked_in("/" + 300 * "x", {}),  # longer than a name of a file may be
    _asked_in("/a", {"model": {"name": 300 * "x"}}),
    Script(
        [
            _say(_request(types.INITIALIZE, "init", {"capabilities": {}})),
            _say(_request(messages.ENGINE_REPORT, 1, {}) | BOTH),
            _say(_request("x", 2, {}) | BOTH),
            _say(_notice(types.INITIALIZED, {}) | BOTH),
        ]
    ),
)

LSP = (Property("lsp", "sessions", scripts(), a_server_outlives_its_editor, WRITTEN, budget=100),)
