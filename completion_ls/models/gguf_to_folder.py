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

import numpy as np

MODEL_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""The architectures that are carried over, by their name in a GGUF."""

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Modules of a GGUF and what they are called in transformers, without their layer."""

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

    class Reader(GGUFReader):
        """Reads no further than the file goes: behind its end the library finds nothing, in so many
        steps as a damaged number announces."""

        def _get(self, offset: int, dtype: Any, count: int = 1, *more: Any, **named: Any) -> Any:
            if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
                raise EOFError("it ends before what it announces")
            return super()._get(offset, dtype, count, *more, **named)

    try:
        return Reader(file)
    except Exception as error:  # its parser raises whatever the bytes lead it to
        raise Unusable(
            "The file is damaged or cut short and cannot be read as GGUF "
            f"({type(error).__name__}: {error}); get it again."
        ) from error


def check(reader: Any) -> int:
    """The number of weights, if this is a model that is carried over in full. Raises Unusable."""
    architecture = field(reader, "general.architecture")
    if architecture not in MODEL_CLASSES:
        raise Unusable(
            f"The file holds a model of architecture {architecture!r}, and only "
            f"{', '.join(MODEL_CLASSES)} are supported; choose another model."
        )
    if (field(reader, "split.count") or 0) > 1:
        raise Unusable(
            "The file is one part of several; merge them with llama.cpp's gguf-split first."
        )
    scaling = field(reader, f"{architecture}.rope.scaling.type")
    strange = [tensor.name for tensor in reader.tensors if new_name(tensor.name) is None]
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
    """A value of the file's header, None when it is absent. Raises Unusable."""
    found = reader.fields.get(name)
    try:
        return None if found is None else found.contents()
    except Exception as error:  # a text that is none, a list of several types
        raise Unusable(f"The file's {name} cannot be read; get it again.") from error


def check_memory(weights: int) -> None:
    """Raise Unusable when the float32 weights do not fit into the free memory."""
    import psutil

    need, free = weights * 4 * PEAK, psutil.virtual_memory().available
    if need > free:
        raise Unusable(
            f"The model needs {need / 1e9:.1f} GB of memory in float32 and {free / 1e9:.1f} GB are "
            "free; close other programs or choose a smaller model."
        )


def new_name(name: str) -> str | None:
    """What transformers calls a tensor of a GGUF; None when it knows nothing like it."""
    match = re.fullmatch(r"(blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if match is None or match[3] not in NAMES:
        return None
    layer = "" if match[2] is None else f"model.layers.{match[2]}."
    return f"{layer}{NAMES[match[3]]}.{match[4]}"


def configuration(reader: Any, vocabulary: int) -> Any:
    """The transformers configuration that the header describes. Raises Unusable."""
    from transformers import AutoConfig

    architecture = field(reader, "general.architecture")

    def value(name: str, default: Any = None) -> Any:
        found = field(reader, f"{architecture}.{name}")
        if found is None and default is None:
            raise Unusable(f"The file does not say its {architecture}.{name}; get it again.")
        number = default if found is None else found
        if (
            isinstance(number, bool)
            or not isinstance(number, int | float)
            or not 0 < number < 2**31
        ):
            raise Unusable(
                f"The file's {architecture}.{name} is {repr(number)[:50]}, which makes no sense; get "
                "it again."
            )
        return number

    if value("block_count") > len(reader.tensors):
        raise Unusable("The file announces more layers than it has; get it again.")
    hidden, heads = value("embedding_length"), value("attention.head_count")
    head_dim = value("attention.key_length", hidden // heads)
    if value("rope.dimension_count", head_dim) != head_dim:
        raise Unusable(
            "The file's RoPE turns only a part of each head, which is not supported; choose "
            "another model."
        )
    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": value("context_length"),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_type": "default", "rope_theta": value("rope.freq_base", 10000.0)},
        # A file without an output matrix uses the embeddings for it.
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "architectures": [MODEL_CLASSES[architecture]],
        "dtype": "float32",
        "pad_token_id": field(reader, "tokenizer.ggml.padding_token_id"),
        **special_ids(reader),
    }
    try:
        return AutoConfig.for_model(architecture, **sizes)
    except Exception as error:  # each architecture has checks, and errors, of its own
        raise Unusable(
            f"The file's sizes do not fit together ({str(error)[:300].rstrip('.')}); get it again."
        ) from error


