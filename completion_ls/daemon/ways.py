"""Ways in which the cursor's line may go on, weighed by the text below it.

A model without FIM goes on from what it has read last, whatever the document says below. But it can
say how probable that text is behind a line. So some lines are tried, and the best one has the highest

    log P(line) + SHARE · log P(the next lines of the document | line)

The lines are the most probable one, and those that part from it in one choice, the likeliest of these
choices first. The engine is asked in jobs, one after the other, that differ in their output only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from completion_ls.engines.contract import Event, Job, Other
from completion_ls.prompt.build import Prompt

WAYS = 6
"""Most lines that are weighed. On lines of HumanEval with the default model, ten are no better."""
OTHERS = 4
"""So many other choices are looked at in each place of the first line."""
SHARE = 0.5
"""What the text below counts. Chosen on lines of HumanEval with the default model."""
LINES = 4
"""So many lines of it that say something are read behind each line, ..."""
CHARACTERS = 400
"""... and at most so much of it."""

Tokens = tuple[int, ...]
Logprobs = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """A line, from the cursor's word on and without its end. Logarithms are natural."""

    tokens: Tokens
    """They take the place of an unfinished word, where the prompt ends in one."""
    logprobs: Logprobs
    typed_logprob: float
    """That of the word as it was typed; 0 where there is none."""
    below: float
    """Log probability of the text below, given the line."""

    @property
    def logprob(self) -> float:
        """That of the line, given what was typed."""
        return min(0.0, sum(self.logprobs) - self.typed_logprob)

    @property
    def weight(self) -> float:
        """By which ways are ranked."""
        return self.logprob + SHARE * self.below


@dataclass(slots=True)
class _Tried:
    """What came of a job, up to the end of the line."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    others: list[Other] = field(default_factory=list)
    typed_logprob: float = 0.0

    def parting(self) -> Iterator[tuple[float, Tokens]]:
        """Beginnings that part from it in their last choice, and their log probabilities."""
        for other in self.others:
            before, chances = self.tokens[: other.place], self.logprobs[: other.place]
            yield sum(chances) + sum(other.logprobs), (*before, *other.tokens)


Ways = Generator[Job, Event, list[Way]]
"""A search under way: it yields the job whose next event it waits for. Where that is another one than
before, the one before is of no more use."""


@dataclass(frozen=True, slots=True)
class Search:
    """What is to be weighed at one place.

    `job` makes a job of the engine from a prompt, an unfinished word and the other fields of a `Job`;
    `spell` gives the bytes of a token, `section` the tokens of a text that is complete.
    """

    prompt: Prompt
    below: Tokens
    on_blank_line: bool
    """Whether only blanks stand before the cursor in its line: line ends that come first are none."""
    most_tokens: int
    """Of a line."""
    job: Callable[..., Job]
    spell: Callable[[int], bytes]
    section: Callable[[str], Tokens]

    def ways(self) -> Ways:
        """The ways, the best one first."""
        word = self.prompt.unfinished
        first = self.job(
            self.prompt.ids, unfinished=word, max_new_tokens=self.most_tokens, others=OTHERS
        )
        tried = yield from self._try(first)
        lines = {self._text(tried.tokens): self._line(tried.tokens)}
        likeliest = sorted(tried.parting(), key=lambda one: -one[0])
        for _, beginning in islice(likeliest, WAYS - 1):
            if first.stop_token_ids.isdisjoint(beginning):
                tokens = yield from self._finish(beginning)
                lines.setdefault(self._text(tokens), self._line(tokens))
        found = []
        for line in lines.values():
            logprobs = yield from self._read((*line, *self.below))
            below = sum(logprobs[len(line) :])
            found.append(Way(line, logprobs[: len(line)], tried.typed_logprob, below))
        return sorted(found, key=lambda way: way.weight, reverse=True)

    def text(self, way: Way) -> str:
        """What a way adds to the document."""
        spelled, start = self._bytes(way.tokens)
        return spelled[start:].decode(errors="ignore").rstrip()

    def _try(self, job: Job) -> Generator[Job, Event, _Tried]:
        tried = _Tried()
        while True:
            event = yield job
            tried.tokens += event.tokens
            tried.logprobs += event.logprobs
            tried.others += event.others
            if event.typed_logprob is not None:
                tried.typed_logprob = event.typed_logprob
            if event.finish is not None or self._end(tried.tokens) is not None:
                return tried

    def _finish(self, beginning: Tokens) -> Generator[Job, Event, list[int]]:
        if self._end(beginning) is not None or len(beginning) >= self.most_tokens:
            return list(beginning)
        tried = yield from self._try(
            self.job(self.prompt.before, max_new_tokens=self.most_tokens, given=beginning)
        )
        return tried.tokens

    def _read(self, tokens: Tokens) -> Generator[Job, Event, Logprobs]:
        job = self.job(self.prompt.before, max_new_tokens=len(tokens), given=tokens)
        found: list[float] = []
        while True:
            event = yield job
            found += event.logprobs
            if event.finish is not None:
                return tuple(found)

    def _bytes(self, tokens: Sequence[int]) -> tuple[bytes, int]:
        """What tokens spell, and where in it what was not typed begins."""
        word = self.prompt.unfinished
        return b"".join(map(self.spell, tokens)), len(word.text) if word else 0

    def _end(self, tokens: Sequence[int]) -> int | None:
        """Where the line ends in what tokens spell; None where it does not."""
        text, start = self._bytes(tokens)
        if self.on_blank_line:
            start = len(text) - len(text[start:].lstrip())
        end = text.find(b"\n", start)
        return None if end < 0 else end

    def _text(self, tokens: Sequence[int]) -> bytes:
        return self._bytes(tokens)[0][: self._end(tokens)].rstrip()

    def _line(self, tokens: Sequence[int]) -> Tokens:
        """The tokens of the line without its end."""
        end = self._end(tokens)
        if end is None:
            return tuple(tokens)
        kept: list[int] = []
        for token in tokens:
            spelled = self.spell(token)
            if len(spelled) > end:
                # Some tokenizers have tokens that begin in one line and end in the next.
                rest = spelled[:end].decode(errors="ignore")
                return (*kept, *self.section(rest)) if rest else tuple(kept)
            kept.append(token)
            end -= len(spelled)
        return tuple(kept)


def text_below(suffix: str) -> str:
    """What is read behind each line: the next lines of the document that say something, from the
    line end on that stands before them; perhaps none."""
    below = suffix.partition("\n")[2][:CHARACTERS]
    end = said = 0
    while said < LINES and end < len(below):
        line, _, _ = below[end:].partition("\n")
        end += len(line) + 1
        said += bool(line.strip())
    text = below[:end].rstrip()
    return "\n" + text if text else ""
