"""Lines weighed by the text below: what is asked of an engine, and what is made of it."""

from __future__ import annotations

import math
import queue
import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count, product
from typing import Any

import pytest

from completion_ls.config.settings import Settings
from completion_ls.daemon import ways
from completion_ls.daemon.ways import Search, Way, text_below
from completion_ls.daemon.worker import Outgoing, Published, Worker
from completion_ls.engines.contract import Event, Finish, Job, Other, Unfinished
from completion_ls.engines.kv import KvCache
from completion_ls.prompt.build import Prompt
from completion_ls.wire.endpoint import DaemonConfig
from completion_ls.wire.messages import Chunk, Complete, Done, Error
from support.tiny_model import write_tiny_model

TOKENS = ["", "a", "b", "ab", "(", ")", " ", "\n", "):\n", "ba", "\n ", ":"]
END = 0
PROMPT = (1, 6)


@cache
def chances(text: tuple[int, ...]) -> tuple[float, ...]:
    """The log probability of each next token: any numbers, but the same for the same text."""
    generator = random.Random(str(text))
    logits = [generator.gauss(0, 2) for _ in TOKENS]
    total = math.log(sum(map(math.exp, logits)))
    return tuple(logit - total for logit in logits)


def logprob(before: Sequence[int], tokens: Sequence[int]) -> float:
    """That of tokens behind others."""
    text, total = tuple(before), 0.0
    for token in tokens:
        total += chances(text)[token]
        text += (token,)
    return total


def spelled(tokens: Sequence[int]) -> str:
    return "".join(TOKENS[token] for token in tokens)


def events(job: Job) -> Iterator[Event]:
    """A greedy engine that does not know how long the job will be wanted."""
    output: list[int] = []
    word = job.unfinished
    base = job.prompt[: len(job.prompt) - word.tokens] if word else job.prompt
    while True:
        row = chances((*base, *output))
        ranked = sorted(range(len(TOKENS)), key=lambda token: -row[token])
        if word and not output:  # tokens that begin with what was typed
            ranked = [one for one in ranked if TOKENS[one].startswith(word.text.decode())]
        given = len(output) < len(job.given)
        token = job.given[len(output)] if given else ranked[0]
        if token in job.stop_token_ids:
            yield Event(job.id, (), (), 0, 0, Finish.STOP, row[token])
            return
        beside = [] if given else [one for one in ranked if one != token][: job.others]
        others = tuple(Other(len(output), (one,), (row[one],)) for one in beside)
        typed = math.log(sum(math.exp(row[one]) for one in ranked)) if word and not output else None
        output.append(token)
        full = Finish.LENGTH if len(output) == job.max_new_tokens else None
        yield Event(job.id, (token,), (row[token],), 0, 0, full, None, typed, others)
        if full:
            return


def run(search: Search) -> tuple[list[Way], list[Job]]:
    """The ways that a search finds, and the jobs that it asked for."""
    under_way, jobs = search.ways(), []
    job = next(under_way)
    while True:
        jobs.append(job)
        for event in events(job):
            try:
                wanted = under_way.send(event)
            except StopIteration as end:
                return end.value, jobs
            if wanted is not job:
                job = wanted
                break
        else:
            raise AssertionError("the search waits for a job that has ended")


def search(
    word: Unfinished | None = None,
    before: tuple[int, ...] = PROMPT,
    *,
    below: str = "\nab",
    blank: bool = False,
) -> Search:
    ids = count(1)
    number = {text: token for token, text in enumerate(TOKENS)}

    def section(text: str) -> tuple[int, ...]:
        return tuple(number[character] for character in text)

    def job(prompt: tuple[int, ...], **more: Any) -> Job:
        return Job(next(ids), prompt, stop_token_ids=frozenset({END}), **more)

    prompt = Prompt((*before, *([number[word.text.decode()]] if word else [])), word)
    spell = [text.encode() for text in TOKENS].__getitem__
    return Search(prompt, section(below), blank, 12, job, spell, section)


@pytest.mark.parametrize("word", [None, Unfinished(b"a", 1)])
@pytest.mark.parametrize("start", range(1, 8))
def test_lines_are_ranked_by_their_own_chance_and_that_of_the_text_below(
    word: Unfinished | None, start: int
) -> None:
    before = (start, 6)
    wanted = search(word, before)
    found, jobs = run(wanted)
    assert 1 < len(found) <= ways.WAYS
    for way in found:
        assert sum(way.logprobs) == pytest.approx(logprob(before, way.tokens))
        below = logprob((*before, *way.tokens), wanted.below)
        assert way.below == pytest.approx(below)
        assert way.weight == pytest.approx(way.logprob + ways.SHARE * below)
        assert "\n" not in spelled(way.tokens)
    weights = [way.weight for way in found]
    assert weights == sorted(weights, reverse=True)
    texts = [wanted.text(way) for way in found]
    assert len(set(texts)) == len(texts)
    assert all(spelled(way.tokens).startswith("a") for way in found if word)
    typed = len(word.text) if word else 0
    assert texts == [spelled(way.tokens)[typed:].rstrip() for way in found]
    assert len({job.id for job in jobs}) == len(jobs)


def test_the_lines_part_from_the_likeliest_in_one_choice() -> None:
    """And go on from there as the model likes it best."""
    found, jobs = run(search())
    greedy = []
    for event in events(jobs[0]):
        greedy += event.tokens
        if "\n" in spelled(greedy):
            break
    for job in jobs[1:]:
        if len(job.given) == job.max_new_tokens:  # it is only read
            continue
        *before, other = job.given
        assert before == greedy[: len(before)] and other != greedy[len(before)]
    assert any(spelled(way.tokens) == spelled(greedy).split("\n")[0] for way in found)


