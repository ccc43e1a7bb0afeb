"""Parse the command line and hand over. Imports little: an editor waits for `--stdio`."""

from __future__ import annotations

import argparse
import io
import logging
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from completion_ls import __version__
from completion_ls.config import api_key, log_form

PEERS = ("llama.cpp", "transformers")
DESCRIPTION = """\
Inline code completion (ghost text) from a model on this machine. An editor starts
`completion-ls --stdio`; the engine daemon that holds the model is started when it is needed.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit status."""
    api_key.set_aside()
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command in ("demo", "bench", "models", "status", "doctor", "init", "tune"):
        logging.basicConfig(stream=sys.stderr)
        logging.getLogger().setLevel(logging.CRITICAL)  # they print what there is to say
        _print_any_path()
    else:
        log_form.set_up()
    if hasattr(options, "profile"):
        from completion_ls.config.sources import use_profile

        use_profile(options.profile)
    if options.command is None and not _transport(options):
        parser.print_help(sys.stderr)
        return 2
    if (hasattr(options, "tls_cert") or hasattr(options, "tls_key")) and not hasattr(
        options, "tcp"
    ):
        parser.error("--tls-cert and --tls-key are for --tcp")
    try:
        return _run(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has seen enough (| head); nothing more can be written to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a port in use, a folder that cannot be written, …
        print(f"completion-ls: {error}", file=sys.stderr)
        return 1


def _print_any_path() -> None:
    """Have characters that stdout cannot encode printed as escapes: a path may be no text at all."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _run(options: argparse.Namespace) -> int:
    match options.command:
        case None | "serve":
            return _serve(options)
        case "daemon":
            from completion_ls.cli import daemon

            if options.action == "stop":
                return daemon.stop()
            return daemon.run(options.config, audit=options.audit)
        case "status":
            if options.watch:
                from completion_ls.cli import watch

                return watch.run()
            from completion_ls.cli import status

            return status.show(as_json=options.json)
        case "doctor":
            from completion_ls.cli import doctor

            return doctor.show(as_json=options.json)
        case "init":
            from completion_ls.cli import init

            return init.run(getattr(options, "profile", None), dry_run=options.dry_run)
        case "tune":
            from completion_ls.cli import tune

            return tune.run(options)
        case "models":
            from completion_ls.cli import models

            match options.action:
                case "pull":
                    return models.pull(options.name, tokenizer=options.tokenizer)
                case "path":
                    return models.path(options.name)
                case _:
                    return models.list_models()
        case "demo":
            from completion_ls.cli import demo

            return demo.run(speed=options.speed)
        case _:
            from completion_ls.cli import bench

            match options.action:
                case "engine":
                    return bench.engine(options)
                case "replay":
                    return bench.replay(options)
                case "protocol":
                    from completion_ls.cli import bench_protocol

                    return bench_protocol.run(options)
                case "sweep":
                    from completion_ls.cli import bench_sweep

                    return bench_sweep.run(options)
                case "infill":
                    from completion_ls.cli import bench_infill

                    return bench_infill.infill(options)
                case "server":
                    from completion_ls.cli import bench_server

                    return bench_server.run(options)
                case "calibrate":
                    from completion_ls.cli import bench_calibrate

                    return bench_calibrate.run(options)
            from completion_ls.cli import bench_model

            if options.action == "quality":
                return bench_model.quality(options)
            return bench_model.acceptance(options)


def _serve(options: argparse.Namespace) -> int:
    from completion_ls.lsp import serve

    match _transport(options):
        case "tcp":
            host, port = options.tcp
            files = (getattr(options, name, None) for name in ("tls_cert", "tls_key"))
            return serve.serve_tcp(host, port, *files)
        case "pipe":
            return serve.serve_pipe(options.pipe)
        case "socket":
            return serve.serve_socket(options.socket)
        case _:
            return serve.serve_stdio()


def _transport(options: argparse.Namespace) -> str | None:
    given = (name for name in ("stdio", "tcp", "pipe", "socket") if hasattr(options, name))
    return next(given, None)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 <= int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def _parser() -> argparse.ArgumentParser:
    transport = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    group = transport.add_argument_group("language server")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--stdio", action="store_true", help="speak LSP on standard input and output")
    one.add_argument(
        "--tcp",
        type=_address,
        metavar="HOST:PORT",
        help="listen there for editors that have the token (said on stderr)",
    )
    one.add_argument(
        "--pipe", type=Path, metavar="NAME", help="connect to the editor at this pipe, or listen"
    )
    one.add_argument(
        "--socket", type=int, metavar="PORT", help="connect to the editor at this port"
    )
    group.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="with --tcp, speak TLS: a certificate (PEM)"
    )
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="the key of the certificate")
    # Some clients add it; the process id in `initialize` says the same.
    group.add_argument("--clientProcessId", type=int, help=argparse.SUPPRESS)

    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("--profile", metavar="NAME", help="the profile of settings to use")

    parser = argparse.ArgumentParser(
        "completion-ls", description=DESCRIPTION, parents=[transport, common]
    )
    parser.add_argument("--version", action="version", version=f"completion-ls {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    def command(name: str, text: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=list(parents))

    command("serve", "The language server (as without a command).", transport, common)
    command(
        "demo", "A typed session in this terminal: ghost text and its figures.", common
    ).add_argument(
        "--speed", type=float, default=1.0, metavar="N", help="type N times as fast (default 1)"
    )
    status = command("status", "What the engine daemons are doing, and what was accepted.")
    form = status.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the figures as JSON")
    form.add_argument(
        "--watch", action="store_true", help="keep showing them until q or Ctrl-C is pressed"
    )
    doctor = command(
        "doctor", "What is wrong with this set-up, if anything, and what to do about it.", common
    )
    doctor.add_argument("--json", action="store_true", help="print what was found as JSON")
    init = command(
        "init", "Choose a profile for this machine and write it into your settings.", common
    )
    init.add_argument("--dry-run", action="store_true", help="only say what would be written")
    tune = command(
        "tune", "Look for the settings that answer soonest on this machine, on your code.", common
    )
    tune.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="whose code is used (default: the current one)",
    )
    tune.add_argument(
        "--budget",
        type=_seconds,
        default=120.0,
        metavar="SECONDS",
        help="search no longer (default 120)",
    )
    tune.add_argument(
        "--draft",
        action="append",
        default=[],
        metavar="NAME",
        help="try this draft model, too, named as in draft.model; may be given again",
    )
    tune.add_argument(
        "--write", action="store_true", help="write what is better into your settings file"
    )
    tune.add_argument(
        "--force", action="store_true", help="measure although other work loads the machine"
    )
    tune.add_argument("--json", action="store_true", help="print all rounds as JSON")
    daemon = command(
        "daemon", "The process that holds the model; an editor starts it."
    ).add_subparsers(dest="action", required=True, metavar="ACTION")
    run = daemon.add_parser("run", help="run it in the foreground")
    run.add_argument(
        "--config", metavar="FILE", help="settings as JSON, - for standard input (for fronts)"
    )
    run.add_argument(
        "--audit",
        type=int,
        metavar="N",
        help="compute one answer in N again from scratch, and count differences in `status`",
    )
    daemon.add_parser("stop", help="stop the daemons of this user")
    models = command("models", "Models on this machine.").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    for action, text, default in (
        ("pull", "fetch a model", "all that your settings name"),
        ("path", "print the folder of a model", "the one of your settings"),
    ):
        one_model = models.add_parser(action, help=text, description=text, parents=[common])
        one_model.add_argument(
            "name",
            nargs="?",
            metavar="NAME",
            help="from `models list`, or a repository of the Hugging Face hub: owner/name or "
            f"owner/name@revision (default: {default})",
        )
        if action == "pull":
            one_model.add_argument(
                "--tokenizer",
                action="store_true",
                help="without the weights, which a server has (engine.kind remote)",
            )
    models.add_parser("list", help="list what can be fetched and what is here")
    bench = command("bench", "Measurements.").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    text = "measure the engine on this machine, beside peers on the same weights"
    engine = bench.add_parser("engine", help=text, description=text)
    engine.add_argument(
        "--against",
        type=_peers,
        default=(),
        metavar="PEERS",
        help=f"some of {', '.join(PEERS)}, with commas between",
    )
    engine.add_argument(
        "--rounds", type=_rounds, default=5, metavar="N", help="how often all is measured (5)"
    )
    engine.add_argument("--json", action="store_true", help="print all rounds as JSON")
    text = (
        "the engine's speed by a fixed rule, for comparing: a short context and one of 8,192 tokens"
    )
    protocol = bench.add_parser("protocol", help=text, description=text)
    protocol.add_argument(
        "--force", action="store_true", help="measure although other work loads the machine"
    )
    form = protocol.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print all rounds as JSON")
    form.add_argument("--markdown", action="store_true", help="print a table of Markdown")
    protocol.add_argument("--plot", type=Path, metavar="FILE", help="write a picture (PNG)")
    text = "what drafts, their length and other choices do to the engine's speed, row by row"
    sweep = bench.add_parser("sweep", help=text, description=text)
    sweep.add_argument(
        "--ladder", action="store_true", help="also from float32 to the best, stage by stage"
    )
    sweep.add_argument(
        "--rounds", type=_rounds, default=3, metavar="N", help="how often each is measured (3)"
    )
    sweep.add_argument(
        "--force", action="store_true", help="measure although other work loads the machine"
    )
    form = sweep.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print all rounds as JSON")
    form.add_argument("--markdown", action="store_true", help="print tables of Markdown")
    sweep.add_argument("--plot", type=Path, metavar="FILE", help="write a picture (PNG)")
    text = "perplexity of each form of the weights, on code"
    bench.add_parser("quality", help=text, description=text)
    text = "how often a draft is right, by how it is drawn; the draft is the model's first layers"
    acceptance = bench.add_parser("acceptance", help=text, description=text)
    acceptance.add_argument(
        "--layers", type=_counts, default=(), metavar="N,N", help="numbers of layers to try"
    )
    acceptance.add_argument(
        "--places", type=_count, default=500, metavar="N", help="so many of each text (500)"
    )
    text = "write lines that were taken out of functions, and run the functions' tests"
    infill = bench.add_parser("infill", help=text, description=text)
    infill.add_argument("file", type=Path, metavar="FILE", help="a .jsonl or .jsonl.gz of problems")
    infill.add_argument(
        "--problems", type=_rounds, metavar="N", help="so many, drawn by the seed (all)"
    )
    infill.add_argument(
        "--cuts", type=_count, default=2, metavar="N", help="cursors within each line, at most (2)"
    )
    infill.add_argument(
        "--seed", type=_count, default=0, metavar="N", help="of all that is drawn (0)"
    )
    infill.add_argument("--json", action="store_true", help="print the figures as JSON")
    text = "how often a model is right where it is sure, and what is worth being shown"
    calibrate = bench.add_parser("calibrate", help=text, description=text)
    calibrate.add_argument("trace", type=Path, metavar="TRACE", help="a .json or .json.gz trace")
    calibrate.add_argument(
        "--stretches",
        type=_rounds,
        default=12,
        metavar="N",
        help="so many, spread over the trace (12)",
    )
    calibrate.add_argument(
        "--keystrokes", type=_rounds, default=150, metavar="N", help="how many of each (150)"
    )
    calibrate.add_argument(
        "--cost",
        type=_cost,
        default=0.25,
        metavar="KEYS",
        help="what it costs to read a wrong text (0.25)",
    )
    calibrate.add_argument(
        "--table", type=Path, metavar="FILE", help="write the model's reliability table (JSON)"
    )
    calibrate.add_argument("--json", action="store_true", help="print the figures as JSON")
    text = "what typing costs a server that many share, and how many users it has room for"
    server = bench.add_parser("server", help=text, description=text)
    server.add_argument("trace", type=Path, metavar="TRACE", help="a .json or .json.gz trace")
    server.add_argument(
        "--keystrokes", type=_rounds, default=300, metavar="N", help="how many (300)"
    )
    server.add_argument("--start", type=_count, default=0, metavar="N", help="transactions to skip")
    server.add_argument(
        "--rounds", type=_rounds, default=1, metavar="N", help="how often all is typed (1)"
    )
    server.add_argument(
        "--slots", type=_rounds, default=4, metavar="N", help="prompts that the server holds (4)"
    )
    server.add_argument(
        "--users", type=_rounds, default=100, metavar="N", help="who share the server (100)"
    )
    server.add_argument(
        "--typing-share",
        type=_share,
        default=0.1,
        metavar="SHARE",
        help="of their time, how much they type (0.1: six minutes of an hour)",
    )
    server.add_argument(
        "--passes-per-second",
        type=_rate,
        metavar="N",
        help="what another server does, of all answers together (default: this one, measured)",
    )
    server.add_argument(
        "--prompt-tokens-per-second",
        type=_rate,
        metavar="N",
        help="and how fast that one reads prompts",
    )
    server.add_argument("--json", action="store_true", help="print the figures as JSON")
    replay = bench.add_parser("replay", help="type a recorded session through server and daemon")
    replay.add_argument("trace", type=Path, metavar="TRACE", help="a .json or .json.gz trace")
    replay.add_argument(
        "--keystrokes", type=_count, default=500, metavar="N", help="how many (500)"
    )
    replay.add_argument("--start", type=_count, default=0, metavar="N", help="transactions to skip")
    rhythm = replay.add_mutually_exclusive_group()
    rhythm.add_argument(
        "--gap-ms",
        type=_milliseconds,
        default=0.0,
        metavar="MS",
        help="from key to key, at least (0)",
    )
    rhythm.add_argument(
        "--gaps", choices=["recorded"], help="type in the rhythm of the recording instead"
    )
    replay.add_argument(
        "--most-gap-ms",
        type=_milliseconds,
        default=2000.0,
        metavar="MS",
        help="longest pause taken from a recording (2000)",
    )
    replay.add_argument(
        "--against",
        choices=["llama.cpp"],
        help="type the same into llama.cpp's server afterwards, and compare",
    )
    replay.add_argument("--plot", type=Path, metavar="FILE", help="write a picture (PNG)")
    replay.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


def _count(text: str) -> int:
    """An option's value that is a number of things."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def _rounds(text: str) -> int:
    """An option's value that is a number of things, and not none."""
    if (number := _count(text)) == 0:
        raise argparse.ArgumentTypeError("there must be one at least")
    return number


def _peers(text: str) -> tuple[str, ...]:
    """An option's value that is a list of peers."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(PEERS)}")
    return names


def _cost(text: str) -> float:
    """An option's value that is a number of keys, perhaps a part of one."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of keys")
    return value


def _share(text: str) -> float:
    """An option's value that is a part of a whole, and not none."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share of more than 0 and at most 1")
    return value


def _rate(text: str) -> float:
    """An option's value that is so many a second, and not none."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of more than 0")
    return value


def _seconds(text: str) -> float:
    """An option's value that is a time, and not none."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time of more than 0 s")
    return value


def _milliseconds(text: str) -> float:
    """An option's value that is a time."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time of 0 ms or more")
    return value
