"""The server that computes: whether code and key may go to its address, and what it can do.

The key itself is never printed, and what the server is asked holds nothing of the user's.
"""

from __future__ import annotations

from tokenizers import Tokenizer

from completion_ls.config.api_key import API_KEY_VARIABLE
from completion_ls.config.settings import RemoteSettings
from completion_ls.doctor.lines import Notes
from completion_ls.engines.remote import keys, probe
from completion_ls.engines.remote.abilities import Abilities
from completion_ls.engines.remote.errors import ServerError


def address(notes: Notes, remote: RemoteSettings) -> None:
    """By the settings alone; nothing is sent."""
    try:
        key = keys.find(remote.url)
        keys.check(remote.url, key.value if key else None)
        is_here = keys.is_this_machine(remote.url)
    except ServerError as error:
        notes.failed("address", str(error))
        return
    if is_here or remote.url.lower().startswith("https:"):
        notes.ok("address", remote.url)
    else:
        notes.remark(
            "address",
            f"{remote.url} is plain HTTP to another machine: your code goes there in clear text, for "
            "everybody on the way to read. Use https, or a tunnel to a port of this machine.",
        )
    if key:
        notes.ok("key", f"there is one in {key.source}; a daemon that runs may have had another")
    else:
        name = keys.user(remote.url)
        notes.ok("key", f"none, neither in {API_KEY_VARIABLE} nor for {name} in the keyring")


def cannot_be_tried(notes: Notes) -> None:
    """Without a tokenizer."""
    notes.remark(
        "server",
        "Not tried: that needs the tokenizer of model.name, which must be the model that the server has. "
        "`completion-ls models pull` fetches it alone.",
    )


def look(
    notes: Notes, remote: RemoteSettings, tokenizer: Tokenizer, wanted: int = 0
) -> Abilities | None:
    """What the server can do, tried now; None where it is of no use. `wanted` are the tokens that a prompt
    and its text may have by the settings."""
    try:
        found = probe.look(remote, tokenizer)
    except ServerError as error:
        notes.failed("server", str(error))
        return None
    notes.ok(
        "server", f"{found.software or 'of a make that it does not tell'}; model {found.model}"
    )
    if found.max_context is None:
        notes.remark(
            "context",
            "It does not say how many tokens it holds; if it refuses prompts, lower prompt.max_tokens.",
        )
    elif found.max_context < wanted:
        notes.remark(
            "context",
            f"It holds {found.max_context:,} tokens, and prompt.max_tokens and completion.max_tokens are "
            f"{wanted:,} together: prompts are cut to what fits.",
        )
    else:
        notes.ok("context", f"{found.max_context:,} tokens for prompt and text together")
    _tokens(notes, found)
    _cache(notes, found)
    _fills_in(notes, found)
    return found


def _tokens(notes: Notes, found: Abilities) -> None:
    if found.same_tokens:
        notes.ok("vocabulary", "it makes the same tokens of a text as model.name")
    else:
        asked = "makes other tokens of a text than model.name does"
        why = "does not say which tokens it makes of a text" if found.same_tokens is None else asked
        notes.remark(
            "vocabulary",
            f"It {why}, so prompts go there as text. Set model.name to the model that the server has.",
        )
    if found.token_prompts and found.token_ids:
        notes.ok("tokens", "prompts may go there as tokens, and answers come as such")
    else:
        what = "tell the tokens of its answers" if found.token_prompts else "take prompts as tokens"
        notes.remark("tokens", f"It does not {what}, so prompts go there as text.")
    if found.logprobs:
        notes.ok("probabilities", f"of up to {found.logprobs} tokens at each place")
    else:
        notes.remark(
            "probabilities",
            "It tells none, so completion.show_above has no effect: ghost text is shown however sure the "
            "model is.",
        )
    if found.by_tokens:
        notes.ok("unfinished words", "their most probable end is found, as an engine here finds it")
    else:
        notes.remark(
            "unfinished words",
            "They are taken off the prompt, and only text that goes on from what was typed is shown: that "
            "needs more tokens, and finds less.",
        )


def _cache(notes: Notes, found: Abilities) -> None:
    if found.reuses:
        notes.ok("prefix cache", "a prompt that it has just read costs less the second time")
    elif found.reuses is None:
        notes.ok("prefix cache", "it does not say whether it keeps what it has read of a prompt")
    else:
        notes.remark(
            "prefix cache",
            "It reads the whole prompt at every key. Turn prefix caching on in the server "
            "(vLLM: --enable-prefix-caching).",
        )
    if found.slots is not None:
        plural = "" if found.slots == 1 else "s"
        notes.ok("slots", f"{found.slots} prompt{plural} kept, for windows and documents together")


def _fills_in(notes: Notes, found: Abilities) -> None:
    how = {
        "infill": "it has a way to fill in between the text above and below by itself (/infill)",
        "suffix": "it takes the text below by itself (a request's suffix)",
        "": "it leaves the text below to the prompt, which model.format says how to write",
    }
    notes.ok("filling in", how[found.fills_in])
