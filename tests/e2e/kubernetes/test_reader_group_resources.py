"""ReaderGroups as resources: made for readers of ours and of Java, their lag reported, deleted or kept."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from harness.kubechart import CLUSTER
from harness.kubectl import Kubectl, Manifest, condition_of, until
from harness.kubeload import Images, Load, Programs
from harness.kubesystem import StreamSystem, group_manifest, reasons, stream

READY_S = 120.0
GONE_S = 90.0
KINDS = ("tailrace", "java") if os.environ.get("TAILRACE_TEST_PROFILE") == "full" else ("tailrace",)
SCOPE = "groups"


@pytest.fixture
def kube(healthy: StreamSystem) -> Iterator[Kubectl]:
    """kubectl; groups that a test leaves are deleted."""
    yield healthy.kube
    names = [item["metadata"]["name"] for item in healthy.kube.list("readergroups")]
    if names:
        healthy.kube.delete("readergroup", *names, deadline_s=GONE_S)


def status_until(kube: Kubectl, name: str, field: str, value: int) -> Manifest:
    """Wait for a number in a group's status."""

    def probe() -> Manifest | None:
        found = kube.get("readergroup", name).get("status") or {}
        return found if found.get(field) == value else None

    return until(f"{field} of {name} is {value}", probe, READY_S)


@pytest.mark.parametrize("kind", KINDS)
def test_readers_join_a_group_that_a_resource_made(
    kind: str, healthy: StreamSystem, kube: Kubectl, programs: Programs, images: Images
) -> None:
    """The readers' programs name the group that is there already; its lag grows without them and shrinks with them."""
    with stream(healthy, f"read-{kind}", SCOPE, 4) as name:
        written = programs.write(name, 500, name="before", kind=kind)
        group = f"group-{kind}"
        kube.apply(
            group_manifest(
                group,
                CLUSTER,
                SCOPE,
                [f"read-{kind}"],
                lagThreshold={"bytes": "1Ki"},
                deletionPolicy="Delete",
            )
        )
        kube.until_condition("readergroup", group, "Ready", "True", READY_S)
        kube.until_condition("readergroup", group, "Lagging", "True", READY_S)
        assert kube.get("readergroup", group)["status"]["lagBytes"] > 500 * 100
        load = Load(kube, images, healthy.controller_uri, name, kind, rate=50, joins=group)
        load.start()
        status_until(kube, group, "onlineReaders", load.readers)
        load.until_flowing()
        load.wrote = load.writer.end()
        total = sum(load.wrote["keys"].values()) + sum(written.values())
        load.reader.until("events", total, READY_S)
        kube.until_condition("readergroup", group, "Lagging", "False", READY_S)
        status_until(kube, group, "lagBytes", 0)
        load.agrees(load.reader.end(), {**load.wrote["keys"], **written})
        status_until(kube, group, "onlineReaders", 0)
        assert {"GroupCreated", "ReaderGroupCreated"} & set(reasons(kube, group)), reasons(kube, group)
        kube.delete("readergroup", group, deadline_s=GONE_S)
        for pod in (load.writer, load.reader):
            pod.delete()


def test_a_kept_group_keeps_its_place(healthy: StreamSystem, kube: Kubectl, programs: Programs, images: Images) -> None:
    with stream(healthy, "kept-place", SCOPE, 2) as name:
        kube.apply(group_manifest("group-tailrace", CLUSTER, SCOPE, ["kept-place"]))
        kube.until_condition("readergroup", "group-tailrace", "Ready", "True", READY_S)
        load = Load(kube, images, healthy.controller_uri, name, rate=50, joins="group-tailrace")
        load.start()
        load.until_flowing()
        load.finish()
        kube.delete("readergroup", "group-tailrace", deadline_s=GONE_S)
        kube.apply(group_manifest("group-tailrace", CLUSTER, SCOPE, ["kept-place"], deletionPolicy="Delete"))
        kube.until_condition("readergroup", "group-tailrace", "Ready", "True", READY_S)
        status_until(kube, "group-tailrace", "lagBytes", 0)
        programs.write(name, 100, name="after")
        until(
            "the lag is that of the new events",
            lambda: kube.get("readergroup", "group-tailrace")["status"].get("lagBytes", 0) > 0,
            READY_S,
        )
        kube.delete("readergroup", "group-tailrace", deadline_s=GONE_S)


def test_impossible_groups_are_reported_in_conditions(healthy: StreamSystem, kube: Kubectl) -> None:
    restarts = healthy.restarts()
    kube.apply(
        group_manifest("homeless", "no-such-cluster", SCOPE, ["a"]),
        group_manifest("streamless", CLUSTER, SCOPE, ["there-is-no-such-stream"]),
    )
    for name, field in (("homeless", "spec.cluster"), ("streamless", "spec.streams")):
        found = kube.until_condition("readergroup", name, "Ready", "False", READY_S)
        assert field in found["message"], found
    assert healthy.restarts() == restarts


def test_a_group_of_the_rust_clients_is_only_watched(healthy: StreamSystem, kube: Kubectl) -> None:
    with stream(healthy, "rusty", SCOPE, 1):
        kube.apply(group_manifest("oxide", CLUSTER, SCOPE, ["rusty"], flavour="Rust"))
        found = until(
            "the group is reported as not there",
            lambda: condition_of(kube.get("readergroup", "oxide"), "Ready") or None,
            READY_S,
        )
        assert found["status"] != "True", found
        kube.delete("readergroup", "oxide", deadline_s=GONE_S)
