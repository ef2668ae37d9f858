"""Rules of a bucket on a real MinIO server, as the operator finds them (docs/kubernetes.md#rules-of-the-bucket)."""

from __future__ import annotations

import secrets

import pytest
from minio import Minio
from minio.commonconfig import ENABLED, GOVERNANCE, Filter
from minio.lifecycleconfig import Expiration, LifecycleConfig, NoncurrentVersionExpiration, Rule
from minio.objectlockconfig import DAYS, ObjectLockConfig
from minio.versioningconfig import VersioningConfig

from harness.minio import ACCESS_KEY, MinioProcess
from tailrace_operator.cluster.bucket_rules import BucketRules
from tailrace_operator.cluster.tier2 import Credentials, MinioProbe
from tailrace_operator.schema.specs import Tier2Spec


async def found(minio: MinioProcess, bucket: str) -> BucketRules:
    probe = MinioProbe()
    try:
        tier2 = Tier2Spec(bucket, minio.endpoint, "minio", "streams")
        return await probe.rules(tier2, Credentials(ACCESS_KEY, minio.secret_key))
    finally:
        probe.close()


@pytest.fixture
def client(minio: MinioProcess) -> Minio:
    return Minio(f"127.0.0.1:{minio.port}", ACCESS_KEY, minio.secret_key, secure=False)


async def test_rules_are_found_as_they_are_set(minio: MinioProcess, client: Minio) -> None:
    bucket = minio.new_bucket()
    assert await found(minio, bucket) == BucketRules()
    client.set_bucket_versioning(bucket, VersioningConfig(ENABLED))
    assert await found(minio, bucket) == BucketRules(keeps_versions=True)
    everything = Filter(prefix="")
    old_versions = NoncurrentVersionExpiration(noncurrent_days=1)
    cleans = Rule(ENABLED, rule_filter=everything, rule_id="clean", noncurrent_version_expiration=old_versions)
    client.set_bucket_lifecycle(bucket, LifecycleConfig([cleans]))
    assert await found(minio, bucket) == BucketRules()
    deletes = Rule(ENABLED, rule_filter=Filter(prefix="streams/"), rule_id="old", expiration=Expiration(days=7))
    client.set_bucket_lifecycle(bucket, LifecycleConfig([cleans, deletes]))
    assert await found(minio, bucket) == BucketRules(expires=("old",))


async def test_object_lock_is_found(minio: MinioProcess, client: Minio) -> None:
    bucket = f"locked-{secrets.token_hex(6)}"
    client.make_bucket(bucket, object_lock=True)
    assert await found(minio, bucket) == BucketRules(keeps_versions=True), "it versions, and locks nothing by default"
    client.set_object_lock_config(bucket, ObjectLockConfig(GOVERNANCE, 1, DAYS))
    rules = await found(minio, bucket)
    assert rules.locks
