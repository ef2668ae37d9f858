"""The libraries with which Spark reads and writes s3a:// URLs, and where they are installed."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace.common.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LIST: Final = "spark.jars"
FOLDER_VARIABLE: Final = "TAILRACE_S3_LIBRARIES"
_LINE: Final = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)+\.jar)")


@dataclass(frozen=True, slots=True)
class Library:
    """A library: the SHA-256 of its bytes in hex, and its path in a Maven repository."""

    sha256: str
    path: str

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.path.rpartition("/")[2]


def list_text() -> str:
    """Return the list of the libraries that is shipped."""
    return resources.files(__package__).joinpath(LIST).read_text(encoding="ascii")


def read_list(text: str) -> list[Library]:
    """Return the libraries of a list. Raises BadRequestError: a line is neither SHA-256 and path nor a comment."""
    found = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise BadRequestError(f"no SHA-256 and path of a library: {line[:100]}")
        found.append(Library(match[1], match[2]))
    return found


def locked() -> list[Library]:
    """Return the libraries that this version of Tailrace works with."""
    return read_list(list_text())


def folder_of(libraries: Sequence[Library], environment: Mapping[str, str], parent: Path | None = None) -> Path:
    """Return the folder where libraries are installed: its name depends on the list, so another list has another one.

    It lies in `parent`, else in the folder that TAILRACE_S3_LIBRARIES names, else in the user's cache.
    """
    named = environment.get(FOLDER_VARIABLE)
    place = parent or (Path(named) if named else _cache(environment))
    digest = hashlib.sha256("".join(f"{each.sha256} {each.name}\n" for each in libraries).encode())
    return place.absolute() / f"spark-s3-{digest.hexdigest()[:16]}"


def _cache(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace"


def are_installed(libraries: Sequence[Library], folder: Path) -> bool:
    """Return whether a folder has all of them. What they hold was checked when they were installed."""
    return all((folder / each.name).is_file() for each in libraries)
