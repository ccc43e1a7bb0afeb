"""Folders and files that only this user may read: made so, and checked before they are trusted.

On systems without POSIX rights the user's own folders are private by themselves, so nothing is checked.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

POSIX = os.name == "posix"
OTHERS = 0o077
MOST_LINKS = 40
"""As many as the kernel follows."""


def check_folder(folder: Path) -> None:
    """Raise PermissionError (a sentence) where a folder is not this user's alone: it is a link, belongs
    to another user, is open to others, or lies where others may put another one in its place. Raises
    OSError where it is not there."""
    if not POSIX:
        return
    folder = folder.absolute()
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid():
        raise PermissionError(
            f"The folder {folder} is a link or belongs to another user, so no socket is put there and "
            f"none is used. Remove it, {_ELSE}."
        )
    if stat.S_IMODE(state.st_mode) & OTHERS:
        raise PermissionError(
            f"The folder {folder} is open to others; close it (`chmod 700 {folder}`), {_ELSE}."
        )
    check_place(folder)


def check_owned(folder: Path) -> None:
    """Raise PermissionError (a sentence) where anybody but this user could have put something into a
    folder, or could exchange it. Others may look into it."""
    check_place(folder.absolute() / "x")


def check_place(path: Path) -> None:
    """Raise PermissionError (a sentence) where others could put another file or folder in the place of
    this one: where a folder or link on the way to it is theirs, or may be written by them."""
    if not POSIX:
        return
    for place, state in _on_the_way(path.absolute()):
        if state.st_uid not in _trusted_owners():
            whose = f"{place} belongs to another user (uid {state.st_uid})"
        elif _others_may_write(state):
            whose = f"{place} may be written by others"
        else:
            continue
        raise PermissionError(
            f"{whose}, who could put another file or folder in the place of {path}, so that is not used. "
            f"Change the owner or the rights of {place}, or name another folder ({_FOLDERS})."
        )


def write(file: Path, text: str) -> None:
    """Write a file that only this user may read, all at once or not at all."""
    new = file.with_name(f"{file.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)  # on a full disk each process would leave one
        raise


def read(file: Path, most: int) -> bytes:
    """The content of a file as `write` makes it, at most so many bytes. Raises PermissionError where it
    is no file, a link, of another user or open to others, and OSError."""
    # A FIFO would be waited for.
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | _NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        _check_file(file, descriptor, closed_to=OTHERS)
        return stream.read(most)


def open_log(file: Path) -> int:
    """A descriptor that appends to a file which only this user may read: one that is there already is
    closed to others. Raises PermissionError where it is no file, a link or of another user, and OSError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | _NONBLOCK
    descriptor = os.open(file, flags, 0o600)
    try:
        _check_file(file, descriptor, closed_to=0)
        if POSIX:
            os.fchmod(descriptor, 0o600)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
_FOLDERS = "COMPLETION_LS_RUNTIME_DIR for sockets, COMPLETION_LS_CACHE_DIR for models"
_ELSE = "or name another folder in COMPLETION_LS_RUNTIME_DIR"


def _check_file(file: Path, descriptor: int, *, closed_to: int) -> None:
    if not POSIX:
        return
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode) or state.st_uid != os.getuid():
        raise PermissionError(f"{file} is no file, or belongs to another user; it is not used.")
    if stat.S_IMODE(state.st_mode) & closed_to:
        raise PermissionError(f"{file} is open to others, so it is not used.")


def _on_the_way(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every folder and link that is looked into on the way to a path."""
    here, links = Path(path.anchor), 0
    rest = list(reversed(path.parent.parts[1:]))
    yield here, here.lstat()
    while rest:
        name = rest.pop()
        if name == "..":
            here = here.parent
            continue
        there = here / name
        state = there.lstat()
        yield there, state
        if not stat.S_ISLNK(state.st_mode):
            here = there
            continue
        links += 1
        if links > MOST_LINKS:
            raise PermissionError(f"Links on the way to {path} lead in a circle; it is not used.")
        target = there.readlink()
        if target.is_absolute():
            here = Path(target.anchor)
        rest += reversed([part for part in target.parts if part != target.anchor])


def _others_may_write(state: os.stat_result) -> bool:
    """In a folder with the sticky bit (/tmp), who may write cannot move what is another user's."""
    if stat.S_ISLNK(state.st_mode) or state.st_mode & stat.S_ISVTX:
        return False
    by_group = state.st_mode & stat.S_IWGRP and not _is_own_group(state.st_gid)
    return bool(by_group or state.st_mode & stat.S_IWOTH)


def _is_own_group(group: int) -> bool:
    """Whether nobody else is in a group: many systems give each user a group of the same name, and
    folders that it may write."""
    import grp
    import pwd

    try:
        found, user = grp.getgrgid(group), pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return False
    return found.gr_name == user and set(found.gr_mem) <= {user}


def _trusted_owners() -> set[int]:
    """This user and root. In a sandbox that knows this user alone (Flatpak), all others, root too, have
    the same number, so there it cannot be told apart."""
    trusted = {0, os.getuid()}
    try:
        mapped = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
        if not any(int(first) <= 0 < int(first) + int(count) for first, _, count in mapped):
            trusted.add(int(Path("/proc/sys/kernel/overflowuid").read_text()))
    except (OSError, ValueError):
        pass  # not Linux
    return trusted
