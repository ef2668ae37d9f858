"""Arguments and options of several commands."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from tailrace.cli import values
from tailrace.client.model import StreamName
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, InvalidNameError, UnsupportedError
from tailrace.common.stream_cut import StreamCut

T = TypeVar("T")


def checked(parse: Callable[[str], T], text: str, name: str | None = None) -> T:
    """Parse a value. Raises BadParameter for malformed text; an invalid name raises its own error.

    `name` is that of the option or argument; typer knows it only while it parses the command line.
    """
    try:
        return parse(text)
    except InvalidNameError:
        raise
    except BadRequestError as error:
        raise typer.BadParameter(str(error), param_hint=name and f"'{name}'") from error


def size(text: str) -> int:
    """Parse a size for typer."""
    return checked(values.parse_size, text)


def join_size(text: str) -> int:
    """Parse the size up to which folders are joined for typer."""
    found = size(text)
    if not 0 < found <= limits.SPARK_COMPACTION_SIZE_MAX_BYTES:
        raise typer.BadParameter(f"it is from 1 to {limits.SPARK_COMPACTION_SIZE_MAX_BYTES} bytes (16GiB)")
    return found


def duration_ms(text: str, name: str | None = None) -> int:
    """Parse a duration for typer, or of the option `name`."""
    return checked(values.parse_duration_ms, text, name)


def period_s(text: str) -> float:
    """Parse the time between two rounds of a job for typer."""
    value = duration_ms(text) / 1000
    if value < limits.RETENTION_PERIOD_MIN_S:
        raise typer.BadParameter(f"{text[:80]!r} is less than {round(1000 * limits.RETENTION_PERIOD_MIN_S)}ms")
    return value


def stream_name(text: str) -> StreamName:
    """Parse SCOPE/STREAM for typer."""
    return checked(StreamName.parse, text)


def position(text: str, name: str | None = None) -> str | StreamCut:
    """Parse head, tail or a stream cut for typer, or of the option `name`."""
    return checked(values.parse_position, text, name)


def named_values(name: str, texts: Sequence[str]) -> dict[str, str]:
    """Return the texts NAME=VALUE of the option `name` by their names. Raises BadParameter."""
    found = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=name)
        found[key] = value
    return found


def place_of(folder: str) -> str:
    """Return a folder or a pattern as Spark wants it: a path made absolute, a URL unchanged, but ``s3://`` as ``s3a://``.

    Nothing is escaped: Hadoop takes what follows ``file://`` unchanged. Raises BadParameter for a wrong URL of S3.
    """
    from tailrace.pipelines.s3.settings import spark_url

    return checked(spark_url, folder) if "://" in folder else f"file://{Path(folder).absolute()}"


def picture(file: Path | None) -> Path | None:
    """Check for typer that a picture can be drawn into a file, before the work whose result it shows.

    Raises BadParameter, UnsupportedError.
    """
    if file is None:
        return None
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError("--plot needs matplotlib: install tailrace[dev]")
    return result_file(file)


def result_file(file: Path | None) -> Path | None:
    """Check for typer that a file can be written, before the work whose result it holds. Raises BadParameter."""
    if file is None:
        return None
    if not file.parent.is_dir():
        raise typer.BadParameter(f"{file.parent} is not a folder")
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a folder")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise typer.BadParameter(f"{file} cannot be written")
    return file


RetentionPeriodOption = Annotated[
    float,
    typer.Option(
        parser=period_s,
        metavar="DURATION",
        help="Time between two truncations of a stream by its retention policy.",
        show_default="30m",
    ),
]
WatermarkPeriodOption = Annotated[
    float,
    typer.Option(
        parser=period_s,
        metavar="DURATION",
        help="Time between two looks at the times that writers noted, for watermarks.",
        show_default="10s",
    ),
]
ScalingTimeFactorOption = Annotated[
    float,
    typer.Option(
        min=limits.SCALING_TIME_FACTOR_MIN,
        max=1.0,
        metavar="FACTOR",
        help="Factor of all times of automatic scaling: with 0.01, to try it out, ten minutes are six seconds.",
    ),
]
StreamArgument = Annotated[
    StreamName, typer.Argument(parser=stream_name, metavar="SCOPE/STREAM", help="The stream.", show_default=False)
]
ScopeArgument = Annotated[str, typer.Argument(metavar="SCOPE", help="The scope.", show_default=False)]
