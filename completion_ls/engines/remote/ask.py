"""What a server is asked for, and what comes back, in no server's dialect."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Protocol

from completion_ls.engines.contract import Finish, Sampling

GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Gap:
    """The text before and behind the cursor, for a server that makes the FIM prompt itself. None of them
    puts what was typed last at the end, so each key costs the text behind it."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `top` is how many probabilities are wanted for each token, 0 for none."""

    prompt: tuple[int, ...] | str | Gap
    most_tokens: int
    sampling: Sampling = GREEDY
    top: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    banned: frozenset[int] = frozenset()
    """Tokens that are not chosen."""
    slot: int | None = None
    session: str = ""
    """The same for all requests of a document, and it tells nothing of it."""
    fresh: bool = False
    """Reuse nothing."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an answer: one token, or several that came together.

    Where ids are known, `tokens`, `logprobs` and `tops` have an entry each, or the latter none; else
    `tokens` is empty, and `logprobs`, if there are any, belong to the server's own tokens, whose texts are
    the keys of `tops`.
    """

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Natural, under the model itself."""
    tops: tuple[Mapping[int, float] | Mapping[str, float], ...] = ()
    """The most probable tokens in each place, by id or by text, and their log probabilities."""


@dataclass(frozen=True, slots=True)
class Read:
    """How many tokens of the prompt the server has put through the model, and how many it had."""

    computed: int
    reused: int


@dataclass(frozen=True, slots=True)
class End:
    """The answer is complete."""

    finish: Finish


@dataclass(frozen=True, slots=True)
class Look:
    """The most probable next tokens, and their log probabilities."""

    top: Mapping[int, float]
    read: Read | None


News = Part | Read | End


class Server(Protocol):
    """A server in its dialect."""

    def stream(self, ask: Ask) -> AsyncGenerator[News, None]:
        """Ask. The last news is an End; closing the generator closes the connection. Raises
        ServerError, also where the answer ends before its end."""

    async def look(self, ask: Ask) -> Look:
        """Ask for one token's probabilities. Raises ServerError, also where it tells none."""

    async def check_model(self) -> None:
        """Raise ServerError where the server has another model by now, as far as one request can tell."""

    async def idle_slots(self) -> list[int]:
        """The slots in which nothing is computed now, where the server has slots."""
