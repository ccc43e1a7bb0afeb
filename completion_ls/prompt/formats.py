"""How the text around the cursor is put into one prompt: a table of formats, by the model's tokens.

A format is three marks: one before the prefix, one before the suffix, one before the text to be
written. A mark is a control token, or a text with control tokens in it; blanks and line ends belong
to it only where they stand in the table. "Second hand" in a source says that a page about the
model was read and not the model's own card, paper or code.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class FimFormat:
    """One row of the table."""

    name: str
    prefix: str
    suffix: str
    middle: str
    """Empty where the text to be written goes on from the prefix, which then stands last."""
    suffix_first: bool = False
    within: tuple[str, ...] = ()
    """The control tokens in the marks, where a mark is not just one."""
    tells: tuple[str, ...] = ()
    """Other tokens by which the tokenizer is told from those of models with another format."""
    stops: tuple[str, ...] = ()
    """Tokens that end the middle, besides those above and the model's own end of text."""
    repository: str = ""
    """Stands before other files; `{}` is the repository's name."""
    file: str = "{}\n"
    """Stands before each other file; `{}` is its path."""
    named: str = ""
    """The prompt's first mark where other files stand before it; `{}` is this file's path. Where it
    is empty other files are text, at the beginning of the prefix."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Control tokens that the tokenizer must have."""
        marks = tuple(mark for mark in (self.prefix, self.suffix, self.middle) if mark)
        return (self.within or marks) + self.tells

    @property
    def control(self) -> tuple[str, ...]:
        """All control tokens of the row; none may come from a text, and each ends one."""
        return self.needs + self.stops


@dataclass(frozen=True, slots=True)
class Repository:
    """Other files of a repository, those first that change least, and the path of this one."""

    name: str
    path: str
    files: tuple[tuple[str, str], ...]
    """Path and text."""


FIM_FORMATS = (
    # Google's page "CodeGemma formatting and system instructions": no blanks, and the file separator
    # stands between files. How these are named is not said there.
    FimFormat(
        "codegemma",
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        tells=("<|file_separator|>",),
        stops=("<eos>", "<end_of_turn>"),
    ),
    # QwenLM/Qwen2.5-Coder, examples/Qwen2.5-Coder-repolevel-fim.py, whose list of ids that end the
    # middle has the FIM tokens too. Qwen3-Coder and later have the same names for other ids, and so
    # has Granite 4 (second hand).
    FimFormat(
        "qwen",
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        stops=("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|endoftext|>", "<|im_end|>"),
        repository="<|repo_name|>{}\n",
        file="<|file_sep|>{}\n",
        named="<|file_sep|>{}\n<|fim_prefix|>",
    ),
    # README of QwenLM/Qwen3-Coder, "Fill in the middle": the same as the message of a user.
    FimFormat(
        "qwen-chat",
        "<|im_start|>system\nYou are a code completion assistant.<|im_end|>\n"
        "<|im_start|>user\n<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|><|im_end|>\n<|im_start|>assistant\n",
        within=("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|im_start|>", "<|im_end|>"),
        stops=("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|endoftext|>"),
    ),
    # QwenLM/CodeQwen1.5 (now the first versions of Qwen2.5-Coder): the README, which has <reponame>, and
    # examples/CodeQwen1.5-base-repolevel-fim.py, which has the rest and <repo_name>.
    FimFormat(
        "codeqwen",
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        tells=("<reponame>", "<file_sep>"),
        stops=("<fim_pad>", "<|endoftext|>", "<|im_end|>"),
        repository="<reponame>{}\n",
        file="<file_sep>{}\n",
        named="<file_sep>{}\n<fim_prefix>",
    ),
    # Paper arXiv 2402.19173, section 5.1, second hand (a summary of it and three clients that agree);
    # the tokens are those of special_tokens_map.json. The path stands behind the first FIM token.
    FimFormat(
        "starcoder2",
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        tells=("<repo_name>", "<file_sep>"),
        stops=("<fim_pad>", "<|endoftext|>"),
        repository="<repo_name>{}",
        file="<file_sep>{}\n",
        named="<file_sep><fim_prefix>{}\n",
    ),
    # Card of bigcode/starcoder. Granite's code models are asked in the same way (their makers in the
    # discussions of ibm-granite/granite-code-models); Granite 3.3 has the same tokens, second hand
    # (its tokenizer_config.json, as quoted where ggml-org/llama.cpp learnt them).
    FimFormat(
        "starcoder",
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        stops=("<fim_pad>", "<filename>", "<reponame>", "<|endoftext|>"),
    ),
    # Card of JetBrains/Mellum-4b-base, second hand (quoted commit by commit in a client's tests);
    # arXiv 2510.05788 has the order too. Its tokens are named as StarCoder's, so only a trial, or
    # `model.format`, tells it apart.
    FimFormat(
        "mellum",
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        suffix_first=True,
        tells=("<filename>",),
        stops=("<fim_pad>", "<reponame>", "<|endoftext|>", "<|im_end|>"),
        file="<filename>{}\n",
        named="<filename>{}\n<fim_suffix>",
    ),
    # Card of bigcode/santacoder and its special_tokens_map.json: these have hyphens.
    FimFormat(
        "santacoder",
        "<fim-prefix>",
        "<fim-suffix>",
        "<fim-middle>",
        stops=("<fim-pad>", "<|endoftext|>"),
    ),
    # README of deepseek-ai/DeepSeek-Coder, "Code Insertion" and "Repository Level Code Completion"
    # (other files are named in a comment there, without FIM). DeepSeek-Coder-V2 is the same.
    FimFormat(
        "deepseek",
        "<｜fim▁begin｜>",
        "<｜fim▁hole｜>",
        "<｜fim▁end｜>",
        stops=("<｜end▁of▁sentence｜>", "<|EOT|>"),
        file="#{}\n",
    ),
    # meta-llama/codellama, `infilling_prompt_tokens`: the prefix is read with a blank in front, as the
    # beginning of a text, the suffix and the middle are not. The tokens spell a blank; none is added.
    FimFormat("codellama", "▁<PRE>", "▁<SUF>", "▁<MID>", stops=("▁<EOT>",)),
    # mistralai/mistral-common, `encode_fim`, made for Codestral; its [MIDDLE] is not used. Mistral's other
    # models (Devstral) have the tokens too, and whether they were trained for them was not read. How
    # files are named: second hand (continuedev/continue).
    FimFormat(
        "codestral",
        "[PREFIX]",
        "[SUFFIX]",
        "",
        suffix_first=True,
        stops=("[MIDDLE]", "</s>"),
        file="+++++ {}\n",
    ),
    # Paper of ByteDance-Seed/Seed-Coder-8B-Base (arXiv 2506.03524), section 2.2.6; its end of text
    # second hand (clients).
    FimFormat(
        "seed-coder",
        "<[fim-prefix]>",
        "<[fim-suffix]>",
        "<[fim-middle]>",
        suffix_first=True,
        stops=("<[end▁of▁sentence]>",),
    ),
)

