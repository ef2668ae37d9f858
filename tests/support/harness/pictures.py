"""What is in pictures that were drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_LEVELS = 255


def pixels(file: Path, color: str) -> int:
    """Return how many pixels of a PNG have exactly a color, ``#rrggbb``."""
    from matplotlib import image

    wanted = tuple(bytes.fromhex(color.removeprefix("#")))
    found = (image.imread(file)[:, :, :3] * _LEVELS).round()
    return int((found == wanted).all(axis=2).sum())
