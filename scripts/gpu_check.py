"""What the exllamav2 engine does on this machine's card, as one table; scripts/gpu_check.sh calls this.

Each part runs in a process of its own: what breaks on a card breaks the process, and memory is
counted from the start.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from completion_ls.bench.card_figures import Part, exit_status, joined, lines, shown, table
from completion_ls.config.settings import DraftSettings, EngineSettings
from completion_ls.engines.exl2 import checks

NO_DRAFTS = DraftSettings(lookup=False, max_tokens=0)
KINDS = {
    "plain": NO_DRAFTS,
    "model": DraftSettings(lookup=False),
    "lookup": DraftSettings(lookup=True),
}
SHAPES = ("32b", "14b", "7b", "1.5b", "tiny")
PATIENCE_S = 3600
"""For one part: a pass that hangs must not hide what the others have found."""
NOWHERE = "the times mean nothing: reference kernels on a CPU, tiny models"


@dataclass(frozen=True)
class Options:
    """What was asked for."""

    dry_run: bool
    shape: str
    """Empty for the largest that fits."""
    folder: Path
    """Where models are put."""

    @property
    def settings(self) -> EngineSettings:
        """Of the models that have nothing but their shape."""
        context, chunk = (2048, 512) if self.dry_run else (16384, 2048)
        return EngineSettings(kind="exllamav2", context=context, prefill_chunk=chunk)

    @property
    def sizes(self) -> Any:
        """How much is measured."""
        from completion_ls.bench.card import DRY, Sizes

        return DRY if self.dry_run else Sizes()

    @property
    def card(self) -> Callable[[], checks.Card]:
        """The card; a boundless one where there is to be none."""
        if self.dry_run:
            return lambda: checks.Card("reference kernels", 2**40)
        return checks.find_card


def shape_part(part: Part, options: Options) -> None:
    """Models of real shape: all that is a matter of speed and memory."""
    import torch

    from completion_ls.bench import card
    from completion_ls.engines.exl2.loading import passes, planned
    from completion_ls.engines.vram import RESERVE, plan_vram

    part.machine |= card.machine()
    free_before = options.card().free_bytes
    copied = card.copied_per_s(options.sizes.copy_bytes)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        free_before = torch.cuda.mem_get_info(0)[0]
    name = _shape_that_fits(options, free_before)
    part.machine["shape"] = name
    target, draft = _folders(options, name)
    plan = plan_vram(planned(target, options.settings, draft), passes(options.settings))
    weights = dict(plan.rows)["target weights"]
    engine = _load_shape(options, target, draft)
    generator, sizes = card.generator_of(engine), options.sizes
    note = f"random weights, 4.0 bits; draft {draft.name}; KV {options.settings.kv_cache}"
    part.add("weights", f"{target.name}: weights", weights / 2**30, "GiB", note)
    part.add("vram_planned", "VRAM planned", (plan.total - RESERVE) / 2**30, "GiB", _but(RESERVE))
    part.add("vram_loaded", "... used once loaded", _used(free_before) / 2**30, "GiB", _but())
    what = f"pass behind {sizes.context:,}"
    card.measure_passes(
        part, generator, sizes, sizes.context, card.WIDTHS, key="pass", what=what, draft=True
    )
    what = f"pass behind {sizes.long:,}"
    card.measure_passes(part, generator, sizes, sizes.long, [1], key="long_pass", what=what)
    card.measure_prefill(part, generator, sizes, sizes.long, sizes.chunk)
    card.measure_prefill(part, generator, sizes, sizes.context, 256)
    note = "bytes read and bytes written by a large copy"
    part.add("copied", "memory of the card", copied / 1e9, "GB/s", note)
    floor_ms = 1e3 * weights / copied
    part.add("floor_ms", "floor: weights, read once", floor_ms, "ms", "at that speed")
    card.measure_keystroke(part, engine, sizes, floor_ms)
    text = f"first token of {sizes.context:,} new ones"
    part.add("cold_ms", text, card.cold_ms(engine, sizes), "ms")
    note = ""
    if torch.cuda.is_available():
        from completion_ls.engines.exl2.loading import use_prefill_stream
        from completion_ls.engines.exl2.prefill_stream import PrefillStream, wait_for_copies

        wait_for_copies(False)
        stream = PrefillStream(0)
    else:
        note = "a CPU has no streams: the same as above"
    text = "... where no copy waits for the card"
    part.add("cold_no_waits_ms", text, card.cold_ms(engine, sizes), "ms", note)
    if torch.cuda.is_available():
        use_prefill_stream(generator, stream)
    text = "... and with the prefill stream"
    part.add("cold_stream_ms", text, card.cold_ms(engine, sizes), "ms", note)
    peak = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
    part.add("vram_used", "VRAM used after all this", _used(free_before) / 2**30, "GiB", _but())
    part.add("vram_reserved", "... reserved by torch at most", peak / 2**30, "GiB")


def graphs_part(part: Part, options: Options) -> None:
    """The same without CUDA graphs."""
    os.environ["EXLLAMA_NO_GRAPHS"] = "1"  # read when a model's configuration is
    from completion_ls.bench import card

    name = _shape_that_fits(options, options.card().free_bytes)
    target, draft = _folders(options, name)
    engine, sizes = _load_shape(options, target, draft), options.sizes
    what = f"without CUDA graphs: pass behind {sizes.context:,}"
    generator = card.generator_of(engine)
    card.measure_passes(part, generator, sizes, sizes.context, [1, 4], key="no_graphs", what=what)


def pair_part(part: Part, options: Options) -> None:
    """Real models: what drafts bring, and that they change nothing."""
    from tokenizers import Tokenizer

    from completion_ls.bench import card
    from completion_ls.bench.engine import read_prompts
    from completion_ls.bench.engine_figures import Sizes
    from completion_ls.engines.exl2.loading import load

    sizes = options.sizes
    target, draft, what = _tiny_pair(options) if options.dry_run else _real_pair(options)
    settings = EngineSettings(kind="exllamav2", kv_cache="fp16", context=4096, prefill_chunk=2048)

    def loaded(kind: str) -> Any:
        guessing = None if kind == "plain" else draft
        return load(
            target,
            settings,
            draft=KINDS[kind],
            draft_folder=guessing,
            progress=_told(),
            card=options.card,
        )

    length = sizes.piece
    wanted = Sizes(prompts=sizes.pieces, context=length, fill=length, long=length)
    prompts = read_prompts(Tokenizer.from_file(str(target / "tokenizer.json")), wanted)
    part.add("pieces", "pair: pieces of code", len(prompts.pieces), "", what)
    card.measure_text(part, loaded, prompts.pieces, sizes.tokens)


PARTS = {"shape": shape_part, "graphs": graphs_part, "pair": pair_part}


def run_part(name: str, options: Options, added: Callable[[Part], None] | None = None) -> Part:
    """One part, in this process. What goes wrong in it is a sentence in its problems."""
    part = Part(added=added)
    # Read when torch first allocates; the plan of the memory counts on it.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    try:
        if options.dry_run:
            import torch

            from support.exl2.install import install

            install()
            torch.set_num_threads(1)
        PARTS[name](part, options)
    except Exception as error:
        text = str(error) or "no reason given"
        part.problems.append(f"The part {name!r} ended early: {type(error).__name__}: {text}")
    return part


def _shape_that_fits(options: Options, free_bytes: int) -> str:
    """The one that was asked for, or the largest that fits."""
    from completion_ls.engines.exl2.loading import passes, planned
    from completion_ls.engines.vram import plan_vram

    if options.shape or options.dry_run:
        return options.shape or "tiny"
    need = 0
    for name in SHAPES[:-1]:
        target, draft = _folders(options, name)
        setting = planned(target, options.settings, draft)
        need = plan_vram(setting, passes(options.settings)).total
        if need <= free_bytes:
            return name
    raise RuntimeError(
        f"The card has {free_bytes / 2**30:.1f} GiB free, and the smallest pair needs "
        f"{need / 2**30:.1f}. Close what else uses the card."
    )


def _folders(options: Options, name: str) -> tuple[Path, Path]:
    """Target and draft."""
    from support.exl2.sparse import DRAFTS, SHAPES, write_sparse

    target, draft = (SHAPES[one] for one in (name, DRAFTS[name]))
    return (
        write_sparse(options.folder / target.name, target),
        write_sparse(options.folder / draft.name, draft),
    )


def _load_shape(options: Options, target: Path, draft: Path) -> Any:
    from completion_ls.bench import card
    from completion_ls.engines.exl2.loading import load
    from support.exl2.sparse import fill

    engine = load(
        target,
        options.settings,
        draft=DraftSettings(lookup=False),
        draft_folder=draft,
        progress=_told(),
        card=options.card,
    )
    generator = card.generator_of(engine)
    for model in (generator.model, generator.draft_model):
        fill(model)
    return engine


def _tiny_pair(options: Options) -> tuple[Path, Path, str]:
    from support.exl2.tiny import write_tiny_models

    made = write_tiny_models(options.folder / "pair", agreeing=True)
    return made.target, made.draft, "random weights at 6 bits, and drafts of the same at 5"


def _real_pair(options: Options) -> tuple[Path, Path, str]:
    import torch
    from transformers import AutoModelForCausalLM

    from completion_ls.models import catalogue, local
    from support.exl2.weights import export

    source = local.prepare(catalogue.DEFAULT)
    model = AutoModelForCausalLM.from_pretrained(source.folder, dtype=torch.float32)
    made = []
    for bits in (8, 4):
        folder = options.folder / f"{source.name}-{bits}-bits"
        export(model, folder, bits)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if (source.folder / name).is_file():
                shutil.copy(source.folder / name, folder / name)
        made.append(folder)
    target, draft = made
    what = f"{source.name} rounded to 8 bits, and drafts of the same at 4"
    return target, draft, what


def _used(free_before: int) -> int:
    import torch

    return free_before - torch.cuda.mem_get_info(0)[0] if torch.cuda.is_available() else 0


def _but(reserve: int = 0) -> str:
    if reserve:
        return f"without the {reserve / 2**30:.2f} GiB for the CUDA context and fragmentation"
    return "the CUDA context not counted"


def _told() -> Callable[[str, float], None]:
    """Progress on stderr, a line for each step."""
    last = ""

    def tell(text: str, fraction: float) -> None:
        nonlocal last
        if text != last:
            print(text, file=sys.stderr, flush=True)
            last = text

    return tell


def _in_its_process(name: str, options: Options) -> Part:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "part.json"
        asked = [sys.executable, __file__, "--part", name, "--out", str(out)]
        asked += ["--folder", str(options.folder), *["--dry-run"] * options.dry_run]
        asked += ["--shape", options.shape] if options.shape else []
        try:
            status = subprocess.run(asked, stdout=sys.stderr, timeout=PATIENCE_S).returncode
            end = f"died with the status {status}; what it said is above"
        except subprocess.TimeoutExpired:
            status, end = -1, f"was not through after {PATIENCE_S} s and was stopped"
        try:
            part = Part.of(json.loads(out.read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            part = Part(problems=[f"The part {name!r} has left no figures."])
    if status:
        part.problems.append(f"The part {name!r} {end}.")
    return part


def _write(part: Part, out: Path) -> None:
    """Whole, whenever the process dies."""
    new = out.with_name(out.name + ".new")
    new.write_text(json.dumps(part.as_dict()))
    new.replace(out)


def _save(part: Part, out: Path) -> None:
    """Note what there is so far, and tell of the last row."""
    _write(part, out)
    if part.rows:
        row = part.rows[-1]
        print(f"{row.text}: {shown(row.value)} {row.unit}", file=sys.stderr, flush=True)


def main() -> int:
    """Measure, print, and say in the exit status how it went: `card_figures.exit_status`, or 2 where
    nothing could be measured."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog="Exit status: 0 all is right, 1 drafts change the text, 2 nothing could be measured, "
        "3 some of it could not.",
    )
    parser.add_argument("--dry-run", action="store_true", help="tiny models, without a card")
    parser.add_argument("--shape", default="", choices=SHAPES, help="(the largest that fits)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--folder", type=Path, help="where models are put, and stay")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.dry_run:
        missing = [piece for piece in checks.pieces() if piece.found is None]
        for piece in missing:
            print(f"Missing: {piece.name}. {piece.how_to_get}", file=sys.stderr)
        if missing:
            return 2
    if given.part:
        options = Options(given.dry_run, given.shape, given.folder)
        part = run_part(given.part, options, lambda part: _save(part, given.out))
        _write(part, given.out)
        return 0
    if given.json:
        try:
            given.json.open("a").close()
        except OSError as error:
            print(f"{given.json} cannot be written: {error.strerror}.", file=sys.stderr)
            return 2
    with tempfile.TemporaryDirectory() as made:
        options = Options(given.dry_run, given.shape, given.folder or Path(made))
        parts = []
        for name in PARTS:
            parts.append(_in_its_process(name, options))
            options = replace(options, shape=parts[0].machine.get("shape", options.shape))
        whole = joined(parts)
    console = Console(highlight=False, markup=False, width=max(110, Console().width))
    title = "exllamav2 on a card" + (f" ({NOWHERE})" if given.dry_run else "")
    console.print(table(whole, title=title))
    for line in lines(whole):
        console.print(line, soft_wrap=True)
    if given.json:
        given.json.write_text(json.dumps(whole.as_dict(), indent=1))
    return exit_status(whole) if whole.rows else 2


def _exit(number: int, frame: object) -> None:
    """Not as a signal does by itself: a part's process is to end, too, and folders are to go."""
    sys.exit(128 + number)


if __name__ == "__main__":
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, _exit)
    sys.exit(main())