_TASK = (
    "A piece of this file is missing. Where it belongs stands <MISSING>. Write it, in full and "
    "nothing else.\n\n"
)
_PLACE = "<MISSING>"

# For models that know nothing but conversations: the user shows the file, and the reply has begun
# already, with the lines up to the cursor.
CHAT_FORMATS = (
    # README of QwenLM/Qwen2.5-Coder (ChatML), and of all that took it over.
    FimFormat(
        "chatml",
        "<|im_start|>user\n" + _TASK,
        _PLACE,
        "<|im_end|>\n<|im_start|>assistant\n",
        within=("<|im_start|>", "<|im_end|>"),
        stops=("<|endoftext|>",),
    ),
    # Card of meta-llama/Meta-Llama-3-8B-Instruct, second hand (the template as several trainers have it).
    FimFormat(
        "llama3",
        "<|start_header_id|>user<|end_header_id|>\n\n" + _TASK,
        _PLACE,
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        within=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        stops=("<|end_of_text|>", "<|eom_id|>"),
    ),
    # Google's page "Gemma formatting and system instructions".
    FimFormat(
        "gemma",
        "<start_of_turn>user\n" + _TASK,
        _PLACE,
        "<end_of_turn>\n<start_of_turn>model\n",
        within=("<start_of_turn>", "<end_of_turn>"),
        stops=("<eos>",),
    ),
)


def fitting(tokenizer: Tokenizer) -> list[FimFormat]:
    """The FIM formats whose tokens the tokenizer has, the likeliest first; none of a conversation,
    whose tokens models without a use for it have too."""
    return [fim for fim in FIM_FORMATS if not fim.within and not _missing(fim, tokenizer)]


def find_format(name: str, tokenizer: Tokenizer) -> FimFormat | None:
    """The format of this name, or with `auto` the likeliest; None is a plain text.

    Raises ValueError where the tokenizer lacks tokens of the format that was named.
    """
    match name:
        case "plain":
            return None
        case "auto":
            return next(iter(fitting(tokenizer)), None)
        case "chat":
            for chat in CHAT_FORMATS:
                if not _missing(chat, tokenizer):
                    return chat
            raise ValueError(
                "model.format is 'chat', but the model's tokenizer has none of the tokens of "
                "ChatML, Llama 3 and Gemma. Use 'auto' or 'plain'."
            )
    fim = next(fim for fim in FIM_FORMATS if fim.name == name)
    if missing := _missing(fim, tokenizer):
        raise ValueError(
            f"model.format is {name!r}, but the model's tokenizer has no token {missing[0]!r}. "
            "Use 'auto' or 'plain'."
        )
    return fim


def _missing(fim: FimFormat, tokenizer: Tokenizer) -> list[str]:
    return [token for token in fim.needs if tokenizer.token_to_id(token) is None]
