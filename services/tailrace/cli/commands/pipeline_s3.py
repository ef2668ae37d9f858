"""S3 in the commands of ``tailrace pipeline``: an option of all jobs, and `install-s3` (docs/spark-jobs.md#s3)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from tailrace.cli.commands.arguments import named_values, place_of
from tailrace.cli.output import print_json, print_line, progress_bar
from tailrace.cli.session import why_unreachable
from tailrace.cli.settings import JsonOption
from tailrace.common.errors import UnavailableError

S3EndpointOption = Annotated[
    str,
    typer.Option(metavar="URL", help="Endpoint of an S3-compatible object store; without it AWS.", show_default=False),
]


def spark_settings(conf: Sequence[str] | None, master: str, s3_endpoint: str, *places: str) -> dict[str, str]:
    """Return the settings of a job's session: those of --conf, and those by which it reaches its places in S3.

    Raises:
        BadParameter: a setting or a place is malformed. StartError: libraries or credentials are missing.
            UnavailableError: nothing listens at the endpoint.
    """
    from tailrace.pipelines.s3.settings import is_direct, settings_of_job

    urls = [place_of(place) for place in places]
    settings = settings_of_job(named_values("--conf", conf or ()), urls, master, s3_endpoint, os.environ)
    if s3_endpoint and is_direct(settings, s3_endpoint):
        asyncio.run(_check_reachable(s3_endpoint))
    return settings


async def _check_reachable(endpoint: str) -> None:
    """Raise UnavailableError unless something listens at an endpoint: Spark would try again for many minutes."""
    parts = urlsplit(endpoint)
    reason = await why_unreachable(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
    if reason:
        raise UnavailableError(f"the object store at {endpoint} cannot be reached: {reason}")


def install_s3(
    folder: Annotated[
        Path | None,
        typer.Argument(
            envvar="TAILRACE_S3_LIBRARIES",
            metavar="FOLDER",
            help="Where they go. For jobs the variable TAILRACE_S3_LIBRARIES names it.",
            show_default="~/.cache/tailrace",
        ),
    ] = None,
    repository: Annotated[str, typer.Option(metavar="URL", help="A mirror of Maven Central.", show_default=False)] = "",
    json: JsonOption = False,
) -> None:
    """Download the libraries with which jobs read and write s3a:// (15 MB), each verified by its SHA-256.

    What is there already is kept. Containers of a Pipeline have them in their image.
    """
    from tailrace.pipelines.s3.install import CENTRAL, install
    from tailrace.pipelines.s3.libraries import FOLDER_VARIABLE, folder_of, locked

    libraries = locked()
    place = folder_of(libraries, os.environ, folder)
    with progress_bar("downloading", len(libraries), shown=not json) as bar:
        downloaded = asyncio.run(install(libraries, place, repository or CENTRAL, lambda: bar.advance(1)))
    if json:
        print_json({"folder": str(place), "libraries": len(libraries), "downloaded": downloaded})
        return
    print_line(f"{len(libraries)} libraries, {downloaded} of them downloaded now: {place}")
    if folder_of(libraries, os.environ) != place:
        print_line(f"Jobs find them with {FOLDER_VARIABLE}={place.parent}")
