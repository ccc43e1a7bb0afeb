"""Child process: writes a GGUF model as a Hugging Face folder in float32.

Run by path, as `python -P gguf_to_folder.py FILE FOLDER`, so it imports nothing of this package. It
is a process of its own because transformers prints, keeps hundreds of megabytes after its work, and
a damaged file or a lack of memory can kill it; none of this may happen in a language server.

Each line on stdout is a JSON object: {"text", "fraction"} (progress), {"need": bytes} (room wanted
in FOLDER) or, at last and with exit status 1, {"error": sentence}.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

ARCHITECTURES = ("llama", "qwen2", "qwen3")

KNOWN_TENSOR = re.compile(
    r"(token_embd|output_norm|output)\.weight"
    r"|blk\.\d+\.((attn|ffn)_norm|attn_(q|k|v|output)|attn_(q|k)_norm|ffn_(gate|up|down))\.weight"
    r"|blk\.\d+\.attn_(q|k|v)\.bias"
)
"""Everything that these architectures compute with. transformers drops tensors it does not know
without a word, and the model would be another one."""

DIGITS_APART = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
"""Values of tokenizer.ggml.pre that mean: every digit by itself, then the rule of GPT-2.
transformers takes these for plain GPT-2, which splits the blanks before a number in another way."""

WHOLE_WORDS = {"llama3", "llama-v3", "llama-bpe"}
"""Values that mean: a word that is a token is that token, whatever the merges say."""

OTHER_PRE = {"default", "gpt-2", "gpt2", "qwen2", "deepseek-r1-qwen"}
"""Values that transformers reads rightly."""

SAMPLE = "def f(x):\n    return x  # né 12\n\tif x == 345: pass\n\n\n"

PEAK = 1.5
"""Most memory of the conversion as a multiple of the float32 weights (1.4 seen with 135M)."""


class Unusable(Exception):
    """The file cannot be converted; the text is a sentence."""


def read(file: Path) -> Any:
    """The GGUF file's header, tensor table and memory map. Raises Unusable."""
    from gguf import GGUFReader

    try:
        return GGUFReader(file)
    except Exception as error:  # its parser raises whatever the bytes lead it to
        raise Unusable(
            "The file is damaged or cut short and cannot be read as GGUF "
            f"({type(error).__name__}: {error}); get it again."
        ) from error


def check(reader: Any) -> int:
    """The number of weights, if this is a model that is carried over in full. Raises Unusable."""
    architecture = field(reader, "general.architecture")
    if architecture not in ARCHITECTURES:
        raise Unusable(
            f"The file holds a model of architecture {architecture!r}, and only "
            f"{', '.join(ARCHITECTURES)} are supported; choose another model."
        )
    if (field(reader, "split.count") or 0) > 1:
        raise Unusable(
            "The file is one part of several; merge them with llama.cpp's gguf-split first."
        )
    scaling = field(reader, f"{architecture}.rope.scaling.type")
    strange = [tensor.name for tensor in reader.tensors if not KNOWN_TENSOR.fullmatch(tensor.name)]
    if strange or scaling not in (None, "none"):
        what = f"the tensor {strange[0]}" if strange else f"RoPE scaling of type {scaling}"
        raise Unusable(
            f"The file has {what}, which is lost when a GGUF is converted, so the model would "
            "answer wrongly; give the model's Hugging Face folder instead."
        )
    if field(reader, "tokenizer.ggml.model") != "gpt2":
        raise Unusable(
            "The file holds no byte-level BPE tokenizer, the only kind that is read from a GGUF; "
            "give the model's Hugging Face folder instead."
        )
    return sum(math.prod(int(n) for n in tensor.shape) for tensor in reader.tensors)


def field(reader: Any, name: str) -> Any:
    """A value of the file's header, None when it is absent."""
    found = reader.fields.get(name)
    return None if found is None else found.contents()


def check_memory(weights: int) -> None:
    """Raise Unusable when the float32 weights do not fit into the free memory."""
    import psutil

    need, free = weights * 4 * PEAK, psutil.virtual_memory().available
    if need > free:
        raise Unusable(
            f"The model needs {need / 1e9:.1f} GB of memory in float32 and {free / 1e9:.1f} GB are "
            "free; close other programs or choose a smaller model."
        )


