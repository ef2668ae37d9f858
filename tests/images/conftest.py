"""The images, made once and unpacked. That for pipelines has 1.2 GB, so only the long form makes it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.imageroot import ImageRoot, make_images
from harness.kubecluster import IMAGES

REPOSITORY = Path(__file__).resolve().parents[2]
IS_FULL = os.environ.get("TAILRACE_TEST_PROFILE") == "full"

collect_ignore = [] if IS_FULL else ["test_spark_image.py"]


@pytest.fixture(scope="session")
def archives() -> dict[str, Path]:
    """Name → archive of each image."""
    return make_images(["all"] if IS_FULL else IMAGES, REPOSITORY)


@pytest.fixture(scope="module")
def image(archives: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageRoot]:
    """The image of the product."""
    folder = tmp_path_factory.mktemp("image")
    yield ImageRoot(archives["tailrace"], folder)
    shutil.rmtree(folder)
