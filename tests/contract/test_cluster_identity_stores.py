"""``cluster.json`` binds a prefix to one cluster on every real object store (docs/design.md#tier-2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tailrace.cluster.cluster_identity import CLUSTER_KEY, bind_tier2, read_cluster_id
from tailrace.common.errors import StartError
from tailrace.storage.obstores import open_object_store
from tailrace.storage.port import ObjectStore

STARTS = 8
ROUNDS = 10


@pytest.fixture(params=["folder", "MinIO"])
async def stores(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[ObjectStore]]:
    """What each start uses: connections of its own to a bucket, a store of its own over a folder."""
    if request.param == "folder":
        made = [open_object_store(f"file://{tmp_path}") for _ in range(STARTS)]
    else:
        minio = request.getfixturevalue("minio_server")
        for name, value in minio.credentials.items():
            monkeypatch.setenv(name, value)
        bucket = minio.new_bucket()
        made = [open_object_store(f"s3://{bucket}/a/prefix", s3_endpoint=minio.endpoint) for _ in range(STARTS)]
    yield made
    for store in made:
        await store.close()


async def start(store: ObjectStore, cluster: str) -> bool:
    """Whether this start of the cluster may use the store."""
    try:
        await bind_tier2(store, "Tier 2", cluster, 4, bound=False)
    except StartError:
        return False
    return True


async def test_of_clusters_that_start_at_once_one_gets_the_prefix(stores: list[ObjectStore]) -> None:
    clusters = ["one", "two"] * (STARTS // 2)
    for _ in range(ROUNDS):
        served = await asyncio.gather(*map(start, stores, clusters))
        winner = await read_cluster_id(stores[0], "Tier 2")
        assert winner in ("one", "two")
        assert served == [cluster == winner for cluster in clusters]
        await stores[0].delete([CLUSTER_KEY])