def load_model(link: Path) -> Any:
    """The transformers model with float32 weights. Raises Unusable when a weight is missing."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        link.parent,
        gguf_file=link.name,
        dtype=torch.float32,
        local_files_only=True,
        output_loading_info=True,
    )
    model, info = loaded
    missing = set(info["missing_keys"]) | set(info["mismatched_keys"])
    if model.config.tie_word_embeddings:
        missing.discard("lm_head.weight")
    if missing:
        raise Unusable(
            f"The file lacks the weights {', '.join(sorted(map(str, missing))[:3])}; get it again "
            "or choose another file."
        )
    return model


def load_tokenizer(link: Path, reader: Any) -> Any:
    """The tokenizer, with the split that the file names. Raises Unusable where it would differ."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        link.parent, gguf_file=link.name, local_files_only=True
    )
    backend = tokenizer.backend_tokenizer
    pre = field(reader, "tokenizer.ggml.pre")
    if pre in DIGITS_APART:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    elif pre in WHOLE_WORDS:
        backend.model.ignore_merges = True
    elif pre is not None and pre not in OTHER_PRE:
        raise Unusable(
            f"The file's tokenizer splits text in a way that is not known here ({pre}); give the "
            "model's Hugging Face folder instead."
        )
    tokens = field(reader, "tokenizer.ggml.tokens")
    kinds = field(reader, "tokenizer.ggml.token_type") or []
    control = {id_: tokens[id_] for id_, kind in enumerate(kinds) if kind == 3}
    right = backend.get_vocab_size() == len(tokens) and all(
        backend.token_to_id(text) == id_ for id_, text in control.items()
    )
    for key, id_ in special_ids(reader).items():
        right = right and getattr(tokenizer, key) == id_
    backend.encode_special_tokens = True
    sample = backend.encode(SAMPLE, add_special_tokens=False).ids
    backend.encode_special_tokens = False
    if not right or backend.decode(sample, skip_special_tokens=False) != SAMPLE:
        raise Unusable(
            "The file's tokenizer does not come out as it went in; give the model's Hugging Face "
            "folder instead."
        )
    return tokenizer


def special_ids(reader: Any) -> dict[str, int]:
    """`bos_token_id` and `eos_token_id`, where the file names them."""
    names = {
        key: field(reader, f"tokenizer.ggml.{key}") for key in ("bos_token_id", "eos_token_id")
    }
    return {key: int(id_) for key, id_ in names.items() if id_ is not None}


def save(model: Any, tokenizer: Any, special: dict[str, int], folder: Path) -> None:
    """Write weights, configuration and tokenizer, readable as the user's umask says."""
    from safetensors.torch import save_file

    # Written by hand: the model's `save_pretrained` refuses whatever came from a quantised file.
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    weights = {
        name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in tied
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    for config in (model.config, model.generation_config):
        for key, id_ in special.items():
            setattr(config, key, id_)
        config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    umask = os.umask(0)
    os.umask(umask)
    for path in folder.iterdir():
        path.chmod(0o666 & ~umask)


def convert(file: Path, folder: Path, report: Callable[..., None]) -> None:
    """Write `file` into the empty `folder`. Raises Unusable, OSError or what transformers does."""
    report(text="reading the model file", fraction=0.05)
    reader = read(file)
    weights = check(reader)
    report(need=weights * 4)
    check_memory(weights)
    # Loaded through a link in a folder of its own: transformers would also take up an adapter or a
    # tokenizer that happens to lie beside the file.
    link = folder / "source" / "model.gguf"
    link.parent.mkdir()
    link.symlink_to(file.absolute())
    report(text="converting the tokenizer", fraction=0.2)
    tokenizer = load_tokenizer(link, reader)
    report(text="converting the weights", fraction=0.4)
    model = load_model(link)
    link.unlink()
    link.parent.rmdir()
    report(text="writing the converted model", fraction=0.8)
    save(model, tokenizer, special_ids(reader), folder)
    report(text="model converted", fraction=1.0)


def main(file: str, folder: str) -> int:
    """Convert and report; the exit status."""
    # What libraries print goes to stderr; only reports go to the pipe.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as pipe:
        os.dup2(2, 1)
        report = reporter(pipe)
        try:
            convert(Path(file), Path(folder), report)
        except Unusable as error:
            report(error=str(error))
            return 1
        except Exception as error:
            logging.exception("conversion failed")
            report(error=f"The file could not be converted ({type(error).__name__}: {error}).")
            return 1
    return 0


def reporter(pipe: IO[str]) -> Callable[..., None]:
    """A function that writes its keyword arguments as one line of JSON."""

    def report(**line: object) -> None:
        pipe.write(json.dumps(line) + "\n")
        pipe.flush()

    return report


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
