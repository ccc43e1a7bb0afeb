"""All settings with their types, defaults and meaning. The README's table is made from this file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Lines = Literal["auto", "single", "multi"]
"""How many lines a suggestion may have."""


class Section(BaseModel):
    """What all sections share: unknown keys are errors, values are checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSettings(Section):
    """Which model answers."""

    name: Annotated[str, Field(min_length=1)] = "smollm2-135m-instruct"
    """A name from `completion-ls models list`, a Hugging Face folder, a .gguf file, or a repository
    of the Hugging Face hub that was pulled (`owner/name`, `owner/name@revision`)."""
    format: Literal[
        "auto",
        "plain",
        "chat",
        "codegemma",
        "qwen",
        "qwen-chat",
        "codeqwen",
        "starcoder2",
        "starcoder",
        "mellum",
        "santacoder",
        "deepseek",
        "codellama",
        "codestral",
        "seed-coder",
    ] = "auto"
    """How prefix and suffix are put into the prompt (FIM format); `auto` looks at the tokenizer, and
    on a card tries which format suits the model, and whether it does better without. `chat` is for
    models without FIM that know only conversations."""


class EngineSettings(Section):
    """How it is computed."""

    kind: Literal["torch_cpu", "exllamav2", "remote"] = "torch_cpu"
    """What computes: `torch_cpu` needs no graphics card, `exllamav2` an NVIDIA one; `remote` is a server
    (`remote.url`)."""
    weights: Literal["int8", "int4", "bf16", "float32"] = "int8"
    """How `torch_cpu` keeps weights: fewer bits are read faster, and int4 costs some quality."""
    threads: Annotated[int, Field(ge=0, le=256)] = 0
    """CPU threads of `torch_cpu`; 0 measures how many are best."""
    prefill_chunk: Annotated[int, Field(ge=16, le=4096)] = 128
    """Prompt tokens per step; a newer keystroke waits for one step at most. `exllamav2` takes whole
    pages: the next multiple of 256, at most 2048."""
    kv_memory_mb: Annotated[int, Field(ge=16)] = 512
    """Most memory of `torch_cpu` for KV caches of all documents together, in MiB."""
    kv_cache: Literal["fp16", "q8", "q6", "q4"] = "q8"
    """How `exllamav2` keeps the KV of the model: fewer bits leave memory for more context, but
    then a draft can tip a near tie."""
    context: Annotated[int, Field(ge=2048, le=1048576, multiple_of=256)] = 16384
    """Tokens of KV that `exllamav2` keeps on the card, of all documents together: a multiple of 256,
    2048 at least, and no more than the model and the draft model know positions. Longer prompts are
    cut."""
    prefill_stream: Annotated[bool, Field(strict=True)] = False
    """With a draft model, let `exllamav2` read prompts with both models side by side, where that is
    measured to give the first token sooner."""


class RemoteSettings(Section):
    """A server that computes, where `engine.kind` is `remote`. The key that it asks for is no setting: it is
    read from the environment or the keyring."""

    url: str = ""
    """The server's address, such as `http://127.0.0.1:8080` or `https://gpu.example.org/team`, without
    the `/v1`."""
    model: str = ""
    """What the server calls the model; empty is the only one, or the first, that it lists. `model.name` is
    then the model whose tokenizer it has."""
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    """Seconds without a word after which the server is taken to be silent."""
    fallback: str = ""
    """A profile (`cpu`) whose engine, on this machine, answers while the server cannot; none by default."""


class DraftSettings(Section):
    """Guesses at the next tokens, checked several in a pass. They change the speed, never the text; where
    they cost more than they gain for a while they are turned off, and the log says so."""

    lookup: Annotated[bool, Field(strict=True)] = True
    """Guess what followed the same words above, in earlier suggestions or in other documents."""
    model: str = ""
    """A smaller model of the same vocabulary that guesses where nothing is found, named as
    `model.name` is; none by default."""
    max_tokens: Annotated[int, Field(ge=0, le=16)] = 16
    """Most tokens guessed for one pass, of which `exllamav2` takes 15 at most; how many pay is
    measured and learnt. 0 turns drafts off."""

    @property
    def model_in_use(self) -> str:
        """The draft model's name; empty where there is none, or no drafts at all."""
        return self.model if self.max_tokens else ""


