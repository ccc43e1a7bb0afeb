"""What a server can do: it is tried, with a text of our own, since neither name nor version say so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial

from tokenizers import Tokenizer

from completion_ls.config.settings import RemoteSettings
from completion_ls.decode.vocabulary import inner_tokenizer
from completion_ls.engines.remote import keys, llama_cpp, openai, told
from completion_ls.engines.remote.abilities import Abilities
from completion_ls.engines.remote.ask import Read
from completion_ls.engines.remote.covering import MORE
from completion_ls.engines.remote.errors import Refused, ServerError
from completion_ls.engines.remote.http import Client, Json
from completion_ls.prompt.formats import FIM_FORMATS

TEXT = """\
from pathlib import Path


def größe(folder: Path, *, limit_kb: int = 1_024) -> dict[str, float]:
    \"\"\"Sizes of files – in KiB – that are larger than the limit.\"\"\"
\tfound = {}
    for file in sorted(folder.rglob("*.py")):
        if (size := file.stat().st_size / 1024) > limit_kb:
            found[file.name] = round(size, 2)  # naïve 漢字 🙂
    return found
"""
"""Of all kinds of characters."""
BELOW = "\nprint(größe(Path('.'), limit_kb=3))\n"
LONG = 3
"""So many times the text is long enough that servers which keep prompts in large blocks keep some of it."""
WAYS: tuple[tuple[str, str, Json], ...] = (
    ("/tokenize", "prompt", {"add_special_tokens": False}),
    ("/v1/token/encode", "text", {"add_bos_token": False}),
    ("/tokenize", "content", {"add_special": False}),
)
"""Where tokenizers are asked: vLLM's and SGLang's, TabbyAPI's, llama.cpp's."""
MOST_SLOTS = 4096
LOGPROBS = (MORE, 20, 5, 1)
"""Numbers of probabilities that are tried, the most first."""


def client_of(settings: RemoteSettings) -> Client:
    """A client with the user's key. Raises ServerError where address and key are not to be used."""
    key = keys.api_key(settings.url)
    keys.check(settings.url, key)
    return Client(settings.url, key, settings.timeout_s)


def look(settings: RemoteSettings, tokenizer: Tokenizer) -> Abilities:
    """Try what the server can do; `tokenizer` is ours. Raises ServerError."""

    async def looked() -> Abilities:
        client = client_of(settings)
        try:
            return await probe(client, settings.model, tokenizer)
        finally:
            await client.close()

    return asyncio.run(looked())


async def probe(client: Client, model: str, tokenizer: Tokenizer) -> Abilities:
    """Try it with a client; `model` is what the server calls the model, empty for the one it has. Raises
    ServerError."""
    ours = inner_tokenizer(tokenizer).encode(TEXT, add_special_tokens=False).ids
    try:
        props = await client.get("/props")
        if isinstance(props, dict) and "default_generation_settings" in props:
            return await _llama_cpp(client, props, ours)
        return await _openai(client, model, ours)
    except told.ODD as error:
        raise ServerError(
            f"The server {client.name} answers as none that we know; check remote.url.", lasts=True
        ) from error


async def _llama_cpp(client: Client, props: Json, ours: Sequence[int]) -> Abilities:
    tokenize = partial(_tokenized, client, WAYS[2:])
    same = _same(ours, await tokenize(TEXT))
    asked = {"prompt": list(ours) if same else TEXT, "n_predict": 1, "temperature": 0}
    await client.post("/completion", asked)
    timings = (await client.post("/completion", asked))["timings"]
    infill = {"input_prefix": "def add(", "input_suffix": "return a + b", "n_predict": 1}
    return Abilities(
        dialect="llama.cpp",
        software="llama.cpp",
        model=llama_cpp.name_of(props),
        max_context=told.size(props["default_generation_settings"]["n_ctx"]),
        slots=told.size(props["total_slots"], MOST_SLOTS),
        same_tokens=same,
        token_prompts=True,
        token_ids=True,
        logprobs=MORE,
        counts_reuse=True,
        reuses=told.count(timings.get("cache_n", 0)) > 0,
        fills_in="infill" if await _takes(client, "/infill", infill) else "",
        fim_format="" if same else await _fim_format(tokenize),
    )


