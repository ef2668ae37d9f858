"""What the credentials of a StreamCluster may do on a real MinIO server, as the operator finds it."""

from __future__ import annotations

import secrets

import pytest
from minio import Minio
from minio.commonconfig import GOVERNANCE
from minio.objectlockconfig import DAYS, ObjectLockConfig

from harness.minio import ACCESS_KEY, MinioProcess
from tailrace_operator.cluster.tier2 import Credentials, MinioProbe, Tier2Error
from tailrace_operator.schema.specs import Tier2Spec

RIGHTS = {"read": "s3:GetObject", "write": "s3:PutObject", "list": "s3:ListBucket", "delete": "s3:DeleteObject"}


def make_user(minio: MinioProcess, bucket: str, actions: list[str]) -> Credentials:
    """A user with these rights on a bucket, and no others."""
    return Credentials(*minio.new_user(bucket, actions))


async def prove(minio: MinioProcess, bucket: str, credentials: Credentials) -> None:
    probe = MinioProbe()
    try:
        await probe.prove_rights(Tier2Spec(bucket, minio.endpoint, "keys", "streams"), credentials)
    finally:
        probe.close()


async def test_all_rights_are_enough_and_nothing_is_left(minio: MinioProcess) -> None:
    bucket = minio.new_bucket()
    await prove(minio, bucket, make_user(minio, bucket, [*RIGHTS.values()]))
    client = Minio(f"127.0.0.1:{minio.port}", ACCESS_KEY, minio.secret_key, secure=False)
    assert list(client.list_objects(bucket, recursive=True)) == []


@pytest.mark.parametrize("missing", RIGHTS)
async def test_a_right_that_is_missing_is_named(minio: MinioProcess, missing: str) -> None:
    bucket = minio.new_bucket()
    credentials = make_user(minio, bucket, [right for verb, right in RIGHTS.items() if verb != missing])
    with pytest.raises(Tier2Error) as caught:
        await prove(minio, bucket, credentials)
    assert caught.value.reason == "AccessDenied"
    assert str(caught.value) == (
        f"spec.tier2.credentialsSecret: the credentials of Secret keys may not {missing} s3://{bucket}/streams: allow "
        "them to read, write, list and delete there"
    )


async def test_a_bucket_with_versions_and_a_default_lock_can_be_written(minio: MinioProcess) -> None:
    """Its rules are another condition: segment stores can use it (docs/kubernetes.md#rules-of-the-bucket)."""
    bucket = f"locked-{secrets.token_hex(6)}"
    client = Minio(f"127.0.0.1:{minio.port}", ACCESS_KEY, minio.secret_key, secure=False)
    client.make_bucket(bucket, object_lock=True)
    client.set_object_lock_config(bucket, ObjectLockConfig(GOVERNANCE, 1, DAYS))
    await prove(minio, bucket, Credentials(ACCESS_KEY, minio.secret_key))
    assert list(client.list_objects(bucket, recursive=True)) == []
