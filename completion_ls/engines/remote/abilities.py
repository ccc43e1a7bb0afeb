"""What a server can do, as far as it was tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Abilities:
    """Found once, when the engine begins (`probe.py`); `completion-ls doctor` shows it."""

    dialect: Literal["llama.cpp", "openai"]
    software: str
    """What runs there, as far as it can be told: "llama.cpp", "vLLM 0.11.2", "TabbyAPI", or ""."""
    model: str
    """Its name there."""
    max_context: int | None
    """Tokens of prompt and output together; None where it does not say."""
    slots: int | None
    """Prompts that are kept, each in a slot that a request may name; None where there are no such slots."""
    same_tokens: bool | None
    """Whether its tokenizer makes the same tokens of a text as ours; None where that cannot be asked."""
    token_prompts: bool
    """Whether a prompt may be a list of token ids."""
    token_ids: bool
    """Whether it tells the ids of the tokens that it has chosen."""
    logprobs: int
    """Most probabilities that it tells for a token, the chosen one among them; 0 is none at all."""
    counts_reuse: bool
    """Whether it says how many tokens of a prompt it had already."""
    reuses: bool | None
    """Whether a prompt that it had just read cost less the second time; None where it does not count."""
    fills_in: Literal["infill", "suffix", ""]
    """How it takes the text below the cursor by itself, in a request's own field: for models whose FIM
    tokens nobody here knows, since it costs more at each key."""
    fim_format: str = ""
    """The FIM format (prompt/formats.py) whose tokens its tokenizer has, where it is another one than ours
    and could be asked; empty where none is found."""

    @property
    def by_tokens(self) -> bool:
        """Whether prompts are sent, and answers taken, as tokens, and an unfinished word is covered as by a
        local engine; else all goes as text, and the word is healed."""
        speaks_tokens = self.token_prompts and self.token_ids and self.logprobs > 0
        return speaks_tokens and self.same_tokens is True
