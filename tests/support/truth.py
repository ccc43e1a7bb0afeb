"""What the answer to a keystroke is: that of a process which was given only the document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from completion_ls.config.settings import Settings
from completion_ls.daemon.audit import TIE
from completion_ls.decode.sampling import gumbel
from support.in_process import Daemon, Front, Ghost, Model, Output, Request
from support.pages import Page, State

CLOSERS = ")]}>\"'`"


@dataclass(frozen=True)
class Fresh:
    """The answer of a fresh process, and what its engine produced for it."""

    ghost: Ghost | None
    outputs: list[Output]


class Truth:
    """Fresh processes, and the judgement of answers by theirs. Each state is asked about once."""

    def __init__(self, model: Model, settings: Settings) -> None:
        self.model = model
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self._alone = settings.model_copy(
            update={"completion": settings.completion.model_copy(update={"ahead": False})}
        )
        self._known: dict[tuple[State, str, bool, bool], Fresh] = {}

    def fresh(
        self, state: State, page: Page, manual: bool = False, *, weighed: bool = True
    ) -> Fresh:
        """What a process answers that has just been started; by hand, with lines `weighed` or not."""
        key = state, page.eol, manual, weighed
        if key not in self._known:
            daemon = Daemon(self.model, self._alone)
            front = Front(daemon, self._alone)
            if not weighed:
                front.weigh_nothing()
            only = Page(front, state.uri, page.language, page.eol, state.before + state.after)
            try:
                only.open()
                only.move(len(state.before))
                request = only.ask(manual=manual)
                front.work(until=lambda: request.ended)
                assert request.answered
            finally:
                front.end()
            self._known[key] = Fresh(request.ghost, list(daemon.engine.outputs.values()))
        return self._known[key]

    def judge(
        self, page: Page, history: Sequence[State], manual: bool, request: Request, used: Daemon
    ) -> str:
        """Which kind of a right answer it is:

        - same: that of a fresh process
        - rest: that of a fresh process at an earlier state, from which the text was typed along.
        - kept: one of these, as it is for who asks by hand, and was shown to him before; or, for who
          asks by hand, as it is for others, and was there or on its way.
        - tie: as good as that of a fresh process, which floating-point sums decide either way.

        Raises AssertionError where it is none of these.
        """
        now, ghost = history[-1], request.ghost
        for one, two in pairwise([*request.partials, ghost]):
            assert one and two and two.text.startswith(one.text), (request.partials, ghost)
        if self.fresh(now, page, manual).ghost == ghost:
            return "same"
        earlier = {state: _typed(state, now, self._window) for state in reversed(history)}
        earlier = {state: typed for state, typed in earlier.items() if typed}
        for by_hand, weighed in dict.fromkeys([(manual, True), (True, True), (True, False)]):
            if by_hand and ghost and self.fresh(now, page, True, weighed=weighed).ghost == ghost:
                return "kept"
            for state, typed in earlier.items():
                fresh = self.fresh(state, page, by_hand, weighed=weighed)
                if fresh.ghost and ghost and _is_rest(ghost, fresh.ghost, typed):
                    return "rest" if (by_hand, weighed) == (manual, True) else "kept"
        for state in (now, *earlier):
            if any(self._is_tie(one, used) for one in self.fresh(state, page, manual).outputs):
                return "tie"
        expected = self.fresh(now, page, manual).ghost
        raise AssertionError(f"{ghost} is not {expected} behind {now.before[-60:]!r}")

    def was_seen(self, page: Page, now: State) -> bool:
        """Whether ghost text that had been given went on in what was typed up to now."""
        for state, ghost in page.given:
            typed = _typed(state, now, self._window)
            if typed and (ghost.text.startswith(typed.text) or typed.text.startswith(ghost.text)):
                return True
        return False

    @property
    def _window(self) -> int:
        return 8 * self.settings.prompt.max_tokens

    def _is_tie(self, expected: Output, used: Daemon) -> bool:
        """Whether an engine has chosen otherwise for the same job, and could as well."""
        job = expected.job
        for output in used.engine.outputs.values():
            same = (output.job.prompt, output.job.unfinished, output.job.sampling) == (
                job.prompt,
                job.unfinished,
                job.sampling,
            )
            pairs = enumerate(zip(expected.tokens, output.tokens, strict=False))
            index = next((at for at, (one, two) in pairs if one != two), None)
            if same and index is not None:
                return abs(self._weight(expected, index) - self._weight(output, index)) < TIE
        return False

    def _weight(self, output: Output, index: int) -> float:
        """On which the choice of a token was made: its log probability, at the temperature, with
        the noise. Tokens of an unfinished word were chosen together."""
        job, tokens = output.job, output.tokens
        base = job.prompt[: len(job.prompt) - (job.unfinished.tokens if job.unfinished else 0)]
        first, last = (0, output.first - 1) if index < output.first else (index, index)
        text = torch.tensor([[*base, *tokens[:last]]])
        with torch.inference_mode():
            logits = self._reference(text).logits[0, len(base) + first - 1 :].double()
        temperature = job.sampling.temperature
        logprobs = torch.log_softmax(logits / (temperature or 1), dim=-1)
        weight = sum(float(row[id]) for row, id in zip(logprobs, tokens[first:], strict=False))
        if temperature:
            noise = gumbel(job.sampling.seed, len(base) + last, np.array([tokens[last]]))
            weight += float(noise[0])
        return weight

    @cached_property
    def _reference(self) -> PreTrainedModel:
        return AutoModelForCausalLM.from_pretrained(self.model.folder).eval()


@dataclass(frozen=True)
class _Typed:
    """What was typed between two states, and closers that an editor put right of it."""

    text: str
    closers: str


def _typed(start: State, now: State, window: int) -> _Typed | None:
    """None where more has changed in sight."""
    lines = start.before.count("\n")
    offset = len("".join(now.before.splitlines(keepends=True)[:lines])) + start.column
    text, base = now.before[offset:], now.before[:offset]
    sight = window - len(text)
    if not text or base.count("\n") != lines or base[-sight:] != start.before[-sight:]:
        return None
    for count in range(5):
        closers = now.after[:count]
        if not closers.strip(CLOSERS) and now.after[:window] == (closers + start.after)[:window]:
            return _Typed(text, closers)
    return None


def _is_rest(ghost: Ghost, of: Ghost, typed: _Typed) -> bool:
    """Whether a ghost is what is left of another once a part of that has been typed."""
    if of.text != typed.text + ghost.text:
        return False
    # Closers that the rest does not bring itself stay where they are, and all others with them.
    return ghost.replaced in (of.replaced + len(typed.closers), 0 if typed.closers else -1)
