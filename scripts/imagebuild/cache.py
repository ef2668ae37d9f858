"""What takes long to make stays in the user's cache, outside the repository, under a key of what it is made from."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

KEPT = 3
"""Generations of one thing that stay: the latest ones used."""


def cache_folder() -> Path:
    """The project's folder in the user's cache; made when it is not there."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def exclusive() -> Iterator[None]:
    """One making of images at a time: a second one waits for the first and finds its results."""
    with (cache_folder() / "images.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def key(*parts: str | bytes | Path) -> str:
    """A short digest of texts and of the content of files."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8) + content)
    return digest.hexdigest()[:16]


def kept(name: str, identity: str, make: Callable[[Path], None], again: bool = False) -> Path:
    """The folder of this name and identity: as it was kept, or filled by ``make`` (``again``: in any case)."""
    final = cache_folder() / f"image-{name}-{identity}"
    if final.is_dir() and not again:
        os.utime(final)
        return final
    staging = Path(tempfile.mkdtemp(dir=cache_folder(), prefix=f".image-{name}-"))
    try:
        make(staging)
        staging.chmod(0o755)
        shutil.rmtree(final, ignore_errors=True)
        staging.rename(final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    os.utime(final)
    for old in sorted(final.parent.glob(f"image-{name}-{'?' * 16}"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old)
    return final


def normalise(root: Path) -> None:
    """Modes that depend neither on who builds nor on the umask."""
    for path in root.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
