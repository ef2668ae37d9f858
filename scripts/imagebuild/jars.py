"""Libraries of Maven Central: each is downloaded once and is what its SHA-256 says."""

from __future__ import annotations

import hashlib
import re
import urllib.error
import urllib.request
from pathlib import Path

from imagebuild import ImageError

CENTRAL = "https://repo1.maven.org/maven2"
DOWNLOAD_LIMIT_S = 60.0
LENGTH_MAX_BYTES = 64 << 20
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)+\.jar)")


def read_list(text: str) -> list[tuple[str, str]]:
    """Return SHA-256 and path of each library of a list. Raises ImageError: a line is neither that nor a comment."""
    found = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ImageError(f"no SHA-256 and path of a library: {line[:100]}")
        found.append((match[1], match[2]))
    return found


def download(libraries: list[tuple[str, str]], folder: Path) -> None:
    """Put the libraries into a folder. Raises ImageError: one cannot be had, or is not what its SHA-256 says."""
    folder.mkdir(parents=True)
    for digest, path in libraries:
        try:
            with urllib.request.urlopen(f"{CENTRAL}/{path}", timeout=DOWNLOAD_LIMIT_S) as answer:
                content = answer.read(LENGTH_MAX_BYTES + 1)
        except (urllib.error.URLError, OSError) as error:
            raise ImageError(f"{CENTRAL}/{path}: {error}") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise ImageError(f"{CENTRAL}/{path} has another SHA-256 than images/spark.jars says")
        (folder / path.rpartition("/")[2]).write_bytes(content)