class PromptSettings(Section):
    """What the model sees."""

    max_tokens: Annotated[int, Field(ge=64, le=131072)] = 2048
    """Most tokens of a prompt: of the text around the cursor, and of other files, that the model reads."""
    suffix_share: Annotated[float, Field(ge=0, le=0.9)] = 0.25
    """Part of the prompt given to text below the cursor: 0.25 is a quarter."""


class ContextSettings(Section):
    """What the model sees of other files."""

    files: Annotated[bool, Field(strict=True)] = True
    """Put pieces of other files of the workspace in front of the prompt: of those that were edited or
    shown, and of those that are imported. Files that git ignores and files of secrets are never read."""
    exclude: list[str] = []
    """Patterns as in a `.gitignore` of files that are never read for the completion of others."""


class CompletionSettings(Section):
    """What is offered."""

    max_tokens: Annotated[int, Field(ge=1, le=4096)] = 64
    """Most tokens of one suggestion."""
    temperature: Annotated[float, Field(ge=0, le=5)] = 0.0
    """Sampling temperature; 0 always takes the most probable token."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling; has no effect at temperature 0."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    """Seed of the sampling."""
    lines: Lines = "auto"
    """One line or several; `auto` offers several on an empty line and at the start of a block."""
    max_lines: Annotated[int, Field(ge=1, le=200)] = 12
    """Most lines of one suggestion."""
    in_comments: Annotated[bool, Field(strict=True)] = True
    """Offer suggestions in comments, too, where they were not asked for by hand."""
    in_strings: Annotated[bool, Field(strict=True)] = True
    """Offer suggestions in strings (docstrings are strings), too, where they were not asked for by
    hand."""
    show_above: Annotated[float, Field(ge=0, le=1)] = 0.3
    """Probability of being right that ghost text has at least: it ends where the model is less sure, and
    where it is so from the start there is none. 0 shows everything, as asking by hand does."""
    ahead: Annotated[bool, Field(strict=True)] = True
    """While nobody waits, prepare what comes after accepting a suggestion, and the prompt of the
    document in view."""
    debounce_ms: Annotated[int, Field(ge=0, le=2000)] = 0
    """Milliseconds to wait after a change before new text is shown; the engine starts at once."""


class ServerSettings(Section):
    """How the language server behaves."""

    completion_items: Annotated[bool, Field(strict=True)] = False
    """Also answer `textDocument/completion`, for editors without inline completion."""
    disabled_languages: list[str] = []
    """Language ids (`markdown`, `plaintext`) in which nothing is offered unless asked by hand."""
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    """What goes to stderr and to the daemon's log. Code is never logged."""


class DaemonSettings(Section):
    """The process that holds the model."""

    idle_exit_s: Annotated[float, Field(ge=0, le=1e9)] = 1800.0
    """The daemon leaves after this many seconds without a client; 0 keeps it for ever."""
    transport: Literal["auto", "unix", "tcp"] = "auto"
    """Unix socket or loopback TCP with a token; `auto` takes a Unix socket where there are any."""
    audit: Annotated[int, Field(ge=0)] = 0
    """Compute one answer in so many again from scratch and count differences in `status`; 0 is never."""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Serve the figures of `status` to Prometheus, at `/metrics` on this port of 127.0.0.1. Needs the
    package `prometheus-client`; 0 is off."""


class Settings(Section):
    """Everything, section by section."""

    model: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    remote: RemoteSettings = RemoteSettings()
    draft: DraftSettings = DraftSettings()
    prompt: PromptSettings = PromptSettings()
    context: ContextSettings = ContextSettings()
    completion: CompletionSettings = CompletionSettings()
    server: ServerSettings = ServerSettings()
    daemon: DaemonSettings = DaemonSettings()
