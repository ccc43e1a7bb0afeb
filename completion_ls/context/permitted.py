"""Which files may be read for the completion of another one.

A file must lie in a folder of the workspace, also where its symbolic links lead; neither git's
ignore files nor the user's own patterns may match it, and its name must not be one that secrets
have. The same holds for a document that is open in the editor.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from completion_ls.config.there import is_there
from completion_ls.context.surroundings import MAX_LENGTH

SECRETS = (
    *(".env*", "*.env", ".netrc", "_netrc", ".npmrc", ".yarnrc*", ".pypirc"),
    *("*.pem", "*.key", "*.p8", "*.p12", "*.pfx", "*.ppk", "*.asc", "*.gpg", "*.der", "*.ovpn"),
    *("*.jks", "*.keystore", "*.truststore", "*.kdb", "*.kdbx", "*.keychain*"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "authorized_keys", "known_hosts"),
    *(
        "*credential*",
        "secret",
        "secrets",
        ".secret*",
        "secret.*",
        "secrets.*",
        "*.secret",
        "*.secrets",
        "*_secret.*",
        "*_secrets.*",
    ),
    *("*-secret.*", "*-secrets.*", ".git-credentials", ".htpasswd", ".pgpass", ".my.cnf"),
    *("*service-account*.json", "*service_account*.json", "*client_secret*", "local.settings.json"),
    *(".dockercfg", ".dockerconfigjson", "*.tfstate", "*.tfstate.*", "*.tfvars", "*.tfvars.*"),
    *("*password*.txt", "passwords.*", "kubeconfig", ".vault*", "*.vault"),
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".git", ".hg", ".svn"),
)
"""Names, in small letters, of files and folders that hold secrets, or nothing that is code."""

_PRIVATE_KEY = re.compile("---- ?BEGIN [A-Z0-9 ]*PRIVATE KEY|PuTTY-User-Key-File-")
_COPY = re.compile(r"^[.#]*#|(?:~|#|\.~\d+~|\.(?:bak|backup|copy|old|orig|save|sw[a-p]|tmp))+$")
"""What editors and people add to the name of a copy."""
_IGNORE_FILE = ".gitignore"


class BadPattern(ValueError):
    """A line that is no pattern of a .gitignore."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file stands in the workspace."""

    folder: int
    """Which folder of the workspace, from 0."""
    path: str
    """In the folder, with `/`."""


class Permitted:
    """The rules for the folders of one workspace. For one thread."""

    def __init__(self, folders: Sequence[Path], exclude: Sequence[str]) -> None:
        """`exclude` are patterns as in a .gitignore at the top of each folder. Raises BadPattern
        where one cannot be read."""
        self._folders = [_real(folder) for folder in folders]
        self._exclude = patterns(exclude)
        self._specs: dict[Path, tuple[object, GitIgnoreSpec | None]] = {}

    def place(self, file: Path) -> Place | None:
        """Where a file stands, whether it may be read or not; None outside the workspace."""
        real = _real(file)
        folder = self._around(real)
        if folder is None:
            return None
        return Place(self._folders.index(folder), real.relative_to(folder).as_posix())

    def allows(self, file: Path) -> bool:
        """Whether the file may be read."""
        return self.allowed(file) is not None

    def allowed(self, file: Path) -> Path | None:
        """Where its links lead, if the file may be read. Read this path, as `file` may lead elsewhere by
        then."""
        real, named = _real(file), _absolute(file)
        if self._around(real) is None:
            return None
        may = all(self._allows_name(path) for path in dict.fromkeys((real, named)))
        return real if may else None

    def enters(self, folder: Path) -> bool:
        """Whether a folder inside the workspace may hold files that may be read."""
        return self._allows_name(_absolute(folder), is_folder=True)

    def folder(self, place: Place) -> Path:
        """The folder of a place."""
        return self._folders[place.folder]

    def path(self, place: Place) -> Path:
        """The file at a place."""
        return self.folder(place) / place.path

    def _allows_name(self, named: Path, *, is_folder: bool = False) -> bool:
        """Whether a path may be read by its names; it may be one over symbolic links, from outside, too."""
        if named.name.endswith("\n"):  # a pattern of the name without that would count for it
            return False
        folder = self._around(named)
        if folder is None:
            return not _is_secret(named.name)
        path = named.relative_to(folder).as_posix()
        return not _is_secret(path) and not self._is_ignored(folder, named, is_folder=is_folder)

    def _around(self, file: Path) -> Path | None:
        """The innermost folder of the workspace in which a path lies."""
        inside = [folder for folder in self._folders if folder in file.parents]
        return max(inside, key=lambda one: len(one.parts), default=None)

    def _is_ignored(self, folder: Path, file: Path, *, is_folder: bool) -> bool:
        path = file.relative_to(folder)
        for part in [*reversed(path.parents[:-1]), path]:
            end = "/" if is_folder or part != path else ""
            if self._exclude.match_file(_as_pattern_text(part) + end):
                return True
        top = _repository(folder)
        inner = file.relative_to(top)
        # What a folder that is ignored holds is ignored: no pattern brings it back.
        return any(
            self._git_ignores(top, top / part, is_folder=is_folder or part != inner)
            for part in [*reversed(inner.parents[:-1]), inner]
        )

    def _git_ignores(self, top: Path, file: Path, *, is_folder: bool) -> bool:
        """Whether git ignores this one file or folder: the nearest file of patterns decides."""
        for folder, patterns in self._sources(top, file):
            spec = self._spec(patterns)
            name = _as_pattern_text(file.relative_to(folder)) + ("/" if is_folder else "")
            found = spec.check_file(name).include if spec else None
            if found is not None:
                return found
        return False

    def _sources(self, top: Path, file: Path) -> Iterator[tuple[Path, Path]]:
        """Folders and the files of patterns for them, the nearest first."""
        for folder in file.parents:
            yield folder, folder / _IGNORE_FILE
            if folder == top:
                break
        yield top, top / ".git" / "info" / "exclude"
        settings = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
        yield top, Path(settings).expanduser() / "git" / "ignore"

    def _spec(self, patterns: Path) -> GitIgnoreSpec | None:
        """The patterns of a file as it is now."""
        try:
            now = patterns.stat()
        except OSError:
            return None
        stamp = now.st_mtime_ns, now.st_size, now.st_ino
        known = self._specs.get(patterns)
        if known is None or known[0] != stamp:
            known = self._specs[patterns] = stamp, _read_patterns(patterns)
        return known[1]


