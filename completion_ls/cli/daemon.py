"""`completion-ls daemon run` and `stop`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

from completion_ls.config.sources import SettingsError, resolve_strict
from completion_ls.daemon.server import AlreadyRunning, Daemon
from completion_ls.wire.connection import NoDaemon, Refused
from completion_ls.wire.endpoint import DaemonConfig, Endpoint
from completion_ls.wire.stop import Stuck, stop_daemon


def run(config_file: str | None, *, audit: int | None = None) -> int:
    """Serve until stopped; the configuration comes from the user's settings or a front. `audit`
    takes the place of the setting `daemon.audit`."""
    by_hand = config_file is None
    try:
        if config_file is None:
            config = DaemonConfig.of(resolve_strict())
        else:
            text = sys.stdin.read() if config_file == "-" else Path(config_file).read_text()
            config = DaemonConfig.model_validate_json(text)
        if audit is not None and audit < 0:
            raise ValueError(f"--audit must be 0 (never) or more, and not {audit}.")
        if audit is not None:
            config = config.with_audit(audit)
        logging.getLogger("completion_ls").setLevel(config.log_level.upper())
        endpoint = Endpoint.of(config)
        daemon = Daemon(config, endpoint)
        asyncio.run(daemon.run(_say) if by_hand else daemon.run())
    except (SettingsError, OSError, ValueError) as error:
        print(f"completion-ls daemon: {error}", file=sys.stderr)
        return 1
    except AlreadyRunning as error:
        hint = " `completion-ls daemon stop` stops it." if by_hand else ""
        print(f"completion-ls daemon: {error}{hint}", file=sys.stderr)
        return 1 if by_hand else 0
    # The engine thread may still be loading; nothing of it is worth waiting for.
    logging.shutdown()
    # A front that started it has heard why, and takes another status for one that never listened.
    os._exit(1 if by_hand and daemon.failure else 0)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def stop() -> int:
    """Stop every daemon of this user; 1 where one did not leave."""
    return asyncio.run(_stop_all())


async def _stop_all() -> int:
    stopped = failed = 0
    for endpoint in Endpoint.all():
        try:
            await stop_daemon(endpoint)
        except NoDaemon:
            continue
        except (Refused, Stuck) as error:
            print(f"completion-ls: {endpoint.name}: {error}", file=sys.stderr)
            failed += 1
        else:
            stopped += 1
    print(f"{stopped} daemon{'' if stopped == 1 else 's'} stopped.")
    return 1 if failed else 0