async def _openai(client: Client, wanted: str, ours: Sequence[int]) -> Abilities:
    listed = await client.get("/v1/models")
    if listed is None:
        raise ServerError(
            f"The server {client.name} has no /v1/models, so it is none that we know; check remote.url.",
            lasts=True,
        )
    known = [one for one in listed["data"] if told.name(one["id"])]
    entries = [one for one in known if not wanted or one["id"] == wanted]
    if not entries:
        raise ServerError(
            f"The server {client.name} has no model {wanted or 'at all'!r}; it has "
            f"{', '.join(one['id'] for one in known[:5]) or 'none'}. Name one in remote.model.",
            lasts=True,
        )
    entry = entries[0]
    model: str = entry["id"]
    asked: Json = {"model": model, "prompt": TEXT, "max_tokens": 1, "temperature": 0}
    plain = await _completion(client, asked)
    tokenize = partial(_tokenized, client, WAYS, model=model)
    same = _same(ours, await tokenize(TEXT))
    token_prompts = bool(same) and await _takes(client, openai.PATH, asked | {"prompt": list(ours)})
    token_ids = await _tells_ids(client, asked)
    names = {"return_tokens_as_token_ids": True} if token_ids else {}
    again = asked | {"prompt": list(ours) * LONG if token_prompts else TEXT * LONG}
    await _read_of(client, again)
    repeated = await _read_of(client, again)
    return Abilities(
        dialect="openai",
        software=await _software(client, told.name(entry.get("owned_by"))),
        model=model,
        max_context=await _max_context(client, entry),
        slots=None,
        same_tokens=same,
        token_prompts=token_prompts,
        token_ids=token_ids,
        logprobs=await _logprobs(client, asked | names),
        counts_reuse=repeated is not None,
        reuses=repeated.reused > 0 if repeated else None,
        fills_in="suffix" if await _reads_suffix(client, asked, plain) else "",
        fim_format="" if same else await _fim_format(tokenize),
    )


async def _read_of(client: Client, asked: Json) -> Read | None:
    """What a streamed answer says of its prompt's tokens."""
    found = None
    body = asked | {"stream": True, "stream_options": {"include_usage": True}}
    try:
        async with aclosing(client.events(openai.PATH, body, {})) as events:
            async for event in events:
                found = openai.read_of(event) or found
    except Refused:
        return None
    return found


async def _completion(client: Client, body: Json) -> Json:
    answer = await client.post(openai.PATH, body)
    if answer is None:
        raise ServerError(
            f"The server {client.name} has no {openai.PATH}, which is needed; one that knows only "
            "chats cannot complete code.",
            lasts=True,
        )
    answer["choices"][0]["text"]  # of this shape
    found: Json = answer
    return found


async def _takes(client: Client, path: str, body: Json) -> bool:
    try:
        return await client.post(path, body) is not None
    except Refused:
        return False


async def _logprobs(client: Client, asked: Json) -> int:
    """How many probabilities it tells for a token."""
    for number in LOGPROBS:
        try:
            answer = await _completion(client, asked | {"logprobs": number})
        except Refused:
            continue
        part = openai.part_of(answer["choices"][0])
        if part is None or not part.logprobs:
            return 0
        return max(1, min(number, len(part.tops[0]))) if part.tops else 1
    return 0


async def _tells_ids(client: Client, asked: Json) -> bool:
    try:
        body = asked | {"logprobs": 1, "return_tokens_as_token_ids": True}
        part = openai.part_of((await _completion(client, body))["choices"][0])
    except Refused:
        return False
    return part is not None and bool(part.tokens)


async def _reads_suffix(client: Client, asked: Json, plain: Json) -> bool:
    """Some refuse a suffix, and some take it and do not read it."""
    try:
        answer = await _completion(client, asked | {"suffix": BELOW})
    except Refused:
        return False
    count, without = (_prompt_tokens(one) for one in (answer, plain))
    return count is not None and without is not None and count > without


def _prompt_tokens(answer: Json) -> int | None:
    found = (answer.get("usage") or {}).get("prompt_tokens")
    return None if found is None else told.count(found)


async def _tokenized(
    client: Client, ways: Sequence[tuple[str, str, Json]], text: str, *, model: str = ""
) -> list[int] | None:
    """What its tokenizer makes of a text; None where it cannot be asked."""
    for path, name, options in ways:
        body = {"model": model, name: text, **options} if model else {name: text, **options}
        try:
            answer = await client.post(path, body)
        except Refused:
            continue
        # None of a text that has some: it has read another field.
        told = answer.get("tokens") if isinstance(answer, dict) else None
        if isinstance(told, list) and told:
            return [one["id"] if isinstance(one, dict) else one for one in told]
    return None


async def _fim_format(tokenize: Callable[[str], Awaitable[list[int] | None]]) -> str:
    """The likeliest format of whose marks its tokenizer makes one token each."""
    known: dict[str, bool] = {}
    for fim in FIM_FORMATS:
        for mark in fim.needs:
            if mark not in known:
                known[mark] = len(await tokenize(mark) or ()) == 1
            if not known[mark]:
                break
        else:
            if not fim.within:
                return fim.name
    return ""


def _same(ours: Sequence[int], theirs: list[int] | None) -> bool | None:
    """Whether these are the same tokens, but for one that is put in front of a text."""
    return None if theirs is None else theirs in (list(ours), [*theirs[:1], *ours])


async def _software(client: Client, owner: str) -> str:
    try:
        said = await client.get("/version")
    except ServerError:
        said = None
    if version := told.name(said.get("version") if isinstance(said, dict) else None):
        return f"vLLM {version}"
    return {"tabbyAPI": "TabbyAPI", "sglang": "SGLang", "llamacpp": "llama.cpp"}.get(owner, owner)


async def _max_context(client: Client, entry: Json) -> int | None:
    found = entry.get("max_model_len") or (entry.get("meta") or {}).get("n_ctx")
    if not found:
        said = await client.get("/v1/model")
        found = ((said or {}).get("parameters") or {}).get("max_seq_len")
    return told.size(found)
