"""The images, made once and unpacked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.imageroot import ImageRoot, make_images

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def archives() -> dict[str, Path]:
    """Name → archive of every image."""
    return make_images(["all"], REPOSITORY)


@pytest.fixture(scope="module")
def image(archives: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageRoot]:
    """The image of the product."""
    folder = tmp_path_factory.mktemp("image")
    yield ImageRoot(archives["tailrace"], folder)
    shutil.rmtree(folder)
