"""A Stream's YAML says what is kept, and that is what the bucket holds: by size, by time, with subscribers."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from harness.figures import Figures
from harness.kubechart import CLUSTER
from harness.kubectl import Kubectl, Manifest, condition_of, until
from harness.kubeload import PROGRAM_FOLDER, Images, LoadPod, Programs, pod_manifest
from harness.kubesystem import StreamSystem, fixed, group_manifest, stream_manifest

pytestmark = pytest.mark.timeout(2400)

MIB = 1 << 20
SCOPE = "kept"
PERIOD = "5s"
PACE_BYTES_PER_S = 4 * MIB
BETWEEN_CUTS = 6 * PACE_BYTES_PER_S
"""What is written between two positions at which the stream can be truncated, and a bit more."""
MEASURED_S = 300.0
"""The status is measured each minute, and a step may need two measurements."""
READY_S = 180.0
WRITTEN_S = 600.0
EDIT_S = 10.0
CHUNK = re.compile(r"/c\d+/[0-9a-f]{16}/")
MINIO = "http://tailrace-minio.{namespace}:9000"


@pytest.fixture
def quick(healthy: StreamSystem, kube: Kubectl) -> Iterator[Kubectl]:
    """kubectl, with controllers that apply retention every 5 s."""
    kube.patch("streamcluster", CLUSTER, {"spec": {"retention": {"period": PERIOD}}})
    healthy.until_ready()
    yield kube
    groups = [item["metadata"]["name"] for item in kube.list("readergroups")]
    if groups:
        kube.delete("readergroup", *groups, deadline_s=READY_S)
    kube.patch("streamcluster", CLUSTER, {"spec": {"retention": None}})
    healthy.until_ready()


class Kept:
    """A stream under retention, and what was written into it."""

    def __init__(self, kube: Kubectl, programs: Programs, images: Images, name: str) -> None:
        self._kube, self._programs, self._images = kube, programs, images
        self.name = name
        self._count = 0

    def _command(self, length_bytes: int, groups: tuple[str, ...]) -> list[str]:
        place = (self._programs.controller, f"{SCOPE}/{self.name}")
        first, count = self._count, length_bytes // (64 * 1024)
        self._count += count
        return ["python3.11", f"{PROGRAM_FOLDER}/retention_write.py", *place, str(first), str(count), *groups]

    def write(self, length_bytes: int, *groups: str) -> None:
        """Write so much; these groups have read it, as they say."""
        self._programs.run("retention-write", self._images.python, self._command(length_bytes, groups),
                           deadline_s=WRITTEN_S)  # fmt: skip

    def start(self, length_bytes: int, *groups: str) -> LoadPod:
        """Write in the background."""
        pod = LoadPod(self._kube, "retention-load")
        self._kube.apply(pod_manifest(pod.name, self._images.python, self._command(length_bytes, groups)))
        return pod

    def status(self) -> dict[str, Any]:
        """Of the Stream."""
        found: dict[str, Any] = self._kube.get("stream", self.name).get("status") or {}
        return found

    def bytes(self) -> int:
        """What the stream retains, as the status says."""
        return int(self.status().get("bytes", -1))

    def until_bytes(self, what: str, least: int, most: int) -> dict[str, Any]:
        """Wait until it retains so much."""

        def probe() -> dict[str, Any] | None:
            found = self.status()
            return found if least <= int(found.get("bytes", -1)) <= most else None

        return until(f"{self.name} retains {least // MIB} to {most // MIB} MiB {what}", probe, MEASURED_S)

    def until_truncated_by(self, reason: str) -> None:
        """Wait until the last truncation was for that reason."""

        def probe() -> bool:
            last = self.status().get("retention", {}).get("lastTruncation", {})
            return bool(last.get("reason") == reason)

        until(f"{self.name} is truncated by {reason}", probe, MEASURED_S)

    def read(self) -> dict[str, Any]:
        """What is left: fails when it is not the end of what was written, without a gap."""
        place = (self._programs.controller, f"{SCOPE}/{self.name}")
        command = ["python3.11", f"{PROGRAM_FOLDER}/retention_read.py", *place]
        output = self._programs.run("retention-read", self._images.python, command)
        found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
        assert found["steps"] == [2], "the events of each of two keys follow each other"
        assert found["last"] == self._count - 1
        return found


@pytest.fixture
def kept(quick: Kubectl, programs: Programs, images: Images) -> Kept:
    """A stream of two segments that keeps 20 to 100 MiB, and two subscribers."""
    policy = {"type": "Size", "min": "20Mi", "max": "100Mi"}
    quick.apply(stream_manifest("sized", CLUSTER, SCOPE, scaling=fixed(2), retention=policy, deletionPolicy="Delete"))
    quick.until_condition("stream", "sized", "Ready", "True", READY_S)
    for name in ("fast", "slow"):
        quick.apply(subscriber(name, "sized"))
        quick.until_condition("readergroup", name, "Ready", "True", READY_S)
    return Kept(quick, programs, images, "sized")


def subscriber(name: str, stream: str) -> Manifest:
    """A ReaderGroup whose positions a program publishes."""
    return group_manifest(name, CLUSTER, SCOPE, [stream], retentionType="ManualStreamCut", deletionPolicy="Delete")


def said(kube: Kubectl, kind: str, name: str, condition: str, status: str, reason: str) -> None:
    """Wait until a condition says so."""

    def probe() -> bool:
        found = condition_of(kube.get(kind, name), condition)
        return (found.get("status"), found.get("reason")) == (status, reason)

    until(f"{condition} of {name} is {status}, {reason}", probe, MEASURED_S)


def chunk_bytes(kube: Kubectl, programs: Programs, images: Images) -> int:
    """The length of all chunk objects in the cluster's prefix, as a client of MinIO lists them."""
    command = ["python3.11", f"{PROGRAM_FOLDER}/objects.py", MINIO.format(namespace=kube.namespace), "tailrace"]
    secret = kube.get("secret", "tailrace-minio")["data"]
    keys = {name: base64.b64decode(secret[field]).decode() for name, field in
            (("ACCESS_KEY", "accessKey"), ("SECRET_KEY", "secretKey"))}  # fmt: skip
    output = programs.run("list-objects", images.python, [*command, "sizes", "trial"], environment=keys)
    sizes: dict[str, int] = json.loads(output.strip().splitlines()[-1])
    return sum(size for key, size in sizes.items() if CHUNK.search(f"/{key}"))