def read_text(file: Path) -> str | None:
    """The text of a file with LF line ends; None where it is none, or too much, or cannot be read, or where
    a link is on the way."""
    try:
        text = _data(file, _open_without_links).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text if is_code(text) else None


def _data(file: Path, opener: Callable[[str, int], int]) -> bytes:
    """What a file holds. Raises OSError where it is none, or too long, or cannot be read."""
    with open(file, "rb", opener=opener) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError("it is no file")
        data = stream.read(MAX_LENGTH + 1)
    if len(data) > MAX_LENGTH:
        raise OSError("it is too long")
    return data


def _open(file: str, flags: int) -> int:
    # Opening a pipe would wait for whoever writes.
    return os.open(file, flags | getattr(os, "O_NONBLOCK", 0))


def _open_without_links(file: str, flags: int) -> int:
    """As `_open`, from folder to folder: who may write in one of them could make a link of it, or of the
    file, after it was looked where the path leads."""
    if os.open not in os.supports_dir_fd:
        return _open(file, flags)
    no_link = flags | os.O_NOFOLLOW | os.O_NONBLOCK
    *folders, name = Path(file).absolute().parts
    here = os.open(folders[0], _FOLDER)
    try:
        for folder in folders[1:]:
            there = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = there
        return os.open(name, no_link, dir_fd=here)
    finally:
        os.close(here)


_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
"""Some folders may be passed and not be read."""


def is_code(text: str) -> bool:
    """Whether a text may be taken for code, and is not too long: no binary data, no private key."""
    return len(text) <= MAX_LENGTH and "\0" not in text and not _PRIVATE_KEY.search(text)


def _is_secret(path: str) -> bool:
    return any(
        fnmatchcase(name, pattern)
        for part in path.lower().split("/")
        for name in {part, _COPY.sub("", part)}
        for pattern in SECRETS
    )


def _repository(folder: Path) -> Path:
    """The top of the git repository in which a folder lies; else the folder."""
    return next((one for one in (folder, *folder.parents) if is_there(one / ".git")), folder)


def patterns(lines: Iterable[str]) -> GitIgnoreSpec:
    """The patterns of these lines. Raises BadPattern, with the line, where one cannot be read."""
    return GitIgnoreSpec([pattern for line in lines for pattern in _patterns_of(line)])


def _patterns_of(line: str) -> list[GitIgnoreSpecPattern]:
    try:
        found = list(GitIgnoreSpec.from_lines([line]).patterns)
        for pattern in found:
            if pattern.regex:
                # DOTALL: the folders that two stars stand for may have a line end in their names.
                regex = _without_going_back(pattern.regex.pattern)
                pattern.regex = re.compile(regex, re.DOTALL)
    except (ValueError, re.error, RecursionError) as error:
        raise BadPattern(line) from error
    return found


_STAR = r"\[\^/\]\*"
_SOMETHING = rf"(?:(?!{_STAR})(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/()|\[\\]))*"
_STAR_BEFORE_ANOTHER = re.compile(rf"{_STAR}({_SOMETHING})(?={_STAR})", re.DOTALL)


_FOLDERS = re.compile(r"(\(\?:\.\+/\)\?|\(\?:/\.\+\)\?)")
"""What `**` has become, at the front and further behind. (No text of a pattern reads so: its signs are
escaped.)"""
_FEWEST = {"(?:.+/)?": "(?:.+?/)??", "(?:/.+)?": "(?:/.+?)??"}


def _without_going_back(regex: str) -> str:
    """The same for patterns with many stars, without the time that grows with each of them: what a star
    stands for ends where the text behind it first comes, and so do the folders that two stars stand for,
    up to the next two. (No other thread runs during a match.)"""
    regex = _STAR_BEFORE_ANOTHER.sub(r"(?>[^/]*?\1)", regex)
    head, *rest = _FOLDERS.split(regex)
    parts = list(zip(rest[::2], rest[1::2], strict=True))
    before_another = [f"(?>{_FEWEST[folders]}{behind}(?=/))" for folders, behind in parts[:-1]]
    return "".join([head, *before_another, *(parts[-1] if parts else ())])


def _read_patterns(file: Path) -> GitIgnoreSpec:
    """The patterns of a file, without those that git cannot read either; where the file cannot be read
    it ignores all."""
    try:
        text = _data(file, _open).decode("utf-8-sig", "replace")
    except OSError:
        return patterns(["*"])
    found: list[GitIgnoreSpecPattern] = []
    for line in text.split("\n"):
        with contextlib.suppress(BadPattern):
            found += _patterns_of(line.removesuffix("\r"))
    return GitIgnoreSpec(found)


def _as_pattern_text(path: PurePath) -> str:
    """A path as a file of patterns would have it: what is no UTF-8 is replaced there, too."""
    return os.fsencode(path.as_posix()).decode("utf-8", "replace")


def _absolute(file: Path) -> Path:
    return Path(os.path.abspath(file))  # noqa: PTH100 - without following links


def _real(file: Path) -> Path:
    return Path(os.path.realpath(file))
