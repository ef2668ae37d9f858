"""Writes a text as an object.

usage: store_text.py ENDPOINT BUCKET/KEY TEXT; credentials as AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY
"""

from __future__ import annotations

import os
import sys

import pyarrow.fs


def main() -> None:
    """Make the bucket, and write."""
    endpoint, place, text = sys.argv[1:]
    scheme, _, host = endpoint.partition("://")
    store = pyarrow.fs.S3FileSystem(
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        endpoint_override=host,
        scheme=scheme,
        region="us-east-1",
        allow_bucket_creation=True,
    )
    store.create_dir(place.partition("/")[0])
    with store.open_output_stream(place) as stream:
        stream.write(text.encode())


if __name__ == "__main__":
    main()