def test_size_retention_with_two_subscribers(
    kept: Kept, quick: Kubectl, programs: Programs, images: Images, figures: Figures
) -> None:
    """Both keep up, then one stops: it holds data up to the maximum, is warned, and loses what is beyond."""
    before = chunk_bytes(quick, programs, images)
    kept.write(176 * MIB, "fast", "slow")
    kept.until_bytes("while both keep up", 20 * MIB, 20 * MIB + BETWEEN_CUTS)
    said(quick, "stream", kept.name, "RetentionEnforced", "True", "Enforced")

    kept.write(56 * MIB, "fast")
    kept.until_bytes("while one holds 56 MiB", 56 * MIB, 56 * MIB + BETWEEN_CUTS)
    said(quick, "stream", kept.name, "RetentionEnforced", "False", "HeldBySubscriber")
    assert kept.status()["retention"]["heldBy"]["subscriber"] == f"{SCOPE}/slow"
    said(quick, "readergroup", "slow", "BlockingRetention", "True", "HoldsData")
    said(quick, "readergroup", "fast", "BlockingRetention", "False", "KeepsUp")

    kept.write(28 * MIB, "fast")
    said(quick, "readergroup", "slow", "DataDropped", "False", "NearMax")

    kept.write(40 * MIB, "fast")
    kept.until_truncated_by("MaxLimit")
    found = kept.until_bytes("when the maximum is exceeded", 20 * MIB, 100 * MIB)
    said(quick, "readergroup", "slow", "DataDropped", "True", "UnreadDeleted")
    assert condition_of(quick.get("readergroup", "fast"), "DataDropped")["status"] == "False"

    most = before + round(1.2 * found["bytes"]) + 64 * MIB
    held = until("dead objects are gone", lambda: _at_most(chunk_bytes(quick, programs, images), most), MEASURED_S)
    figures.add("Tier 2 after 300 MiB under retention, above what there was", "bytes", held - before, "bytes")
    read = kept.read()
    assert 20 * MIB <= read["bytes"] <= 100 * MIB
    assert read["refused"] == "SegmentTruncatedError", "what lies before the head is not there"

    took = [_edited(kept, quick) for _ in range(2)]
    figures.add("a smaller maximum acts", "edit", min(took), "s")
    assert min(took) <= EDIT_S, took


