"""Looks into the bucket of a cluster, and marks a prefix as another cluster's. Credentials come from the environment.

usage: objects.py ENDPOINT BUCKET list PREFIX
       objects.py ENDPOINT BUCKET sizes PREFIX
       objects.py ENDPOINT BUCKET mark PREFIX CLUSTER_ID CONTAINERS
"""

from __future__ import annotations

import io
import json
import os
import sys

from minio import Minio


def main() -> None:
    """Run the command; print the objects below the prefix with the hashes of their contents, or with their lengths."""
    endpoint, bucket, command, prefix, *rest = sys.argv[1:]
    keys = os.environ["ACCESS_KEY"], os.environ["SECRET_KEY"]
    client = Minio(endpoint.removeprefix("http://"), *keys, secure=False)
    if command == "mark":
        mark = json.dumps({"format": 1, "cluster": rest[0], "containers": int(rest[1])}).encode()
        client.put_object(bucket, f"{prefix}/cluster.json", io.BytesIO(mark), len(mark))
    found = client.list_objects(bucket, f"{prefix}/", recursive=True)
    print(json.dumps({item.object_name: item.size if command == "sizes" else item.etag for item in found}))


if __name__ == "__main__":
    main()
