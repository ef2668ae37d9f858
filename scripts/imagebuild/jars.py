"""Libraries of Maven Central, as ``tailrace pipeline install-s3`` downloads them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from imagebuild import ImageError
from tailrace.common.errors import StartError
from tailrace.pipelines.s3.install import download
from tailrace.pipelines.s3.libraries import locked


def add_s3_libraries(folder: Path) -> None:
    """Put the libraries into a folder that exists. Raises ImageError: one cannot be had, or is another one."""
    try:
        asyncio.run(download(locked(), folder))
    except StartError as error:
        raise ImageError(str(error)) from error
