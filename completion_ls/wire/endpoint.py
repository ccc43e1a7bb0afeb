"""Where the daemon of given settings is found: file names in the private runtime folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from completion_ls import __version__
from completion_ls.config import paths, private
from completion_ls.config.settings import (
    DaemonSettings,
    DraftSettings,
    EngineSettings,
    ModelSettings,
    RemoteSettings,
    Settings,
)
from completion_ls.wire.messages import PROTOCOL

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
MAX_ADDRESS = 4096
"""Most bytes of a `.tcp` file."""
# The limit of sun_path is 108 bytes on Linux and 104 on macOS, the ending zero included.
MAX_SOCKET_PATH = 103


class DaemonConfig(BaseModel):
    """What a daemon is started with (JSON on its standard input)."""

    model_config = ConfigDict(frozen=True)

    model: ModelSettings
    engine: EngineSettings
    remote: RemoteSettings = RemoteSettings()
    draft: DraftSettings
    daemon: DaemonSettings
    log_level: str

    @classmethod
    def of(cls, settings: Settings) -> DaemonConfig:
        """The part of the settings that a daemon needs. A relative path to a model is made absolute,
        since the daemon runs elsewhere and "models/x" is another model in another project."""
        model, draft = settings.model, settings.draft
        return cls(
            model=model.model_copy(update={"name": _absolute(model.name)}),
            engine=settings.engine,
            remote=settings.remote if settings.engine.kind == "remote" else RemoteSettings(),
            draft=draft.model_copy(update={"model": _absolute(draft.model)}),
            daemon=settings.daemon,
            log_level=settings.server.log_level,
        )

    def with_audit(self, every: int) -> DaemonConfig:
        """The same with another `daemon.audit`."""
        return self.model_copy(update={"daemon": self.daemon.model_copy(update={"audit": every})})

    @property
    def identity(self) -> str:
        """Equal for settings that share a daemon: the rest are the first front's choice."""
        own = (self.model, self.engine, self.remote, self.draft)
        parts = [part.model_dump(exclude={"fallback"}) for part in own]
        same = [__version__, PROTOCOL, *parts]
        return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:12]

    def shares_daemon_with(self, other: DaemonConfig) -> bool:
        """Whether one daemon serves both."""
        return self.identity == other.identity


def _reason(error: Exception) -> str:
    """A validation's own text would hold the token."""
    return "it is damaged" if isinstance(error, ValidationError) else str(error)


def _absolute(name: str) -> str:
    """A path to a model. "owner/name" is a repository of the hub, whatever folders there are here: here
    may be anybody's workspace."""
    is_path = name.startswith(("/", "~", ".")) or name.partition("@")[0].count("/") > 1
    if is_path or name.endswith(".gguf"):
        with contextlib.suppress(RuntimeError, OSError):  # "~" without a home; too long a name
            return str(Path(name).expanduser().absolute())
    return name


class TcpAddress(BaseModel):
    """The content of a `.tcp` file: who can read it (this user) may connect."""

    port: int
    token: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The files of one daemon. Fronts whose model and engine settings are equal share it."""

    folder: Path
    name: str

    @classmethod
    def of(cls, config: DaemonConfig) -> Endpoint:
        """The endpoint of these settings. Raises PermissionError where the folder is not private."""
        return cls(paths.runtime_dir(), f"engine-{config.identity}")

    @classmethod
    def all(cls) -> list[Endpoint]:
        """Every endpoint in the runtime folder, running or left behind."""
        folder = paths.runtime_dir()
        found = {file.stem for kind in ("*.sock", "*.tcp") for file in folder.glob(kind)}
        return [cls(folder, name) for name in sorted(found)]

    @property
    def socket_file(self) -> Path:
        """The Unix socket."""
        return self.folder / f"{self.name}.sock"

    @property
    def tcp_file(self) -> Path:
        """Port and token, where the transport is TCP."""
        return self.folder / f"{self.name}.tcp"

    @property
    def start_lock(self) -> Path:
        """Held by the front that starts the daemon."""
        return self.folder / f"{self.name}.start.lock"

    @property
    def life_lock(self) -> Path:
        """Held by the daemon as long as it lives; the kernel frees it when the daemon is killed."""
        return self.folder / f"{self.name}.life.lock"

    def check(self) -> None:
        """Raise PermissionError (a sentence) where the folder is not this user's alone (any more)."""
        with contextlib.suppress(FileNotFoundError):  # then nothing is used of it
            private.check_folder(self.folder)

    def uses_unix(self, transport: str) -> bool:
        """Whether a daemon of this transport setting listens on the Unix socket."""
        possible = (
            hasattr(socket, "AF_UNIX") and len(os.fsencode(self.socket_file)) <= MAX_SOCKET_PATH
        )
        if transport == "unix" and not possible:
            raise OSError(
                f"daemon.transport is 'unix', but {self.socket_file} cannot be a Unix socket here "
                f"(none on this system, or over {MAX_SOCKET_PATH} bytes). Use 'tcp', or a shorter "
                "COMPLETION_LS_RUNTIME_DIR."
            )
        return possible and transport != "tcp"

    def write_tcp(self, port: int) -> TcpAddress:
        """Publish port and a new token, readable by this user only, all at once or not at all."""
        address = TcpAddress(port=port, token=secrets.token_hex(32))
        private.write(self.tcp_file, address.model_dump_json())
        return address

    def read_tcp(self) -> TcpAddress | None:
        """Port and token, or None where no daemon published them, or they stand in a file that others
        can read, or may have written."""
        try:
            return TcpAddress.model_validate_json(private.read(self.tcp_file, MAX_ADDRESS))
        except FileNotFoundError:
            return None
        except (ValidationError, OSError) as error:
            log.warning("the address in %s is not used: %s", self.tcp_file, _reason(error))
            return None

    def remove(self) -> None:
        """Take the socket and the address away (only the holder of the life lock may)."""
        self.socket_file.unlink(missing_ok=True)
        self.tcp_file.unlink(missing_ok=True)
