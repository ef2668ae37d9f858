"""What a real S3 store answers for objects and buckets that do not exist (docs/design.md#tier-2)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from harness.minio import MinioProcess
from tailrace.common.errors import NoSuchBucketError, NotFoundError, StartError, UnavailableError
from tailrace.log.probe import probe_conditions
from tailrace.storage.obstores import open_object_store, probe
from tailrace.storage.port import ObjectStore


@pytest.fixture(params=["bucket", "no bucket"])
async def store(
    request: pytest.FixtureRequest, minio_server: MinioProcess, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ObjectStore]:
    for name, value in minio_server.credentials.items():
        monkeypatch.setenv(name, value)
    bucket = minio_server.new_bucket() if request.param == "bucket" else "no-such-bucket"
    made = open_object_store(f"s3://{bucket}/a/prefix", s3_endpoint=minio_server.endpoint)
    yield made
    await made.close()


@pytest.mark.parametrize("store", ["bucket"], indirect=True)
async def test_a_missing_object_is_not_found(store: ObjectStore) -> None:
    with pytest.raises(NotFoundError, match="object a/k does not exist"):
        await store.get("a/k")
    with pytest.raises(NotFoundError, match="object a/k does not exist"):
        await store.get_range("a/k", 3, 5)
    await store.delete(["a/k", "a/l"])
    assert [info async for info in store.list("a")] == []


@pytest.mark.parametrize("store", ["no bucket"], indirect=True)
async def test_nothing_is_known_of_a_missing_bucket(store: ObjectStore) -> None:
    with pytest.raises(NoSuchBucketError, match="NoSuchBucket: The specified bucket does not exist"):
        await store.get("k")
    with pytest.raises(NoSuchBucketError):
        await store.get_range("k", 3, 5)
    with pytest.raises(NoSuchBucketError):
        await store.put("k", [b"x"], if_absent=True)
    with pytest.raises(NoSuchBucketError):
        await store.delete(["k", "l"])
    with pytest.raises(UnavailableError, match="NoSuchBucket"):
        assert [info async for info in store.list("a")]
    with pytest.raises(StartError, match="Tier 2 does not exist: objects cannot be stored there"):
        await probe(store, "nonce")
    with pytest.raises(StartError, match="the object store cannot hold the log: it does not exist"):
        await probe_conditions(store, "nonce")