def test_a_token_that_reaches_into_the_next_line_is_taken_apart() -> None:
    crossing = TOKENS.index("):\n")
    befores = product(range(1, len(TOKENS)), repeat=2)
    before = next(one for one in befores if chances(one)[crossing] == max(chances(one)))
    wanted = search(before=before)
    found, _ = run(wanted)
    tokens = (TOKENS.index(")"), TOKENS.index(":"))
    assert tokens in [way.tokens for way in found]
    assert not any("\n" in wanted.text(way) for way in found)


def test_line_ends_on_a_blank_line_are_none() -> None:
    wanted = search(blank=True)
    found, _ = run(wanted)
    assert all(wanted.text(way).strip() for way in found if END not in way.tokens)


def test_the_text_below_begins_behind_the_cursors_line() -> None:
    assert text_below(")  # rest\n    a\n\n    b\nc\nd\ne\n") == "\n    a\n\n    b\nc\nd"
    assert text_below("rest") == text_below("rest\n") == text_below("rest\n\n  \n") == ""
    assert len(text_below("\n" + "x" * 9000)) == 1 + ways.CHARACTERS


def test_blank_lines_that_do_not_end_say_nothing() -> None:
    """Only what could be read is looked at: the engine's thread does the looking."""
    assert text_below("\n" * 500 + "x") == ""
    assert text_below("\n" * 50 + "x") == "\n" * 50 + "x"


# The daemon


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Worker, Any]]:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", 512)
    sections = {"model": {"name": str(folder)}, "engine": {"threads": 1}}
    published: queue.Queue[Published] = queue.Queue()
    running = Worker(DaemonConfig.of(Settings.model_validate(sections)), published.put)
    running.start()
    yield running, published
    running.close()
    running.join()


def ask(worker: tuple[Worker, Any], id: int, suffix: str, **more: Any) -> list[Any]:
    """The messages that answer a request."""
    wanted: dict[str, Any] = {"prefix": "x = add(va", "prompt_tokens": 2048, "max_tokens": 16}
    wanted |= {"ways": 3, "lane": "manual"} | more
    request = Complete(id=id, document="a", suffix=suffix, **wanted)
    worker[0].submit("peer", request)
    return answer(worker, id)


def answer(worker: tuple[Worker, Any], id: int) -> list[Any]:
    found = []
    while True:
        match worker[1].get(timeout=60):
            case Outgoing(message=(Chunk() | Done() | Error()) as message) if message.id == id:
                found.append(message)
                if not isinstance(message, Chunk):
                    return found
            case Outgoing():
                pass
            case other:
                raise AssertionError(other)


def figures(worker: tuple[Worker, Any]) -> dict[str, Any]:
    found: queue.Queue[dict[str, Any]] = queue.Queue()
    worker[0].snapshot(found.put)
    return found.get(timeout=60)


BELOW = ")\nfor value in values:\n    print(value)\n"


def test_each_chunk_is_a_line_and_the_best_comes_first(worker: tuple[Worker, Any]) -> None:
    *lines, done = ask(worker, 1, BELOW)
    assert isinstance(done, Done) and done.finish == "line"
    assert 1 < len(lines) <= 3
    assert len({line.text for line in lines}) == len(lines)
    assert all("\n" not in line.text and line.sizes == [len(line.text)] for line in lines)
    assert all(line.logprobs[0] <= 0 for line in lines)
    more = ask(worker, 2, BELOW, ways=6)
    assert [line.text for line in more[:3]] == [line.text for line in lines]
    told = figures(worker)
    assert told["jobs_active"] == 0
    assert told["tokens_per_second"] == 0  # most of these tokens were read, several at once


def test_without_text_below_there_are_none(worker: tuple[Worker, Any]) -> None:
    [done] = ask(worker, 3, ")\n\n")
    assert isinstance(done, Done)


def test_what_is_left_and_what_fails_leaves_nothing_behind(
    worker: tuple[Worker, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = figures(worker)
    request = {"prompt_tokens": 256, "max_tokens": 16, "ways": 3}
    running, _ = worker
    running.submit("peer", Complete(id=4, document="a", prefix="x", suffix=BELOW, **request))
    running.cancel("peer", 4)
    assert figures(worker)["jobs_active"] == 0
    assert figures(worker)["jobs_cancelled"] == before["jobs_cancelled"] + 1

    def failing(self: Search, tokens: Sequence[int]) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as broken:
        broken.setattr(Search, "_read", failing)
        [error] = ask(worker, 5, BELOW)
    assert isinstance(error, Error)
    assert figures(worker)["jobs_active"] == 0
    assert len(ask(worker, 6, BELOW)) > 1


def test_a_prompt_that_fills_the_context_leaves_room_for_the_text_below(
    worker: tuple[Worker, Any],
) -> None:
    *lines, done = ask(worker, 7, BELOW, prefix="value = add(value)\n" * 400 + "x = ")
    assert isinstance(done, Done) and lines


def test_a_long_text_below_leaves_room_for_a_prompt(worker: tuple[Worker, Any]) -> None:
    *lines, done = ask(worker, 8, "\n" + "}{é§" * ways.CHARACTERS, prompt_tokens=64)
    assert isinstance(done, Done) and lines


def test_where_another_job_needs_the_room_there_are_none(
    worker: tuple[Worker, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire, rooms = KvCache.acquire, iter([True, True, False])

    def scarce(*place: Any, **more: Any) -> Any:
        return acquire(*place, **more) if next(rooms) else None

    monkeypatch.setattr(KvCache, "acquire", scarce)
    [done] = ask(worker, 9, BELOW)
    assert isinstance(done, Done) and done.finish == "no_room"
    assert figures(worker)["jobs_active"] == 0
