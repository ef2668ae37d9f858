"""Sums the sizes of the files of a folder that a server or a store is using."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def bytes_in_files(folder: Path) -> int:
    """The bytes in all files below a folder, in which others add, rename and remove some meanwhile."""
    held = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                held += (Path(parent) / name).stat().st_size
    return held
