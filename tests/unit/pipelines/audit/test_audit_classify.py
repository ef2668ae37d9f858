"""What an audit calls an object that no reference names (docs/spark-audit.md#orphans)."""

from __future__ import annotations

import pytest

from tailrace.common import limits
from tailrace.pipelines.audit.classify import Newest, unreferenced_status
from tailrace.pipelines.audit.rows import Status

NOW_MS = 1_800_000_000_000
SNAPSHOT_MS = NOW_MS - 60_000
SETTLED_MS = SNAPSHOT_MS - limits.AUDIT_SETTLED_MS
LONG_AGO_MS = NOW_MS - 10 * limits.AUDIT_SETTLED_MS
NEWEST = Newest(epoch=3, time_ms=SNAPSHOT_MS)
SNAPSHOT = "s0/0000000000000003-0000000000000009-0a0b0c0d0e0f"


def chunk(epoch: int, kind: str = "c0") -> str:
    return f"{kind}/0000000000000005/0000000000000000-0000000000000064-{epoch:08x}-0a0b0c0d0e0f"


def status(key: str, modified_ms: int, newest: Newest | None = NEWEST, *, pending: bool = False) -> Status:
    return unreferenced_status(key, modified_ms, newest, containers=2, pending=pending, now_ms=NOW_MS)


@pytest.mark.parametrize("kind", ["c0", "a0"])
@pytest.mark.parametrize(
    ("epoch", "modified_ms", "expected"),
    [
        (2, NOW_MS, Status.ORPHAN),
        (3, SETTLED_MS, Status.ORPHAN),
        (3, SETTLED_MS + 1, Status.UNSETTLED),
        (3, NOW_MS, Status.UNSETTLED),
        # A later owner has begun. The snapshot may be of one that has lost its log and does not know that yet.
        (4, SETTLED_MS, Status.UNSETTLED),
        (4, NOW_MS, Status.UNSETTLED),
    ],
)
def test_an_object_is_an_orphan_only_when_the_snapshot_would_have_its_reference(
    kind: str, epoch: int, modified_ms: int, expected: Status
) -> None:
    assert status(chunk(epoch, kind), modified_ms) is expected


def test_an_object_that_waits_for_deletion_is_none() -> None:
    assert status(chunk(1), LONG_AGO_MS, pending=True) is Status.PENDING


@pytest.mark.parametrize(("modified_ms", "expected"), [(NOW_MS, Status.UNSETTLED), (LONG_AGO_MS, Status.UNACCOUNTED)])
def test_without_a_snapshot_only_the_age_counts(modified_ms: int, expected: Status) -> None:
    assert status(chunk(1), modified_ms, None) is expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("cluster.json", Status.IDENTITY),
        (SNAPSHOT, Status.SNAPSHOT),
        ("log/0/frame", Status.LOG),
        ("log/0/frame#7000000001", Status.LOG),
        ("log/2/frame", Status.ORPHAN),  # the cluster has containers 0 and 1
        (chunk(3, "c2"), Status.ORPHAN),
        ("c0/notes.txt", Status.ORPHAN),
        ("notes.txt", Status.ORPHAN),
        ("s0/notes.txt", Status.ORPHAN),
        ("probe/0a0b", Status.ORPHAN),
        ("probe/0123456789abcdef/0/notes", Status.ORPHAN),
        ("probe/0123456789abcdef#notes", Status.ORPHAN),
    ],
)
def test_keys_of_other_forms(key: str, expected: Status) -> None:
    assert status(key, LONG_AGO_MS) is expected


@pytest.mark.parametrize("modified_ms", [0, NOW_MS, LONG_AGO_MS])
@pytest.mark.parametrize(
    "key",
    [
        "probe/0123456789abcdef",
        "probe/0123456789abcdef/clock",
        "probe/0123456789abcdef/4/rivals-2",
        "probe/0123456789abcdef/0/read-0#7000000001",
        "probe/operator",
    ],
)
def test_what_a_probe_left_behind_is_no_finding(key: str, modified_ms: int) -> None:
    """A server that was killed while it tried the store out: a later start deletes it."""
    assert status(key, modified_ms) is Status.PROBE


@pytest.mark.parametrize("name", [SNAPSHOT, "cluster.json", "probe/0a0b", chunk(3)])
@pytest.mark.parametrize(("modified_ms", "expected"), [(NOW_MS, Status.UNSETTLED), (LONG_AGO_MS, Status.ORPHAN)])
def test_the_file_of_an_upload_that_goes_on_is_no_orphan(name: str, modified_ms: int, expected: Status) -> None:
    """A server over a folder writes each object to a file of another name first."""
    assert status(f"{name}#7000000001", modified_ms) is expected


def test_the_file_of_an_interrupted_upload_of_an_earlier_owner_is_an_orphan() -> None:
    assert status(f"{chunk(2)}#7000000001", NOW_MS) is Status.ORPHAN


def test_an_object_whose_age_the_store_does_not_say_may_be_new() -> None:
    assert status(chunk(3), 0) is Status.UNSETTLED
    assert status(chunk(3), 0, None) is Status.UNSETTLED
    assert status(chunk(2), 0) is Status.ORPHAN
