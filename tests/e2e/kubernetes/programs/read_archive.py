"""Reads the Parquet files of an archive and judges its events: each once, and in order within its segment.
Says also how many folders of batches there are, and the number of the newest.

usage: read_archive.py ENDPOINT BUCKET/FOLDER; credentials as AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY
"""

from __future__ import annotations

import os
import re
import sys

import pyarrow.dataset
import pyarrow.fs
from judging import judge
from sequences import Sequences
from telling import tell


def main() -> None:
    """Read, judge, tell."""
    endpoint, folder = sys.argv[1:]
    scheme, _, host = endpoint.partition("://")
    store = pyarrow.fs.S3FileSystem(
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        endpoint_override=host,
        scheme=scheme,
        region="us-east-1",
    )
    files = pyarrow.dataset.dataset(folder, filesystem=store, format="parquet")
    rows = files.to_table(columns=["segment", "offset", "value"])
    rows = rows.sort_by([("segment", "ascending"), ("offset", "ascending")])
    read = Sequences()
    for value in rows.column("value").to_pylist():
        judge(value, read)
    batches = {int(number) for path in files.files for number in re.findall(r"/batch=(\d+)/", path)}
    tell("end", **read.report(), folders=len(batches), newest=max(batches, default=-1))


if __name__ == "__main__":
    main()