def _at_most(value: int, most: int) -> int | None:
    return value if value <= most else None


def _edited(kept: Kept, kube: Kubectl) -> float:
    """Lower the maximum below what the stream retains; return after how long it retains no more than that."""
    most_mib = kept.bytes() // MIB - 1
    began_s = time.monotonic()
    kube.patch("stream", kept.name, {"spec": {"retention": {"max": f"{most_mib}Mi"}}})
    until(f"{kept.name} keeps {most_mib} MiB", lambda: 0 <= kept.bytes() <= most_mib * MIB, MEASURED_S)
    return time.monotonic() - began_s


def test_kills_during_truncations_lose_nothing_that_is_kept(
    kept: Kept, healthy: StreamSystem, quick: Kubectl, programs: Programs, images: Images
) -> None:
    """A controller, the leading operator and a segment store are killed while the stream is truncated all the time."""
    before = chunk_bytes(quick, programs, images)
    load = kept.start(240 * MIB, "fast", "slow")

    def until_truncated_again() -> None:
        head = int(kept.status().get("headBytes", 0))
        until("the stream is truncated again", lambda: int(kept.status().get("headBytes", 0)) > head, MEASURED_S)
        load.check_alive(may_be_done=True)

    until_truncated_again()
    healthy.kill_pods(healthy.pods("controller")[0])
    healthy.kill_pods(healthy.leading_operator())
    healthy.kill_pods(healthy.pods("segmentstore")[0])
    load.end(asked=False)
    load.delete()
    healthy.until_ready()
    found = kept.until_bytes("after the kills", 20 * MIB, 20 * MIB + BETWEEN_CUTS)
    assert kept.read()["bytes"] >= 20 * MIB
    most = before + round(1.2 * found["bytes"]) + 64 * MIB
    until("dead objects are gone", lambda: _at_most(chunk_bytes(quick, programs, images), most), MEASURED_S)


def test_time_retention_and_a_subscriber_that_stops(
    quick: Kubectl, programs: Programs, images: Images, healthy: StreamSystem
) -> None:
    """Old data goes after the minimum; what a subscriber has not read stays until the maximum."""
    policy = {"type": "Time", "min": "10s", "max": "120s"}
    quick.apply(stream_manifest("timed", CLUSTER, SCOPE, scaling=fixed(2), retention=policy, deletionPolicy="Delete"))
    quick.until_condition("stream", "timed", "Ready", "True", READY_S)
    kept = Kept(quick, programs, images, "timed")
    kept.write(8 * MIB)
    kept.until_bytes("when all of it is old", 0, 0)
    quick.apply(subscriber("late", "timed"))
    quick.until_condition("readergroup", "late", "Ready", "True", READY_S)
    kept.write(4 * MIB, "late")
    began_s = time.monotonic()
    kept.write(8 * MIB)
    said(quick, "stream", "timed", "RetentionEnforced", "False", "HeldBySubscriber")
    assert kept.status()["retention"]["heldBy"]["subscriber"] == f"{SCOPE}/late"
    kept.until_truncated_by("MaxLimit")
    kept.until_bytes("when it is older than the maximum", 0, 0)
    assert time.monotonic() - began_s >= 100, "it was held"
    said(quick, "readergroup", "late", "DataDropped", "True", "UnreadDeleted")