def load_weights(reader: Any, config: Any) -> dict[str, np.ndarray]:
    """Every weight that the model of this configuration has, in float32. Raises Unusable.

    Done here and not by transformers, which takes a minute for it on a small machine and drops
    tensors that it does not expect without a word.
    """
    import torch
    from gguf import dequantize
    from transformers import AutoModelForCausalLM

    family: Any = AutoModelForCausalLM

    with torch.device("meta"):
        model = family.from_config(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del wanted["lm_head.weight"]
    weights = {}
    for tensor in reader.tensors:
        name = str(new_name(tensor.name))
        weight = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        if config.model_type == "llama" and re.search(r"attn_[qk]\.weight", tensor.name):
            weight = halves_apart(weight, config.head_dim)
        weights[name] = weight
    found = {name: weight.shape for name, weight in weights.items()}
    if found != wanted:
        wrong = min(name for name, _ in found.items() ^ wanted.items())
        raise Unusable(
            f"The file's weights do not fit together: {wrong} is {found.get(wrong, 'not there')} "
            f"and should be {wanted.get(wrong, 'not there')}; get it again or choose another file."
        )
    return weights


def halves_apart(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of q or k in the order of transformers. For llama, a GGUF has the two halves that rotate
    together row by row (0, n, 1, n + 1, ...), transformers one after the other."""
    rows, columns = weight.shape
    pairs = weight.reshape(rows // head_dim, head_dim // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def tokens_of(reader: Any) -> list[str]:
    """The texts of all tokens. Raises Unusable."""
    found = field(reader, "tokenizer.ggml.tokens")
    if not isinstance(found, list) or not all(isinstance(token, str) for token in found):
        raise Unusable("The file does not say which tokens there are; get it again.")
    return found


def load_tokenizer(link: Path, reader: Any, tokens: list[str]) -> Any:
    """The tokenizer, with the split that the file names. Raises Unusable where it would differ."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        link.parent, gguf_file=link.name, local_files_only=True, trust_remote_code=False
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
    for key, id_ in names.items():
        if id_ is not None and type(id_) is not int:
            raise Unusable(f"The file's {key} is no number; get it again.")
    return {key: id_ for key, id_ in names.items() if id_ is not None}


def save(weights: dict[str, np.ndarray], config: Any, tokenizer: Any, folder: Path) -> None:
    """Write weights, configuration and tokenizer, readable as the user's umask says."""
    from safetensors.numpy import save_file
    from transformers import GenerationConfig

    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    GenerationConfig.from_model_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    umask = os.umask(0)
    os.umask(umask)
    for path in folder.iterdir():
        path.chmod(0o666 & ~umask)


def convert(file: Path, folder: Path, report: Callable[..., None]) -> None:
    """Write `file` into the empty `folder`. Raises Unusable, OSError or what transformers does."""
    report(text="reading the model file", fraction=0.05)
    reader = read(file)
    count = check(reader)
    report(need=count * 4)
    check_memory(count)
    report(text="converting the tokenizer", fraction=0.3)
    tokens = tokens_of(reader)
    # Loaded through a link in a folder of its own: transformers would also take up a tokenizer that
    # happens to lie beside the file.
    link = folder / "source" / "model.gguf"
    link.parent.mkdir()
    link.symlink_to(file.absolute())
    tokenizer = load_tokenizer(link, reader, tokens)
    link.unlink()
    link.parent.rmdir()
    report(text="converting the weights", fraction=0.6)
    config = configuration(reader, len(tokens))
    weights = load_weights(reader, config)
    report(text="writing the converted model", fraction=0.9)
    save(weights, config, tokenizer, folder)
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
