"""The stand-ins for servers keep the rules that their docstrings tell, and fail as they are told to."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import numpy as np
import pytest

from support.remote import faults
from support.remote.http import Dialect, Fault, Server, serving
from support.remote.model import HashedModel, Sampling, generate, missing_bytes
from support.remote.tabby import Tabby
from support.remote.vllm import Vllm
from support.tokenizer_kinds import END, KINDS, tokenizer_of

CLIENT = httpx2.Client(timeout=5, limits=httpx2.Limits(max_keepalive_connections=0))
KEY = {"authorization": "Bearer secret"}
PROMPT = "def add(a, b):\n    return "
COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def model() -> HashedModel:
    tokenizer = tokenizer_of("qwen2")
    return HashedModel(tokenizer, seed=1, end=tokenizer.token_to_id(END), end_bias=-8.0)


@pytest.fixture
def vllm(model: HashedModel) -> Iterator[Server]:
    with serving(Vllm(model, key="secret", tells_cached=True)) as server:
        yield server


@pytest.fixture
def tabby(model: HashedModel) -> Iterator[Server]:
    with serving(Tabby(model, key="secret")) as server:
        yield server


def post(server: Server, path: str = COMPLETIONS, **body: Any) -> httpx2.Response:
    return CLIENT.post(server.url + path, json=body, headers=KEY)


def get(server: Server, path: str) -> httpx2.Response:
    return CLIENT.get(server.url + path, headers=KEY)


def events(response: httpx2.Response) -> list[Any]:
    """What the stream told; its end is the text `[DONE]`."""
    assert response.headers["content-type"].startswith("text/event-stream")
    said = []
    for line in response.text.splitlines():
        if line.startswith("data: "):
            text = line.removeprefix("data: ")
            said.append(text if text == "[DONE]" else json.loads(text))
    return said


def stream(server: Server, prompt: Any = PROMPT, **body: Any) -> list[Any]:
    asked = {"prompt": prompt, "max_tokens": 8, "temperature": 0, **body}
    response = post(server, stream=True, **asked)
    assert response.status_code == 200, response.text
    return events(response)


def choices(told: list[Any]) -> list[Any]:
    return [choice for event in told if event != "[DONE]" for choice in event["choices"]]


def text_of(told: list[Any]) -> str:
    return "".join(choice["text"] for choice in choices(told))


# The model


def test_the_same_context_always_has_the_same_probabilities(model: HashedModel) -> None:
    twin = HashedModel(tokenizer_of("qwen2"), seed=1, end=model.end, end_bias=-8.0)
    ids = model.encode(PROMPT)
    assert np.array_equal(model.logprobs(ids), twin.logprobs(ids))
    assert not np.array_equal(model.logprobs(ids), model.logprobs(ids[:-1]))
    assert np.exp(model.logprobs(ids)).sum() == pytest.approx(1)
    assert not np.array_equal(
        model.logprobs(ids), HashedModel(tokenizer_of("qwen2"), seed=2).logprobs(ids)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_spell_what_their_tokenizer_decodes(kind: str) -> None:
    model = HashedModel(tokenizer_of(kind))
    text = "x = déjà(日本) # 🙂\n"
    ids = model.encode(text)
    spelled = model.bytes_of(ids).decode()
    assert spelled.strip() == model.tokenizer.decode(ids).strip()


def test_characters_are_split_over_tokens(model: HashedModel) -> None:
    context = model.encode("été")
    made = model.greedy(context, 60)
    whole = model.bytes_of(made).decode(errors="replace")
    pieces = [model.bytes_of([id]).decode(errors="replace") for id in made]
    assert any(ord(letter) > 127 and letter != "\ufffd" for letter in whole)
    assert "".join(pieces) != whole


def test_missing_bytes_are_counted() -> None:
    assert [missing_bytes("🙂".encode()[:end]) for end in range(5)] == [0, 3, 2, 1, 0]
    assert missing_bytes("aé".encode()[:-1]) == 1
    assert missing_bytes(b"\x80\x80\x80\x80") == 0


def test_a_seed_repeats_what_was_drawn(model: HashedModel) -> None:
    def drawn(seed: int | None, **rest: Any) -> list[int]:
        sampling = Sampling(temperature=1.5, seed=seed, **rest)
        return [step.token for step in generate(model, [5, 6], sampling, 12)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(1, top_k=1) == model.greedy([5, 6], 12) == drawn(2, top_p=1e-9)
    assert set(drawn(3, allowed=frozenset({40, 41}))) <= {40, 41}


# vLLM: what it tells of itself


def test_vllm_tells_its_version_and_health_without_a_key(vllm: Server) -> None:
    assert CLIENT.get(vllm.url + "/version").json() == {"version": "0.29.0"}
    health = CLIENT.get(vllm.url + "/health")
    assert (health.status_code, health.content) == (200, b"")


def test_vllm_lists_its_model_with_its_context(vllm: Server) -> None:
    listed = get(vllm, "/v1/models").json()
    assert listed["object"] == "list"
    assert [(card["id"], card["max_model_len"]) for card in listed["data"]] == [("tiny", 2048)]


def test_vllm_wants_its_key_below_v1(vllm: Server) -> None:
    for headers in ({}, {"authorization": "Bearer other"}, {"x-api-key": "secret"}):
        answer = CLIENT.get(vllm.url + "/v1/models", headers=headers)
        assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})
    asked = CLIENT.post(vllm.url + "/tokenize", json={"prompt": "a"})
    assert asked.status_code == 200


def test_vllm_tokenizes_and_back(vllm: Server, model: HashedModel) -> None:
    ids = model.encode(PROMPT)
    told = post(vllm, "/tokenize", prompt=PROMPT, return_token_strs=True).json()
    assert told == {
        "count": len(ids),
        "max_model_len": 2048,
        "tokens": ids,
        "token_strs": [model.pieces[id] for id in ids],
    }
    assert post(vllm, "/detokenize", tokens=ids).json() == {"prompt": PROMPT}
    marked = post(vllm, "/tokenize", prompt=END).json()
    assert marked["tokens"] == [model.end], "a control token in a text is one"


# vLLM: what it refuses


@pytest.mark.parametrize(
    ("body", "status", "kind", "param"),
    [
        ({"model": "other"}, 404, "NotFoundError", "model"),
        ({"suffix": ""}, 400, "BadRequestError", None),
        ({"prompt": ""}, 400, "BadRequestError", "prompt"),
        ({"prompt": []}, 400, "BadRequestError", None),
        ({"prompt": [1, -1]}, 400, "BadRequestError", "body.prompt"),
        ({"prompt": [1, 100_000]}, 400, "BadRequestError", None),
        ({"prompt": {"text": "a"}}, 400, "BadRequestError", "body.prompt"),
        ({"max_tokens": "many"}, 400, "BadRequestError", "body.max_tokens"),
        ({"max_tokens": 0}, 400, "BadRequestError", "max_tokens"),
        ({"max_tokens": 2048}, 400, "BadRequestError", "input_tokens"),
        ({"logprobs": 21}, 400, "BadRequestError", "logprobs"),
        ({"logprobs": -2}, 400, "BadRequestError", "logprobs"),
        ({"logprobs": "5"}, 400, "BadRequestError", "logprobs"),
        ({"temperature": -1}, 400, "BadRequestError", "temperature"),
        ({"top_p": 0}, 400, "BadRequestError", "top_p"),
        ({"top_k": -2}, 400, "BadRequestError", "top_k"),
        ({"min_tokens": 9, "max_tokens": 8}, 400, "BadRequestError", "min_tokens"),
        ({"allowed_token_ids": []}, 400, "BadRequestError", "allowed_token_ids"),
        ({"cache_salt": ""}, 400, "BadRequestError", "cache_salt"),
        ({"stream_options": {}, "stream": True}, 200, "", None),
        ({"stream_options": {"include_usage": True}}, 400, "BadRequestError", "stream_options"),
        ({"stream": True, "prompt_logprobs": 1}, 400, "BadRequestError", "prompt_logprobs"),
        ({"max_tokens": "4"}, 200, "", None),
        ({"never_heard_of": {"a": 1}}, 200, "", None),
    ],
)
def test_vllm_refuses_as_the_real_one_does(
    vllm: Server, body: dict[str, Any], status: int, kind: str, param: str | None
) -> None:
    answer = post(vllm, **{"prompt": PROMPT, **body})
    assert answer.status_code == status, answer.text
    if status != 200:
        error = answer.json()["error"]
        assert (error["type"], error["code"], error["param"]) == (kind, status, param)


def test_vllm_wants_json(vllm: Server) -> None:
    headers = {**KEY, "content-type": "application/json"}
    broken = CLIENT.post(vllm.url + COMPLETIONS, content=b'{"prompt"', headers=headers)
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, 400)
    plain = CLIENT.post(vllm.url + COMPLETIONS, content=b'{"prompt": "a"}', headers=KEY)
    assert plain.status_code == 400
    assert get(vllm, COMPLETIONS).status_code == 405
    assert get(vllm, "/v1/nothing").json()["error"]["type"] == "NotFoundError"


def test_vllm_says_what_the_stand_in_does_not_know(vllm: Server) -> None:
    for unknown in ({"n": 2}, {"use_beam_search": True}, {"presence_penalty": 0.5}):
        assert post(vllm, prompt="a", **unknown).status_code == 501


def test_an_old_vllm_has_flat_errors_and_ignores_what_came_later(model: HashedModel) -> None:
    with serving(Vllm(model, age="0.9.2")) as server:
        error = post(server, prompt="a", model="other").json()
        assert (error["object"], error["code"], error["type"]) == ("error", 404, "NotFoundError")
        told = stream(server, return_token_ids=True)
        assert all("token_ids" not in choice for choice in choices(told))
        assert all(event["usage"] is None for event in told[:-1])


# vLLM: what it answers


def test_vllm_goes_on_greedily(vllm: Server, model: HashedModel) -> None:
    ids = model.encode(PROMPT)
    made = model.greedy(ids, 8)
    for prompt in (PROMPT, ids, [PROMPT], [ids]):
        told = stream(vllm, prompt, return_token_ids=True)
        assert [id for choice in choices(told) for id in choice["token_ids"]] == made
    assert told[-1] == "[DONE]"
    assert [choice["finish_reason"] for choice in choices(told)] == [None] * 7 + ["length"]


def test_vllm_tells_the_prompts_ids_in_the_first_event_alone(
    vllm: Server, model: HashedModel
) -> None:
    told = choices(stream(vllm, return_token_ids=True))
    assert told[0]["prompt_token_ids"] == model.encode(PROMPT)
    assert all(choice["prompt_token_ids"] is None for choice in told[1:])
    assert set(told[0]) == {
        *("index", "text", "logprobs", "finish_reason", "stop_reason"),
        *("prompt_token_ids", "token_ids"),
    }
    without = choices(stream(vllm))
    assert all(choice["token_ids"] is None for choice in without)


def test_vllm_keeps_a_begun_character_back(vllm: Server, model: HashedModel) -> None:
    told = choices(stream(vllm, "été", max_tokens=60, return_token_ids=True))
    assert any(not choice["text"] and choice["token_ids"] for choice in told)
    ids = [id for choice in told for id in choice["token_ids"]]
    whole = model.bytes_of(ids).decode(errors="replace")
    text = "".join(choice["text"] for choice in told)
    assert whole.startswith(text)
    assert set(whole[len(text) :]) <= {"\ufffd"}


def test_vllm_tells_usage_in_an_event_of_its_own(vllm: Server, model: HashedModel) -> None:
    told = stream(vllm, stream_options={"include_usage": True})
    last = told[-2]
    count = len(model.encode(PROMPT))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": count,
        "completion_tokens": 8,
        "total_tokens": count + 8,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert all("usage" not in event for event in told[:-2])


def test_vllm_counts_whole_blocks_that_it_had(vllm: Server, model: HashedModel) -> None:
    ids = (model.encode(PROMPT) * 10)[:70]

    def cached(prompt: list[int], **rest: Any) -> int:
        usage = stream(vllm, prompt, stream_options={"include_usage": True}, **rest)[-2]["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached(ids) == 0
    assert cached(ids) == 64
    assert cached(ids[:64]) == 48, "the last token is always computed"
    assert cached([*ids[:20], 9, *ids[21:]]) == 16
    assert cached(ids, cache_salt="mine") == 0
    assert cached(ids, cache_salt="mine") == 64
    assert cached(ids, echo=True, logprobs=1) == 0
    answer = model.greedy(ids, 8)
    assert cached([*ids, *answer, 3, 3, 3, 3]) == 64
    assert cached([*ids, *model.greedy(ids, 30)], max_tokens=1) == 64
    stream(vllm, ids, max_tokens=30)
    assert cached([*ids, *model.greedy(ids, 30)]) == 96, "answers are kept as well"


def test_vllm_hides_what_it_had_unless_started_to_tell_it(model: HashedModel) -> None:
    with serving(Vllm(model)) as server:
        told = stream(server, stream_options={"include_usage": True})
        assert "prompt_tokens_details" not in told[-2]["usage"]


def test_vllm_tells_probabilities_beside_the_chosen_one(vllm: Server, model: HashedModel) -> None:
    ids = model.encode(PROMPT)
    told = choices(
        stream(vllm, ids, logprobs=3, return_tokens_as_token_ids=True, temperature=2.0, seed=5)
    )
    assert len(told) == 8
    context = list(ids)
    outside = 0
    for choice in told:
        found = choice["logprobs"]
        assert [len(part) for part in found.values()] == [1, 1, 1, 1]
        token = int(found["tokens"][0].removeprefix("token_id:"))
        logprobs = model.logprobs(context)
        best = [int(id) for id in np.argsort(-logprobs, kind="stable")[:3]]
        top = found["top_logprobs"][0]
        assert next(iter(top)) == f"token_id:{token}"
        assert set(top) == {f"token_id:{id}" for id in [*best, token]}
        assert found["token_logprobs"][0] == pytest.approx(float(logprobs[token]))
        outside += token not in best
        context.append(token)
    assert outside, "a chosen token that is not among the best is told beside them"


def test_vllm_names_tokens_by_text_unless_told_otherwise(model: HashedModel) -> None:
    with serving(Vllm(model, ids_as_tokens=True)) as by_id, serving(Vllm(model)) as by_text:
        assert choices(stream(by_id, logprobs=0))[0]["logprobs"]["tokens"][0].startswith(
            "token_id:"
        )
        told = choices(stream(by_text, "été", logprobs=20, max_tokens=20))
        assert not told[0]["logprobs"]["tokens"][0].startswith("token_id:")
        counts = [len(choice["logprobs"]["top_logprobs"][0]) for choice in told]
        assert min(counts) < 20, "bytes of begun characters have one name together"


def test_vllm_echoes_the_prompt_with_its_probabilities(vllm: Server, model: HashedModel) -> None:
    ids = model.encode(PROMPT)
    answer = post(vllm, prompt=ids, echo=True, max_tokens=0, logprobs=1, temperature=0).json()
    choice = answer["choices"][0]
    assert choice["text"] == PROMPT
    found = choice["logprobs"]["token_logprobs"]
    assert found[0] is None
    wanted = [float(model.logprobs(ids[:at])[ids[at]]) for at in range(1, len(ids))]
    assert found[1:] == pytest.approx(wanted)
    assert answer["usage"]["prompt_tokens"] == len(ids)


def test_vllm_ends_at_a_token_and_tells_which(vllm: Server, model: HashedModel) -> None:
    ids = model.encode(PROMPT)
    made = model.greedy(ids, 8)
    stop = made[3]
    first = made.index(stop)
    told = choices(stream(vllm, ids, stop_token_ids=[stop], return_token_ids=True, logprobs=0))
    assert [id for choice in told for id in choice["token_ids"]] == made[: first + 1]
    assert (told[-1]["finish_reason"], told[-1]["stop_reason"]) == ("stop", stop)
    assert told[-1]["text"] == ""
    assert len(told[-1]["logprobs"]["tokens"]) == 1
    later = choices(stream(vllm, ids, stop_token_ids=[stop], min_tokens=8, return_token_ids=True))
    assert len(later) == 8
    assert all(stop not in choice["token_ids"] for choice in later)


def test_vllm_ends_at_the_texts_end_without_a_reason(model: HashedModel) -> None:
    willing = HashedModel(tokenizer_of("qwen2"), seed=1, end=model.end, end_bias=30.0)
    with serving(Vllm(willing)) as server:
        told = choices(stream(server, return_token_ids=True))
        assert [choice["token_ids"] for choice in told] == [[model.end]]
        assert (told[0]["finish_reason"], told[0]["stop_reason"]) == ("stop", None)
        assert len(choices(stream(server, ignore_eos=True))) == 8


def test_vllm_cuts_at_a_text_and_keeps_back_what_may_begin_it(
    vllm: Server, model: HashedModel
) -> None:
    ids = model.encode(PROMPT)
    text = text_of(stream(vllm, ids, max_tokens=30))
    stop = text[5:9]
    told = choices(stream(vllm, ids, max_tokens=30, stop=[stop]))
    assert "".join(choice["text"] for choice in told) == text[: text.index(stop)]
    assert (told[-1]["finish_reason"], told[-1]["stop_reason"]) == ("stop", stop)
    whole = choices(stream(vllm, ids, max_tokens=30, stop=stop, include_stop_str_in_output=True))
    assert "".join(choice["text"] for choice in whole) == text[: text.index(stop) + len(stop)]


def test_vllm_chooses_among_the_allowed(vllm: Server, model: HashedModel) -> None:
    told = choices(stream(vllm, allowed_token_ids=[40, 41], return_token_ids=True))
    assert {id for choice in told for id in choice["token_ids"]} <= {40, 41}
    biased = choices(stream(vllm, logit_bias={"42": 100}, return_token_ids=True))
    assert {id for choice in biased for id in choice["token_ids"]} == {42}


def test_vllm_tells_several_tokens_at_once_where_it_guesses(model: HashedModel) -> None:
    with serving(Vllm(model, burst=3)) as server:
        told = choices(stream(server, return_token_ids=True, logprobs=1))
        assert [len(choice["token_ids"]) for choice in told] == [3, 3, 2]
        assert [len(choice["logprobs"]["tokens"]) for choice in told] == [3, 3, 2]


def test_vllm_tells_the_same_in_one_piece(vllm: Server) -> None:
    told = stream(vllm, return_token_ids=True)
    whole = post(vllm, prompt=PROMPT, max_tokens=8, temperature=0, return_token_ids=True).json()
    assert whole["choices"][0]["text"] == text_of(told)
    ids = [id for choice in choices(told) for id in choice["token_ids"]]
    assert whole["choices"][0]["token_ids"] == ids


# TabbyAPI


def test_tabby_tells_its_model(tabby: Server) -> None:
    card = get(tabby, "/v1/model").json()
    assert (card["id"], card["owned_by"]) == ("tiny-exl3", "tabbyAPI")
    assert card["parameters"]["max_seq_len"] == 2048
    listed = get(tabby, "/v1/models").json()["data"]
    assert [(one["id"], "max_model_len" in one) for one in listed] == [("tiny-exl3", False)]
    assert get(tabby, "/v1/auth/permission").json() == {"permission": "api"}
    assert CLIENT.get(tabby.url + "/health").json()["status"] == "healthy"
    assert get(tabby, "/version").status_code == 404


@pytest.mark.parametrize("headers", [KEY, {"x-api-key": "secret"}])
def test_tabby_takes_its_key_in_two_headers(tabby: Server, headers: dict[str, str]) -> None:
    assert CLIENT.get(tabby.url + "/v1/model", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("headers", "detail"),
    [
        ({}, "Please provide an API key"),
        ({"x-api-key": "other"}, "Invalid API key"),
        ({"authorization": "Basic secret"}, "Invalid API key"),
    ],
)
def test_tabby_refuses_other_keys(tabby: Server, headers: dict[str, str], detail: str) -> None:
    answer = CLIENT.get(tabby.url + "/v1/model", headers=headers)
    assert (answer.status_code, answer.json()) == (401, {"detail": detail})


def test_tabby_tokenizes_and_puts_a_start_before(model: HashedModel) -> None:
    with serving(Tabby(model, start=7)) as server:
        ids = model.encode(PROMPT)
        told = post(server, "/v1/token/encode", text=PROMPT).json()
        assert told == {"tokens": [7, *ids], "length": len(ids) + 1}
        plain = post(server, "/v1/token/encode", text=PROMPT, add_bos_token=False).json()
        assert plain["tokens"] == ids
        assert post(server, "/v1/token/decode", tokens=ids).json() == {"text": PROMPT}


@pytest.mark.parametrize(
    "body",
    [{"prompt": [1, 2]}, {}, {"prompt": "a", "max_tokens": -1}, {"prompt": "a", "top_p": 2}],
)
def test_tabby_refuses_wrong_types_as_fastapi_does(tabby: Server, body: dict[str, Any]) -> None:
    answer = post(tabby, **body)
    assert answer.status_code == 422
    detail = answer.json()["detail"]
    assert detail[0]["loc"][0] == "body"
    assert {"type", "msg"} <= set(detail[0])


def test_tabby_ignores_what_it_does_not_use(tabby: Server, model: HashedModel) -> None:
    ignored = {"suffix": "c", "model": "other", "seed": 3, "return_token_ids": True, "echo": True}
    assert text_of(stream(tabby, **ignored)) == text_of(stream(tabby))
    assert post(tabby, prompt="a", repetition_penalty=1.1).status_code == 501


def test_tabby_streams_text_with_its_own_names(tabby: Server, model: HashedModel) -> None:
    told = stream(tabby, max_tokens=8)
    assert told[-1] == "[DONE]"
    first = told[0]
    assert (first["object"], first["model_name"]) == ("text_completion", "tiny-exl3")
    assert "model" not in first
    assert first["id"].startswith("chatcmpl-")
    assert set(first["choices"][0]) == {"index", "text", "finish_reason"}
    assert all(choice["text"] for choice in choices(told[:-2]))
    assert choices(told)[-1] == {"index": 0, "text": "", "finish_reason": "length"}
    made = model.greedy(model.encode(PROMPT), 8)
    assert text_of(told) == model.bytes_of(made).decode(errors="replace")


def test_tabby_tells_usage_with_a_choice(tabby: Server, model: HashedModel) -> None:
    long = PROMPT * 40
    count = len(model.encode(long))
    assert count > 256
    for cached in (0, (count - 1) // 256 * 256):
        told = stream(tabby, long, stream_options={"include_usage": True})
        assert told[-2]["choices"] == [{"index": 0, "text": "", "finish_reason": "length"}]
        assert told[-2]["usage"] == {
            "prompt_tokens": count,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens": 8,
            "total_tokens": count + 8,
        }
        assert [choice["finish_reason"] for choice in choices(told)].count("length") == 1
    assert all("usage" not in event for event in stream(tabby)[:-1])


def test_tabby_tells_probabilities_by_pieces(tabby: Server, model: HashedModel) -> None:
    ids = model.encode(PROMPT)
    told = [
        choice for choice in choices(stream(tabby, logprobs=1, top_logprobs=4)) if choice["text"]
    ]
    context = list(ids)
    for choice in told:
        found = choice["logprobs"]
        assert found["text_offset"][0] == 0
        for piece, logprob, top in zip(
            found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
        ):
            logprobs = model.logprobs(context)
            token = int(logprobs.argmax())
            assert (piece, logprob) == (model.pieces[token], pytest.approx(float(logprobs[token])))
            best = np.argsort(-logprobs, kind="stable")[:4]
            assert list(top) == [model.pieces[id] for id in best]
            context.append(token)
    alone = [choice for choice in choices(stream(tabby, logprobs=3)) if choice["text"]]
    assert {top for choice in alone for top in choice["logprobs"]["top_logprobs"]} == {None}
    assert all("logprobs" not in choice for choice in choices(stream(tabby)))


def test_tabby_stops_at_texts_and_at_tokens(tabby: Server, model: HashedModel) -> None:
    made = model.greedy(model.encode(PROMPT), 20)
    text = text_of(stream(tabby, max_tokens=20))
    stop = text[4:7]
    assert text_of(stream(tabby, max_tokens=20, stop=stop)) == text[: text.index(stop)]
    first = made.index(made[4])
    told = stream(tabby, max_tokens=20, stop=[made[4]])
    assert text_of(told) == model.bytes_of(made[:first]).decode(errors="replace")
    assert choices(told)[-1]["finish_reason"] == "stop"


def test_tabby_says_before_a_stream_that_a_prompt_is_too_long(model: HashedModel) -> None:
    with serving(Tabby(model, max_seq_len=10)) as server:
        answer = post(server, prompt=PROMPT * 5, stream=True)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
    with serving(Tabby(model, max_seq_len=10, age="2025")) as server:
        answer = post(server, prompt=PROMPT * 5, stream=True)
        assert answer.status_code == 200
        assert "[DONE]" not in answer.text
        assert set(events(answer)[0]) == {"error"}


def test_an_older_tabby_ends_its_lines_in_crlf_and_tells_all_each_time(
    model: HashedModel,
) -> None:
    with serving(Tabby(model, age="2025")) as server:
        answer = post(server, prompt=PROMPT, stream=True, max_tokens=4, temperature=0)
        assert answer.content.count(b"\r\n\r\n") == len(events(answer))
        told = events(answer)[0]
        assert told["model"] == "tiny-exl3"
        assert told["choices"][0]["logprobs"] is None
        assert told["usage"]["total_tokens"] == 0
        assert events(answer)[-2]["usage"]["completion_tokens"] == 4


def test_tabby_pings_between_events(model: HashedModel) -> None:
    with serving(Tabby(model, ping=True)) as server:
        answer = post(server, prompt=PROMPT, stream=True, max_tokens=4, temperature=0)
        assert ": ping" in answer.text
        assert events(answer)[-1] == "[DONE]"


def test_tabby_takes_several_prompts(tabby: Server) -> None:
    told = stream(tabby, ["a = ", "b = "])
    assert {choice["index"] for choice in choices(told)} == {0, 1}
    assert told.count("[DONE]") == 1


def test_tabby_tells_the_same_in_one_piece(tabby: Server) -> None:
    whole = post(tabby, prompt=PROMPT, max_tokens=8, temperature=0).json()
    assert whole["choices"][0]["text"] == text_of(stream(tabby))
    assert (whole["model"], whole["usage"]) == ("tiny-exl3", None)


# The server itself, and what is known of a request


def test_a_request_is_kept_as_it_came(vllm: Server) -> None:
    post(vllm, prompt="a", max_tokens=1)
    (asked,) = vllm.requests
    assert (asked.method, asked.path) == ("POST", COMPLETIONS)
    assert asked.body == {"prompt": "a", "max_tokens": 1}
    assert asked.headers["content-type"] == "application/json"
    assert asked.bearer == "secret"
    assert asked.over.wait(5)
    assert not asked.closed_early


def test_one_connection_serves_several_requests(vllm: Server) -> None:
    with httpx2.Client(headers=KEY) as client:
        for _ in range(3):
            client.post(vllm.url + COMPLETIONS, json={"prompt": "a"}).raise_for_status()
    assert vllm.connections == 1


def test_what_is_not_http_is_refused(vllm: Server) -> None:
    for said in (b"hello\r\n\r\n", b"GET /health HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", httpx2.URL(vllm.url).port)) as connection:
            connection.sendall(said)
            assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert not vllm.requests


def test_a_client_that_goes_is_noticed(vllm: Server) -> None:
    vllm.fault = faults.Hangs(after=2)
    body = {"prompt": PROMPT, "stream": True}
    with CLIENT.stream("POST", vllm.url + COMPLETIONS, json=body, headers=KEY) as response:
        next(response.iter_lines())
    (asked,) = vllm.requests
    assert asked.over.wait(5)
    assert asked.closed_early


# Faults


def plays(server: Server, fault: Fault) -> httpx2.Response:
    server.fail(fault)
    return post(server, prompt=PROMPT, stream=True, max_tokens=6, temperature=0)


def test_a_fault_meets_so_many_requests_or_all(vllm: Server) -> None:
    def statuses(count: int) -> list[int]:
        return [post(vllm, prompt="a").status_code for _ in range(count)]

    vllm.fail(faults.Status(503), times=2)
    vllm.fail(faults.Status(500), path="/version")
    assert statuses(3) == [503, 503, 200]
    assert get(vllm, "/version").status_code == 500
    vllm.fault = faults.Status(500)
    assert vllm.fault == faults.Status(500)
    assert statuses(3) == [500, 500, 500]
    vllm.fault = None
    assert statuses(1) == [200]


@pytest.mark.parametrize("code", [429, 500, 503])
def test_errors_have_the_dialects_form(vllm: Server, tabby: Server, code: int) -> None:
    answer = plays(vllm, faults.Status(code))
    assert (answer.status_code, answer.json()["error"]["code"]) == (code, code)
    assert "retry-after" not in answer.headers
    answer = plays(tabby, faults.Status(code))
    assert (answer.status_code, answer.json()) == (code, {"detail": "Not now."})


def test_a_server_says_when_to_ask_again(vllm: Server) -> None:
    assert plays(vllm, faults.Status(429, "3")).headers["retry-after"] == "3"
    date = faults.date_in(2, now=0)
    assert date == "Thu, 01 Jan 1970 00:00:02 GMT"
    assert plays(vllm, faults.Status(503, date)).headers["retry-after"] == date


def test_nobody_listens_for_a_while(vllm: Server) -> None:
    with vllm.refusing(), pytest.raises(httpx2.ConnectError):
        post(vllm, prompt="a")
    assert post(vllm, prompt="a").status_code == 200


@pytest.mark.parametrize("fault", [faults.Silent(), faults.SlowStart(60)])
def test_a_server_says_nothing(vllm: Server, fault: Fault) -> None:
    vllm.fail(fault)
    with pytest.raises(httpx2.ReadTimeout):
        CLIENT.post(vllm.url + COMPLETIONS, json={"prompt": "a"}, headers=KEY, timeout=0.2)
    assert vllm.requests[0].over.wait(5)
    assert vllm.requests[0].closed_early


def test_a_slow_server_answers_in_the_end(vllm: Server) -> None:
    assert plays(vllm, faults.SlowStart(0.05)).status_code == 200
    assert events(plays(vllm, faults.SlowEvents(0.01)))[-1] == "[DONE]"


@pytest.mark.parametrize("fault", [faults.Hangs(after=1), faults.SlowEvents(60)])
def test_a_stream_stands_still(vllm: Server, fault: Fault) -> None:
    vllm.fail(fault)
    body = {"prompt": PROMPT, "stream": True}
    request = CLIENT.stream("POST", vllm.url + COMPLETIONS, json=body, headers=KEY, timeout=0.2)
    with request as response, pytest.raises(httpx2.ReadTimeout):
        response.read()
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (faults.Cut(after=2), httpx2.RemoteProtocolError),
        (faults.Cut(after=2, within_line=True), httpx2.RemoteProtocolError),
        (faults.Cut(after=0), httpx2.RemoteProtocolError),
        (faults.Cut(after=2, reset=True), httpx2.ReadError),
        (faults.Cut(after=2, reset=True, within_line=True), httpx2.ReadError),
    ],
)
def test_a_stream_is_cut(vllm: Server, fault: faults.Cut, error: type[Exception]) -> None:
    vllm.fail(fault)
    body = {"prompt": PROMPT, "stream": True}
    got = ""
    request = CLIENT.stream("POST", vllm.url + COMPLETIONS, json=body, headers=KEY)
    with request as response, pytest.raises(error):
        for part in response.iter_text():
            got += part
    assert got.count("\n\n") == fault.after
    assert got.endswith("\n\n") is (not fault.within_line and fault.after > 0)
    assert post(vllm, prompt="a").status_code == 200


def test_an_answer_that_is_no_stream_is_cut_in_half(vllm: Server) -> None:
    vllm.fail(faults.Cut())
    with pytest.raises(httpx2.RemoteProtocolError):
        get(vllm, "/v1/models")


def test_a_page_for_people_comes(vllm: Server) -> None:
    answer = plays(vllm, faults.Page())
    assert (answer.status_code, answer.headers["content-type"]) == (502, "text/html; charset=utf-8")
    assert plays(vllm, faults.Page(200)).text.startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    "data",
    [faults.A_LIST, faults.NULL_CHOICES, faults.NO_TEXT, faults.OTHER_TYPES],
)
def test_an_event_has_another_shape(vllm: Server, data: str) -> None:
    told = events(plays(vllm, faults.Event(data)))
    assert told[1] == json.loads(data)
    assert (len(told), told[-1]) == (7, "[DONE]")


def test_an_event_is_no_json(tabby: Server) -> None:
    answer = plays(tabby, faults.Event(faults.NOT_JSON, after=2))
    lines = [line for line in answer.text.split("\n") if line]
    assert lines[2] == "data: " + faults.NOT_JSON
    with pytest.raises(ValueError):
        events(answer)


def test_an_error_stands_in_the_stream(vllm: Server, tabby: Server) -> None:
    told = events(plays(vllm, faults.ErrorInStream(after=2)))
    assert told[2]["error"]["code"] == 500
    assert told[3:] == ["[DONE]"]
    told = events(plays(tabby, faults.ErrorInStream(after=2)))
    assert set(told[2]) == {"error"}
    assert len(told) == 3


def test_the_end_is_not_said(vllm: Server, tabby: Server) -> None:
    for server in (vllm, tabby):
        told = events(plays(server, faults.NoDone()))
        assert told[-1]["choices"][0]["finish_reason"] == "length"


def test_the_answer_is_elsewhere(vllm: Server) -> None:
    answer = plays(vllm, faults.Redirect("http://127.0.0.1:9/v1/completions"))
    assert (answer.status_code, answer.headers["location"][:18]) == (302, "http://127.0.0.1:9")


def test_a_line_does_not_end(vllm: Server) -> None:
    vllm.fail(faults.EndlessLine())
    got = 0
    body = {"prompt": PROMPT, "stream": True}
    with CLIENT.stream("POST", vllm.url + COMPLETIONS, json=body, headers=KEY) as response:
        for part in response.iter_bytes():
            assert b"\n" not in part
            got += len(part)
            if got > 4_000_000:
                break
    assert vllm.requests[0].over.wait(5)
    assert vllm.requests[0].closed_early


def test_the_type_is_not_that_of_a_stream(vllm: Server) -> None:
    answer = plays(vllm, faults.OtherType())
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html")
    assert answer.text.endswith("data: [DONE]\n\n")
    assert plays(vllm, faults.NotAStream()).json() == {"choices": []}


@pytest.mark.parametrize("dialect", [Vllm, Tabby])
def test_a_server_ends_with_clients_still_there(model: HashedModel, dialect: Any) -> None:
    made: Dialect = dialect(model)
    with serving(made) as server:
        server.fault = faults.Silent()
        connection = socket.create_connection(("127.0.0.1", httpx2.URL(server.url).port))
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
    with connection, pytest.raises(ConnectionError):
        if not connection.recv(1):
            raise ConnectionResetError
