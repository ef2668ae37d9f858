"""Settings with which Spark reads and writes S3: of the operator's pods, and of jobs that a user starts."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tailrace.common.errors import BadRequestError, StartError
from tailrace.pipelines.s3.libraries import are_installed, folder_of, locked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEME: Final = "s3a"
INSTALL_COMMAND: Final = "tailrace pipeline install-s3"
REGION_DEFAULT: Final = "us-east-1"
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Variable of a program that spark-submit has started, such as the driver in a pod: it has its settings already."""
PREFIX: Final = "spark.hadoop.fs.s3a."
DRIVER_CLASSES: Final = "spark.driver.extraClassPath"
JARS: Final = "spark.jars"
_PROVIDER: Final = f"{PREFIX}aws.credentials.provider"
_CONNECTOR: Final = "hadoop-aws"
_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def s3a_settings(endpoint: str, region: str) -> dict[str, str]:
    """Return settings of Spark for an S3 store, with credentials from the environment; an empty endpoint is AWS."""
    return {
        **endpoint_settings(endpoint),
        f"{PREFIX}endpoint.region": region or REGION_DEFAULT,
        f"{PREFIX}input.stream.type": "classic",
        # In memory, because Hadoop would run a shell to prepare folders for buffers on disk.
        f"{PREFIX}fast.upload.buffer": "bytebuffer",
        f"{PREFIX}fast.upload.active.blocks": "2",
        f"{PREFIX}multipart.size": "16M",
        _PROVIDER: "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider",
    }


def endpoint_settings(endpoint: str) -> dict[str, str]:
    """Return the settings that say where an S3 store is; none for AWS."""
    if not endpoint:
        return {}
    return {
        f"{PREFIX}endpoint": endpoint,
        f"{PREFIX}path.style.access": "true",
        f"{PREFIX}connection.ssl.enabled": "true" if endpoint.startswith("https:") else "false",
    }


def is_direct(settings: Mapping[str, str], endpoint: str) -> bool:
    """Return whether settings of Spark make it connect to an endpoint itself, not through a proxy."""
    return settings.get(f"{PREFIX}endpoint") == endpoint and f"{PREFIX}proxy.host" not in settings


def spark_url(url: str) -> str:
    """Return a URL as Spark takes it: ``s3://`` becomes ``s3a://``, another scheme stays.

    Raises:
        BadRequestError: the URL has credentials, or no bucket. The text does not show it: it may have a key.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in ("s3", SCHEME):
        return url
    bucket = rest.partition("/")[0]
    if "@" in bucket:
        raise BadRequestError("credentials do not belong into an s3a:// URL; variables AWS_… have them")
    if not bucket:
        raise BadRequestError(f"{url!r} has no bucket: s3a://BUCKET/FOLDER")
    return f"{SCHEME}://{rest}"


def settings_of_job(
    given: Mapping[str, str], places: Sequence[str], master: str, endpoint: str, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the settings of a job's session: the given ones, which win, and those by which it reaches S3.

    ``places`` are the URLs that it reads and writes; without one of ``s3a`` nothing is added. Region and credentials
    come from the environment (AWS_REGION, AWS_ACCESS_KEY_ID, …).

    Raises:
        BadRequestError: the endpoint is no URL. StartError: libraries or credentials are missing.
    """
    _check_endpoint(endpoint)
    if not any(place.startswith(f"{SCHEME}://") for place in places):
        return dict(given)
    if SUBMITTED in environment:
        return endpoint_settings(endpoint) | dict(given)
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or ""
    ours = s3a_settings(endpoint, region)
    if any(name.startswith(PREFIX) and name.endswith("access.key") for name in given):
        del ours[_PROVIDER]  # Hadoop's own order begins with the keys in its settings
    elif not any(name.startswith(PREFIX) and name.endswith("credentials.provider") for name in given):
        missing = [name for name in _KEYS if not environment.get(name)]
        if missing:
            raise StartError(f"s3a:// needs credentials: {' and '.join(missing)} {_are(missing)} not set")
    return ours | dict(given) | _library_settings(given, master, environment)


def _check_endpoint(endpoint: str) -> None:
    if not endpoint:
        return
    if "@" in endpoint:
        raise BadRequestError("--s3-endpoint: credentials do not belong into the address; variables AWS_… have them")
    try:
        parts = urlsplit(endpoint)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port or an address that is none
        is_url = False
    if not is_url:
        raise BadRequestError(f"--s3-endpoint {endpoint!r} is not of the form http://HOST:PORT")


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _library_settings(given: Mapping[str, str], master: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return settings that add the installed libraries to the given ones, where Spark has no connector of its own.

    Raises:
        StartError: they are not installed.
    """
    brought = (given.get(name, "") for name in (JARS, "spark.jars.packages", DRIVER_CLASSES))
    if any(_CONNECTOR in value for value in brought) or has_connector(spark_home(environment)):
        return {}
    libraries = locked()
    folder = folder_of(libraries, environment)
    if not are_installed(libraries, folder):
        raise StartError(f"s3a:// needs libraries that are not in {folder}: run {INSTALL_COMMAND}")
    found = {DRIVER_CLASSES: _joined(given.get(DRIVER_CLASSES), [f"{folder}/*"], os.pathsep)}
    if master != "local" and not master.startswith("local["):  # executors on other machines get them from the driver
        files = [(folder / each.name).as_uri() for each in libraries]
        found[JARS] = _joined(given.get(JARS), files, ",")
    return found


def _joined(given: str | None, ours: Sequence[str], separator: str) -> str:
    return separator.join([*([given] if given else []), *ours])


def spark_home(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of the Spark that PySpark starts; None without PySpark."""
    if environment.get("SPARK_HOME"):
        return Path(environment["SPARK_HOME"])
    found = find_spec("pyspark")
    return None if found is None or found.origin is None else Path(found.origin).parent


def has_connector(home: Path | None) -> bool:
    """Return whether a Spark has Hadoop's connector to S3, as that of the image for pipelines."""
    return home is not None and any((home / "jars").glob(f"{_CONNECTOR}-*.jar"))
