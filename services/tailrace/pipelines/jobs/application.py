"""Run a program of the user in the driver of a Pipeline (docs/pipelines.md#applications)."""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import BadRequestError, NotFoundError
from tailrace.pipelines.jobs.session import file_of, reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession


def run_program(file: Path, arguments: Sequence[str]) -> tuple[int, str]:
    """Run a program as Python would, and return its exit code and what it says of its end."""
    sys.argv = [str(file), *arguments]
    sys.path[0] = str(file.parent)
    try:
        runpy.run_path(str(file), run_name="__main__")
    except SystemExit as ended:
        return _ended(ended)
    except Exception as error:  # any that the program raises: its user reads it in the log and in the status
        traceback.print_exc()
        return 1, f"{type(error).__name__}: {reason_of(str(error))}"
    return 0, ""


def _ended(ended: SystemExit) -> tuple[int, str]:
    """Return the exit code of a program, and the text that it ended with, as Python treats them."""
    if ended.code is None or isinstance(ended.code, int):
        code = ended.code or 0
        return code, f"the program ended with exit code {code}" if code else ""
    sys.stderr.write(f"{ended.code}\n")
    return 1, str(ended.code)


def local_copy(spark: SparkSession, file: str, folder: Path) -> Path:
    """Return a local path of a program; what is not local is read through Spark's file systems.

    Raises:
        NotFoundError: there is no such file. BadRequestError: it is too long to be a program.
    """
    if "://" not in file:
        if not Path(file).is_file():
            raise NotFoundError(f"spec.application.file: the image has no file {file}")
        return Path(file)
    files, place = file_of(spark, file)
    if not files.exists(place):
        raise NotFoundError(f"spec.application.file: there is no object {file}")
    length_bytes = int(files.getFileStatus(place).getLen())
    if length_bytes > limits.PIPELINE_PROGRAM_MAX_BYTES:
        most = limits.PIPELINE_PROGRAM_MAX_BYTES
        raise BadRequestError(f"spec.application.file: {file} has {length_bytes} bytes, at most {most} are allowed")
    stream = files.open(place)
    try:
        content = bytes(stream.readAllBytes())
    finally:
        stream.close()
    copy = folder / str(place.getName())
    copy.write_bytes(content)
    return copy
