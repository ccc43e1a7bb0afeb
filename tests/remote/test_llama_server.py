"""What every engine owes its callers, of the engine that has its tokens from a server: over llama.cpp's
own server and the default model. What is about steps and memory of the machine here has no meaning for it,
and neither have given tokens, which no server prices in one request."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from engines.test_contract import (
    Numbers,
    engine,
    test_a_cold_job_computes_everything,
    test_a_stop_token_has_to_wait_for_the_minimum,
    test_an_accepted_suggestion_is_reused,
    test_backspace_costs_one_token,
    test_cancel_before_the_first_step_and_of_unknown_jobs,
    test_each_typed_token_costs_one_token,
)
from remote.conftest import Reader

from completion_ls.config.settings import RemoteSettings
from completion_ls.decode.vocabulary import Vocabulary
from completion_ls.engines.contract import Finish, Job, JobFailed, Lane, Sampling
from completion_ls.engines.remote.covering import Places, Told, Unknown, WordChoice
from completion_ls.engines.remote.engine import RemoteEngine, connect
from completion_ls.engines.remote.http import Client
from support.jobs import Answer, drain, job, run
from support.remote_llama import Llama, llama

__all__ = [
    "engine",
    "test_a_cold_job_computes_everything",
    "test_a_stop_token_has_to_wait_for_the_minimum",
    "test_an_accepted_suggestion_is_reused",
    "test_backspace_costs_one_token",
    "test_cancel_before_the_first_step_and_of_unknown_jobs",
    "test_each_typed_token_costs_one_token",
]
pytestmark = [pytest.mark.model, pytest.mark.process]

CODE = '''from pathlib import Path


def count_lines(folder: Path) -> int:
    """Lines of all Python files below a folder."""
    total = 0
    for file in folder.rglob("*.py"):
        total += len(file.read_text().splitlines())
    return total


def longest_line(file: Path) -> str:
    """The longest line of a file."""
    return max(file.read_text().splitlines(), key=len)


def main() -> None:
    folder = Path("src")
    print("lines:", count_lines(folder))
'''


@pytest.fixture
def numbers() -> Numbers:
    return Numbers(49152, chunk=0, background_chunk=0, again=1)


@pytest.fixture
def make_engine(
    server: Llama, connected: Callable[[str], RemoteEngine]
) -> Callable[[], RemoteEngine]:
    return lambda: connected(server.url)


@pytest.fixture
def greedy(server: Llama) -> Callable[[tuple[int, ...], int], list[int]]:
    return server.greedy


def tokens_of(reader: Reader, text: str) -> tuple[int, ...]:
    return reader.prompts.section(text)


def test_what_the_server_can_is_found(engine: RemoteEngine) -> None:
    able = engine.abilities
    assert (able.dialect, able.software, able.slots) == ("llama.cpp", "llama.cpp", 2)
    assert able.by_tokens and able.reuses and able.counts_reuse
    assert able.max_context == engine.max_context == 4096
    assert able.fills_in == ""  # the default model has no FIM tokens


def test_greedy_output_is_that_of_the_server(
    engine: RemoteEngine, reader: Reader, server: Llama
) -> None:
    for length in (5, 60, len(CODE)):
        prompt = tokens_of(reader, CODE[:length])
        answer = run(engine, job(prompt, 12))
        expected = server.greedy(prompt, 12)
        assert answer.finish is Finish.LENGTH
        different = next((n for n in range(12) if answer.tokens[n] != expected[n]), None)
        if different is not None:  # a near tie, which the size of a batch decides
            told = server.logprobs((*prompt, *expected[:different]), 2)
            assert max(told.values()) - min(told.values()) < 0.05
        assert all(logprob <= 0 for logprob in answer.logprobs)


def test_logprobs_are_those_of_the_model(
    engine: RemoteEngine, reader: Reader, server: Llama
) -> None:
    prompt = tokens_of(reader, CODE[:200])
    answer = run(engine, job(prompt, 4, sampling=Sampling(0.7, 0.9, 0, 5)))
    for place, (token, logprob) in enumerate(zip(answer.tokens, answer.logprobs, strict=True)):
        told = server.logprobs((*prompt, *answer.tokens[:place]), 2000)
        assert abs(told[token] - logprob) < 0.1


def test_seeds_are_reproducible(engine: RemoteEngine, reader: Reader) -> None:
    prompt = tokens_of(reader, CODE[:150])

    def drawn(seed: int) -> list[int]:
        return run(engine, job(prompt, 12, sampling=Sampling(1.0, 1.0, 0, seed))).tokens

    first = drawn(1)
    assert drawn(1) == first
    assert any(drawn(seed) != first for seed in (2, 3, 4))
    assert drawn(-1) == drawn(-1)  # by which llama.cpp means chance


def test_a_stop_token_ends_the_job(engine: RemoteEngine, reader: Reader) -> None:
    prompt = tokens_of(reader, CODE[:100])
    whole = run(engine, job(prompt, 12)).tokens
    answer = run(engine, job(prompt, 12, stop_token_ids=frozenset({whole[5]})))
    assert answer.tokens == whole[: whole.index(whole[5])]
    assert answer.finish is Finish.STOP


def test_characters_of_several_tokens_come_whole(
    engine: RemoteEngine, reader: Reader, server: Llama
) -> None:
    """The server streams the id of the last one only."""
    prompt = tokens_of(reader, 'signs = ["🙂", "🚀", "🙂", "🚀", "🙂", "🚀", "')
    answer = run(engine, job(prompt, 12))
    spelled = b"".join(map(Vocabulary(reader.tokenizer).bytes_of, answer.tokens))
    whole = b"".join(map(Vocabulary(reader.tokenizer).bytes_of, server.greedy(prompt, 12)))
    assert any(len(character.encode()) == 4 for character in spelled.decode(errors="ignore"))
    shorter = min(len(spelled), len(whole)) - 4
    assert spelled[:shorter] == whole[:shorter]


def test_jobs_that_make_no_sense_are_refused(engine: RemoteEngine) -> None:
    with pytest.raises(ValueError, match="at least one prompt token"):
        engine.add(job(()))
    with pytest.raises(ValueError, match="context holds 4096"):
        engine.add(job((50,) * 4090, 7))
    with pytest.raises(ValueError, match="token ids outside 0 to 49151"):
        engine.add(job((1, 49152)))
    with pytest.raises(ValueError, match="given"):
        engine.add(job((1, 2), given=(3,)))
    assert engine.step() == []


# the unfinished word


@pytest.mark.parametrize("end", ["coun", "count_l", "fold", "  ", "prin", "xq", "(", "été 日"])
def test_a_word_is_covered_as_with_all_probabilities(
    engine: RemoteEngine, reader: Reader, server: Llama, end: str
) -> None:
    prompt = reader.prompt(CODE + "    " + end)
    assert prompt.unfinished
    wanted = Job(1, prompt.ids, 6, reader.prompts.stop_token_ids, unfinished=prompt.unfinished)
    answer = run(engine, wanted)
    vocabulary = Vocabulary(reader.tokenizer)
    spelled = b"".join(map(vocabulary.bytes_of, answer.tokens))
    assert spelled.startswith(prompt.unfinished.text)
    assert len(spelled) > len(prompt.unfinished.text)
    # The same with all that the server has to tell of each place.
    places = Places()
    choice = WordChoice(wanted, places, vocabulary, 49152)
    while True:
        try:
            found = choice.choose()
            break
        except Unknown as unknown:
            for branch in unknown.branches:
                place = (*choice.before, *branch)
                places.put(place, Told(server.logprobs(place, 49152), is_all=True))
    if engine.figures()["server_words_guessed"] == 0:
        chosen = tuple(answer.tokens[: len(found.tokens)])
        of_ours = sum(answer.logprobs[: len(found.tokens)])
        assert chosen == found.tokens or abs(of_ours - sum(found.logprobs)) < 0.05  # a tie


def test_typing_costs_the_server_a_token_or_two_a_key(engine: RemoteEngine, reader: Reader) -> None:
    computed = []
    for end in range(120, 260):
        prompt = reader.prompt(CODE[:end])
        wanted = job(prompt.ids, 4, unfinished=prompt.unfinished, document="a.py")
        computed.append(run(engine, wanted).computed)
    assert sorted(computed[1:])[len(computed) // 2] <= 3
    requests = engine.figures()["server_requests"]
    assert requests < 2 * len(computed)


# slots


def test_each_document_keeps_its_slot(engine: RemoteEngine, reader: Reader) -> None:
    one, two = (tokens_of(reader, header + CODE) for header in ("# one\n", "# two, the other\n"))
    run(engine, job(one[:100], document="one"))
    run(engine, job(two[:100], document="two"))
    for length in range(101, 110):
        assert run(engine, job(one[:length], document="one")).computed <= 2
        assert run(engine, job(two[:length], document="two")).computed <= 2


def test_work_ahead_costs_no_slot_that_is_typed_in(engine: RemoteEngine, reader: Reader) -> None:
    texts = [tokens_of(reader, f"# number {n}\n" + CODE) for n in range(3)]
    for number in (0, 1):
        run(engine, job(texts[number][:100], document=str(number)))
    engine.add(job(texts[2][:100], lane=Lane.BACKGROUND, document="0"))
    [ahead] = drain(engine)
    assert (ahead.tokens, ahead.finish) == ((), Finish.NO_ROOM)
    # What goes on from what is there costs nothing of it.
    more = run(engine, job(texts[0][:103], lane=Lane.BACKGROUND, document="0"))
    assert more.finish is Finish.LENGTH
    for number in (0, 1):
        assert run(engine, job(texts[number][:101], document=str(number))).computed <= 2


def test_a_document_that_was_read_ahead_is_typed_in_at_once(
    engine: RemoteEngine, reader: Reader
) -> None:
    text = tokens_of(reader, CODE)
    run(engine, job(text[:150], 1, lane=Lane.BACKGROUND, document="a"))
    assert run(engine, job(text[:151], document="a")).computed <= 2


def test_a_lost_server_is_told_of_by_a_document_that_has_no_slot(reader: Reader) -> None:
    told: list[str] = []
    with llama() as server:
        settings = RemoteSettings(url=server.url, timeout_s=60)
        engine = RemoteEngine(*connect(settings, reader.tokenizer, told.append), reader.tokenizer)
    try:
        engine.add(job(tokens_of(reader, CODE)[:50], document="new"))
        with pytest.raises(JobFailed, match="cannot be reached"):
            list(drain(engine, 100_000))
        assert len(told) == 1
    finally:
        engine.close()


# cancel and lanes


def test_cancel_frees_the_server_at_once(
    engine: RemoteEngine, reader: Reader, server: Llama
) -> None:
    prompt = tokens_of(reader, CODE)
    cancelled = job(prompt, 2000, sampling=Sampling(1.0), document="a")
    engine.add(cancelled)
    events = []
    while not any(event.tokens for event in events):
        events += engine.step()
    assert server.busy()
    engine.cancel(cancelled.id)
    assert engine.stats().jobs_active == 0
    # 2,000 tokens take many seconds; it learns of it at the next one.
    for _ in range(100):
        if not server.busy():
            break
        time.sleep(0.05)
    assert not server.busy()
    produced = sum(len(event.tokens) for event in events)
    assert produced < 500
    again = run(engine, job(prompt, 3, document="a"))
    assert again.reused >= len(prompt) - 1


def test_cancel_while_the_prompt_is_read_frees_the_server(
    engine: RemoteEngine, reader: Reader, server: Llama
) -> None:
    long = tokens_of(reader, CODE * 4)[:900]
    cancelled = job(long, 5, document="a")
    engine.add(cancelled)
    while not server.busy():
        engine.step()
    engine.cancel(cancelled.id)
    for _ in range(200):
        if not server.busy():
            break
        time.sleep(0.05)
    assert not server.busy()


def test_a_key_goes_before_work_ahead_when_the_server_has_no_room(
    engine: RemoteEngine, reader: Reader
) -> None:
    texts = [tokens_of(reader, f"# number {n}\n" + CODE[:300]) for n in range(3)]
    ahead = [job(text, 200, lane=Lane.BACKGROUND, document=str(n)) for n, text in enumerate(texts)]
    for one in ahead[:2]:
        engine.add(one)
    events = []
    while len({event.job_id for event in events if event.tokens}) < 2:
        events += engine.step()
    key = job(texts[2], 3, document="2")
    engine.add(key)
    events += list(drain(engine, 100_000))
    ended = [event.job_id for event in events if event.finish]
    assert ended[0] == key.id and set(ended) == {key.id, ahead[0].id, ahead[1].id}
    # What gave way is gone on with, and loses nothing of its text, though it may find no room any more.
    for one in ahead[:2]:
        answer = Answer(one, events)
        assert answer.finish in (Finish.LENGTH, Finish.NO_ROOM)
        if answer.finish is Finish.LENGTH:
            assert len(answer.tokens) == 200
    stats = engine.stats()
    assert (stats.jobs_active, stats.sequences_in_use) == (0, 0)


def test_a_key_does_not_wait_for_work_ahead_in_its_own_slot(
    engine: RemoteEngine, reader: Reader
) -> None:
    text = tokens_of(reader, CODE)
    typed = job(text[:90], 2, document="a")
    typed_output = run(engine, typed).tokens
    ahead = job((*text[:90], *typed_output), 200, lane=Lane.BACKGROUND, document="a")
    engine.add(ahead)
    events = []
    while not any(event.tokens for event in events):
        events += engine.step()
    key = job(text[:91], 3, document="a")
    engine.add(key)
    events += list(drain(engine, 100_000))
    assert next(event.job_id for event in events if event.finish) == key.id
    assert Answer(ahead, events).finish in (Finish.LENGTH, Finish.STOP, Finish.NO_ROOM)


def test_who_is_promoted_is_waited_for(engine: RemoteEngine, reader: Reader) -> None:
    text = tokens_of(reader, CODE)
    ahead = job(text[:150], 5, lane=Lane.BACKGROUND, document="a")
    engine.add(ahead)
    engine.promote(ahead.id, Lane.KEY)
    assert Answer(ahead, list(drain(engine))).finish is Finish.LENGTH
    engine.promote(12345, Lane.KEY)


def test_work_ahead_that_has_no_room_is_done_for_who_comes_to_wait_for_it(
    engine: RemoteEngine, reader: Reader
) -> None:
    texts = [tokens_of(reader, f"# number {n}\n" + CODE)[:100] for n in range(3)]
    for number in (0, 1):
        run(engine, job(texts[number], document=str(number)))
    ahead = job(texts[2], 5, lane=Lane.BACKGROUND, document="2")
    engine.add(ahead)
    while engine._news.empty():  # that there is no room is on its way
        time.sleep(0.001)
    engine.promote(ahead.id, Lane.KEY)
    assert Answer(ahead, list(drain(engine))).finish is Finish.LENGTH


def test_the_same_prompt_again_costs_one_token(engine: RemoteEngine, reader: Reader) -> None:
    text = tokens_of(reader, CODE)[:100]
    first = run(engine, job(text))
    again = run(engine, job(text))
    assert (again.computed, again.tokens) == (1, first.tokens)


def test_a_fresh_job_reuses_nothing(engine: RemoteEngine, reader: Reader) -> None:
    text = tokens_of(reader, CODE)[:100]
    run(engine, job(text))
    fresh = run(engine, job(text, fresh=True))
    assert (fresh.reused, fresh.computed) == (0, 100)


def test_close_drops_jobs_and_frees_the_server(
    engine: RemoteEngine, reader: Reader, server: Llama
) -> None:
    engine.add(job(tokens_of(reader, CODE), 2000, sampling=Sampling(1.0)))
    while not engine.step():
        pass
    engine.close()
    assert engine.step() == []
    assert engine.stats().jobs_active == 0
    for _ in range(100):
        if not server.busy():
            break
        time.sleep(0.05)
    assert not server.busy()


def test_its_openai_interface_is_spoken_to_by_texts(
    server: Llama,
    connected: Callable[[str], RemoteEngine],
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As behind a proxy that lets nothing else through."""
    get = Client.get

    async def without_props(client: Client, path: str) -> Any:
        return None if path == "/props" else await get(client, path)

    monkeypatch.setattr(Client, "get", without_props)
    engine = connected(server.url)
    able = engine.abilities
    assert (able.dialect, able.software, able.by_tokens) == ("openai", "llama.cpp", False)
    assert able.same_tokens and able.logprobs and able.reuses and able.fills_in == ""
    vocabulary = Vocabulary(reader.tokenizer)
    computed = []
    for end in range(200, 230):
        prompt = reader.prompt(CODE[:end])
        wanted = job(prompt.ids, 6, unfinished=prompt.unfinished, document="a")
        answer = run(engine, wanted)
        computed.append(answer.computed)
        spelled = b"".join(map(vocabulary.bytes_of, answer.tokens))
        assert spelled.startswith(prompt.typed.encode())
        assert all(logprob <= 0 for logprob in answer.logprobs)
    assert sorted(computed)[len(computed) // 2] <= 12
