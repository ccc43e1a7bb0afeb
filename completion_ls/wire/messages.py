"""The messages between a front (one per editor window) and the engine daemon.

Each message is one frame (see `codec`). Fields that a peer does not know are ignored, so either
side may gain fields; PROTOCOL changes only when a message changes its meaning.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

PROTOCOL = 3
"""Version of the meaning of these messages; both sides of a connection must have the same."""


class Message(BaseModel):
    """What all messages share: strict types, unknown fields ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


# front to daemon


class Hello(Message):
    """First message of a connection. `token` is required where the transport is TCP."""

    type: Literal["hello"] = "hello"
    protocol: int
    version: str
    token: str = ""


class File(Message):
    """A text of another file, by its path in the repository; LF line ends."""

    path: str
    text: str


class Complete(Message):
    """Continue `prefix` (text before the cursor). Answered by Chunks and one Done, or one Error.

    The texts are windows of the document cut by the front; line ends are LF. `id` is chosen by the
    front and unique on its connection. `context` is text that stands before the document (notebook
    cells above). The prompt has at most `prompt_tokens`, of which `suffix_share` may be the suffix.
    `files` are other files of the folder `repository`, where this document is at `path`; the prompt
    takes those that fit its share for them. `stop_at_line` ends the job at its first line end. With
    `ahead`, what the next line will need is computed afterwards, while nobody waits.

    With `ways`, lines are asked for that have been weighed by the text below: each of at most so many
    Chunks is one, without its line end, the best first. There are none where the model reads the text
    below itself, where there is none, or where the memory was needed for more urgent work.
    """

    type: Literal["complete"] = "complete"
    id: int
    document: str
    prefix: str
    suffix: str
    context: str = ""
    repository: str = ""
    path: str = ""
    files: list[File] = []
    lane: Literal["key", "manual", "background"] = "key"
    prompt_tokens: Annotated[int, Field(ge=64)] = 2048
    suffix_share: Annotated[float, Field(ge=0, le=0.9)] = 0.25
    max_tokens: Annotated[int, Field(ge=1, le=4096)] = 64
    temperature: Annotated[float, Field(ge=0, le=5)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: int = 0
    stop_at_line: bool = False
    ahead: bool = False
    ways: Annotated[int, Field(ge=0, le=6)] = 0


class Cancel(Message):
    """Stop the job of this id; nothing more is sent for it. `complete` says that it was of use: the
    front has all the text that it can show."""

    type: Literal["cancel"] = "cancel"
    id: int
    complete: bool = False


class Promote(Message):
    """Somebody waits now for the job of this id, which was begun on the background lane."""

    type: Literal["promote"] = "promote"
    id: int


class CameIntoView(Message):
    """The user has come to this front's window: the engine serves it first."""

    type: Literal["came_into_view"] = "came_into_view"


class AnsweredWithoutPass(Message):
    """A keystroke was answered from a suggestion that was there already (for the statistics)."""

    type: Literal["answered_without_pass"] = "answered_without_pass"


class GetStatus(Message):
    """Ask for a Status."""

    type: Literal["get_status"] = "get_status"


class Ping(Message):
    """Ask for a Pong: what the engine does does not hold it up, so a daemon that lives sends it at once."""

    type: Literal["ping"] = "ping"


class Stop(Message):
    """Ask the daemon to leave; with `if_alone` only where no other front is there."""

    type: Literal["stop"] = "stop"
    if_alone: bool = False


# daemon to front


class Welcome(Message):
    """Answer to Hello."""

    type: Literal["welcome"] = "welcome"
    protocol: int
    version: str
    pid: int


class Loading(Message):
    """Sent on every connection while the model is fetched and loaded; `fraction` is 0 to 1."""

    type: Literal["loading"] = "loading"
    text: str
    fraction: float


class Ready(Message):
    """The engine is loaded and holds `max_context` tokens for prompt and output together."""

    type: Literal["ready"] = "ready"
    model: str
    max_context: int


class Reach(Message):
    """Whether the server that computes (`engine.kind` `remote`) can be reached; sent when that changes, and
    on a new connection where it cannot. `text` then says why, in a sentence for people."""

    type: Literal["reach"] = "reach"
    ok: bool
    text: str = ""


class Chunk(Message):
    """More text of a job. `reused` and `computed` count its prompt tokens. `logprobs` are the
    natural-log probabilities, under the model itself, of the tokens since the chunk before, and
    `sizes` how many characters of `text` each has added. Those that take the place of an unfinished
    word are one: its probability is that of what they spell beyond what was typed, given that."""

    type: Literal["chunk"] = "chunk"
    id: int
    text: str
    reused: int
    computed: int
    logprobs: list[float] = []
    sizes: list[int] = []


class Done(Message):
    """A job ended by itself; with `no_room` before it began, for lack of memory on the background
    lane. `generated` counts tokens; times are milliseconds since its arrival."""

    type: Literal["done"] = "done"
    id: int
    finish: Literal["stop", "length", "line", "no_room"]
    reused: int
    computed: int
    generated: int
    first_token_ms: float
    total_ms: float


class Error(Message):
    """Something failed; `id` names the job where one is concerned. `text` is a sentence for people. With
    `server` it is the server that computes which failed once: no news yet, `Reach` says if it lasts."""

    type: Literal["error"] = "error"
    id: int | None = None
    code: Literal[
        "bad_frame",
        "bad_message",
        "unknown_message",
        "protocol",
        "token",
        "load",
        "job",
        "stopping",
        "busy",
        "server",
    ]
    text: str


class Status(Message):
    """A snapshot of the daemon for people and tools; the keys of `figures` are documented in README."""

    type: Literal["status"] = "status"
    figures: dict[str, Any]


class Pong(Message):
    """Answer to Ping."""

    type: Literal["pong"] = "pong"


FrontMessage = Annotated[
    Hello
    | Complete
    | Cancel
    | Promote
    | CameIntoView
    | AnsweredWithoutPass
    | GetStatus
    | Ping
    | Stop,
    Field(discriminator="type"),
]
DaemonMessage = Annotated[
    Welcome | Loading | Ready | Reach | Chunk | Done | Error | Status | Pong,
    Field(discriminator="type"),
]
