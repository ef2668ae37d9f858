"""Which rules of a bucket undo what retention promises (docs/kubernetes.md#rules-of-the-bucket)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from minio.commonconfig import Filter
from minio.error import S3Error
from minio.lifecycleconfig import Expiration, LifecycleConfig, NoncurrentVersionExpiration, Rule
from minio.versioningconfig import VersioningConfig

from tailrace_operator.cluster.bucket_rules import BucketRules, read_rules, rules_below, rules_condition
from tailrace_operator.reconcile.outcome import Status
from tailrace_operator.schema.specs import Tier2Spec

TIER2 = Tier2Spec("data", "http://127.0.0.1:9000", "minio", "streams")
EXPIRES = Expiration(days=3)


def rule(prefix: str = "", *, status: str = "Enabled", name: str = "r", **parts: Any) -> Rule:
    return Rule(status, rule_filter=Filter(prefix=prefix), rule_id=name, **parts)


@pytest.mark.parametrize(
    ("beneath", "holds"),
    [("", True), ("streams/", True), ("streams/c1/", True), ("str", True), ("streams2/", False), ("other", False)],
)
def test_rules_hold_for_a_prefix(beneath: str, holds: bool) -> None:
    config = LifecycleConfig([rule(beneath, expiration=EXPIRES)])
    assert bool(rules_below(config, "streams")) is holds
    assert rules_below(config, ""), "without a prefix every object may be of the cluster"


def test_disabled_rules_hold_for_nothing() -> None:
    assert not rules_below(LifecycleConfig([rule(status="Disabled", expiration=EXPIRES)]), "streams")
    assert not rules_below(None, "streams")


class Bucket:
    """What a client answers; an error code in place of an answer is raised."""

    def __init__(self, versioning: Any = None, lock: Any = None, lifecycle: Any = None) -> None:
        self._answers = versioning, lock, lifecycle

    def _answer(self, found: Any) -> Any:
        if isinstance(found, str):
            response: Any = None
            raise S3Error(response, found, "", "", "", "")
        return found

    def get_bucket_versioning(self, bucket: str) -> Any:
        return self._answer(self._answers[0])

    def get_object_lock_config(self, bucket: str) -> Any:
        return self._answer(self._answers[1])

    def get_bucket_lifecycle(self, bucket: str) -> Any:
        return self._answer(self._answers[2])


ON = VersioningConfig("Enabled")
NONE = "ObjectLockConfigurationNotFoundError"
CLEANS = LifecycleConfig([rule(noncurrent_version_expiration=NoncurrentVersionExpiration(noncurrent_days=1))])
DELETES = LifecycleConfig([rule(name="old", expiration=EXPIRES), rule("else", name="far", expiration=EXPIRES)])
MARKERS = LifecycleConfig([rule(expiration=Expiration(expired_object_delete_marker=True))])
LOCK = SimpleNamespace(mode="GOVERNANCE")


@pytest.mark.parametrize(
    ("bucket", "expected", "status", "reason"),
    [
        (Bucket(VersioningConfig(), NONE, None), BucketRules(), Status.TRUE, "DeletionsFreeSpace"),
        (Bucket(VersioningConfig("Suspended"), NONE, MARKERS), BucketRules(), Status.TRUE, "DeletionsFreeSpace"),
        (Bucket(ON, NONE, None), BucketRules(keeps_versions=True), Status.FALSE, "VersioningKeepsDeletedData"),
        (Bucket(ON, NONE, CLEANS), BucketRules(), Status.TRUE, "DeletionsFreeSpace"),
        (Bucket(ON, LOCK, CLEANS), BucketRules(locks=True), Status.FALSE, "ObjectLock"),
        (Bucket(ON, SimpleNamespace(mode=None), CLEANS), BucketRules(), Status.TRUE, "DeletionsFreeSpace"),
        (Bucket(None, NONE, DELETES), BucketRules(expires=("old",)), Status.FALSE, "LifecycleDeletesData"),
        (
            Bucket("AccessDenied", "NotImplemented", "NoSuchLifecycleConfiguration"),
            BucketRules(unknown=("bucket versioning",)),
            Status.UNKNOWN,
            "NotAllowedToRead",
        ),
    ],
)
def test_what_rules_mean(bucket: Any, expected: BucketRules, status: Status, reason: str) -> None:
    found = read_rules(bucket, TIER2)
    assert found == expected
    condition = rules_condition(TIER2, found)
    assert (condition.status, condition.reason) == (status, reason)
    assert condition.is_warning is (status is Status.FALSE)


def test_other_errors_are_errors() -> None:
    with pytest.raises(S3Error):
        read_rules(Bucket("SlowDown"), TIER2)  # type: ignore[arg-type]  # has what is called


def test_a_bucket_that_is_not_usable_has_unknown_rules() -> None:
    condition = rules_condition(TIER2, None)
    assert (condition.status, condition.reason, condition.is_warning) == (Status.UNKNOWN, "NotChecked", False)
