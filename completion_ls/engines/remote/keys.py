"""The key for a server, and whether it, and the code, may be sent to an address at all.

A key is in the environment, or in the keyring (the optional package `keyring`) under the service
"completion-ls" and the server's host and port. It is no setting, and stands in no message and no log.
"""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from completion_ls.config import api_key as environment
from completion_ls.config.api_key import API_KEY_VARIABLE
from completion_ls.engines.remote.errors import ServerError

log = logging.getLogger(__name__)

SERVICE = "completion-ls"
KEYRING = "the keyring"


@dataclass(frozen=True, slots=True)
class Key:
    """A key, and where it was found."""

    value: str = field(repr=False)
    source: str


def api_key(url: str) -> str | None:
    """The key for the server at `url`; None where there is none. Raises ServerError where it can be none."""
    found = find(url)
    return found.value if found else None


def find(url: str) -> Key | None:
    """The same with where it was found. The environment, which is that of the window that started the
    daemon, goes before the keyring. Raises ServerError where it holds what no header can carry."""
    value, source = environment.of_environment().strip(), API_KEY_VARIABLE
    if not value:
        value, source = _of_keyring(user(url)).strip(), KEYRING
    if not value:
        return None
    if not all("!" <= character <= "~" for character in value):
        raise ServerError(
            f"The key in {source} has characters that a key cannot have (letters with accents, blanks or "
            "control characters); put it there again.",
            lasts=True,
        )
    return Key(value, source)


def user(url: str) -> str:
    """The name of a server's key in the keyring: its host, with the port where the address has one."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        return ""


def check(url: str, key: str | None) -> None:
    """Raise ServerError (a sentence that does not hold the address, which may have a password in it)
    where nothing may be sent there, or not with this key."""
    address = _address(url)
    if key and address.scheme == "http" and not is_this_machine(url):
        raise ServerError(
            "remote.url is plain HTTP to another machine, and a key would go there for everybody to read. "
            "Use https, or a tunnel to a port of this machine (`ssh -L 8080:127.0.0.1:8080 HOST`, and "
            "http://127.0.0.1:8080).",
            lasts=True,
        )


def is_this_machine(url: str) -> bool:
    """Whether what is sent to an address stays on this machine: by its name, nothing is looked up."""
    host = _address(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address(url: str) -> SplitResult:
    """The parts of an address that a server can have. Raises ServerError."""
    if not url:
        raise ServerError(
            "engine.kind is remote, and remote.url names no server. Write its address into your config.toml, "
            'below [remote]: url = "http://127.0.0.1:8080".',
            lasts=True,
        )
    try:
        address = urlsplit(url)
        host, _ = address.hostname, address.port
    except ValueError as error:
        raise _wrong("cannot be read") from error
    if not all("!" <= character <= "~" for character in url):
        raise _wrong("has blanks, control characters or letters beyond ASCII in it")
    if address.scheme not in ("http", "https"):
        raise _wrong("does not begin with http:// or https://")
    if "@" in address.netloc:
        where = f"put the key into {API_KEY_VARIABLE} or the keyring"
        raise _wrong(f"has a name or a password in it, which is no place for one: {where}")
    if not host:
        raise _wrong("names no host")
    if "?" in url or "#" in url:
        raise _wrong('has a query or a fragment ("?", "#"), which no request would have')
    return address


def _wrong(what: str) -> ServerError:
    return ServerError(
        f"remote.url {what}. It must be an address such as http://127.0.0.1:8080.", lasts=True
    )


def _of_keyring(name: str) -> str:
    """The keyring's password of that name; empty where there is none, or no keyring that answers."""
    if not name:
        return ""
    try:
        import keyring
    except ImportError:
        return ""
    try:
        return keyring.get_password(SERVICE, name) or ""
    except Exception as error:  # each keyring has errors of its own: it is locked, or there is none
        log.warning("the keyring does not answer (%s)", type(error).__name__)
        return ""
