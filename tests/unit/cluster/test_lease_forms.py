"""Leases and the map as the API has them: what is written is read again, what is damaged counts as lost."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cluster.cluster_map import Assignment, ClusterMap, read_map, write_map
from tailrace.cluster.endpoints import ContainerEndpoints, Endpoint
from tailrace.cluster.leases import (
    ContainerLease,
    WorkerLease,
    container_lease_name,
    micro_time,
    read_container_lease,
    read_endpoint,
    read_worker_lease,
    worker_lease_name,
    write_container_lease,
    write_worker_lease,
)
from tailrace.common.errors import BadRequestError

names = st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
endpoints = st.builds(Endpoint, st.one_of(names, st.just("fd00::1")), st.integers(1, 65535))
both = st.builds(ContainerEndpoints, endpoints, st.none() | endpoints)
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)

container_leases = st.builds(
    ContainerLease, st.integers(0, 1023), st.just("") | names, st.integers(0, 2**62), st.just("") | names
)
worker_leases = st.builds(
    WorkerLease,
    names,
    st.text("0123456789abcdef", min_size=1),
    st.integers(0, 2**40),
    st.booleans(),
    st.none() | both,
    not_open=st.text(max_size=20),
    store_silent_s=st.integers(0, 10**6),
)


@given(container_leases, container_leases)
def test_container_leases(first: ContainerLease, second: ContainerLease) -> None:
    manifest = write_container_lease("c", first, None, 0)
    assert read_container_lease(manifest) == first
    assert read_worker_lease(manifest) is None
    manifest["metadata"] |= {"uid": "u", "resourceVersion": "7", "ownerReferences": [{"name": "x"}]}
    before = copy.deepcopy(manifest)
    after = write_container_lease("c", second, manifest, 1)
    assert manifest == before
    assert read_container_lease(after) == second
    assert {"uid": "u", "resourceVersion": "7", "ownerReferences": [{"name": "x"}]}.items() <= after["metadata"].items()
    assert 0 <= after["spec"]["leaseTransitions"] < 2**31


@given(worker_leases, worker_leases)
def test_worker_leases(first: WorkerLease, second: WorkerLease) -> None:
    manifest = write_worker_lease("c", first, None, 0)
    assert read_worker_lease(manifest) == first
    assert read_container_lease(manifest) is None
    assert read_worker_lease(write_worker_lease("c", second, manifest, 1)) == second


def test_times_are_those_of_the_api() -> None:
    assert micro_time(0) == "1970-01-01T00:00:00.000000Z"


@given(junk, junk, junk)
def test_damaged_leases_say_nothing_but_do_not_fail(metadata: Any, annotations: Any, spec: Any) -> None:
    for manifest in (
        {"metadata": metadata if isinstance(metadata, dict) else {}, "spec": spec},
        {"metadata": {"annotations": annotations}, "spec": spec},
        {"metadata": {"annotations": {"tailrace.io/container": annotations, "tailrace.io/epoch": spec}}},
        {"metadata": {"annotations": {"tailrace.io/incarnation": annotations}}, "spec": {"holderIdentity": spec}},
    ):
        read_container_lease(manifest)
        read_worker_lease(manifest)


@pytest.mark.parametrize(
    "text",
    [
        *[None, 5, "", ":", "h:", ":1", "h:x", "h:0", "h:65536", "h:999999999999", "h:-1", "h:٣"],
        *["h:00000999999999", "h:00001" + "0" * 5000],  # Python refuses to read a number of so many digits
    ],
)
def test_no_endpoint(text: object) -> None:
    assert read_endpoint(text) is None


@given(
    st.dictionaries(st.integers(0, 15), st.builds(Assignment, names, st.just("") | names)), st.dictionaries(names, both)
)
def test_maps(assignments: dict[int, Assignment], workers: dict[str, ContainerEndpoints]) -> None:
    cluster_map = ClusterMap(16, assignments, workers)
    manifest = {"metadata": {"name": "c"}, "spec": {"containers": 16}, "status": {"conditions": [1]}}
    written = write_map(manifest, cluster_map)
    assert read_map(written) == cluster_map
    assert written["status"]["conditions"] == [1]
    assert manifest["status"] == {"conditions": [1]}


def test_names() -> None:
    assert container_lease_name("orange", 7) == "orange.container.7"
    assert worker_lease_name("orange", "w") == "orange.worker.w"


@given(junk, junk, st.lists(st.dictionaries(st.sampled_from(["id", "worker", "name", "internal"]), junk), max_size=3))
def test_a_damaged_map_is_a_lost_one(status: Any, containers: Any, items: Any) -> None:
    for damaged in (status, {"containers": containers, "workers": containers}, {"containers": items, "workers": items}):
        found = read_map({"spec": {"containers": 4}, "status": damaged if isinstance(damaged, dict) else None})
        assert all(0 <= number < 4 and item.worker for number, item in found.assignments.items())


@pytest.mark.parametrize("count", [None, 0, -1, 1025, "4", 4.0, True])
def test_a_cluster_without_a_number_of_containers(count: object) -> None:
    with pytest.raises(BadRequestError, match=r"spec\.containers"):
        read_map({"spec": {"containers": count}})


def documented(name: str) -> Any:
    """The JSON of that name in docs/formats/ownership.md."""
    text = (Path(__file__).resolve().parents[3] / "docs" / "formats" / "ownership.md").read_text()
    found = re.search(rf"```json {name}\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_forms_of_the_documentation() -> None:
    at_ms = 1_700_000_000_123
    container = ContainerLease(7, "store-0-1", 42)
    assert write_container_lease("orange", container, None, at_ms) == documented("container-lease")
    assert read_container_lease(documented("container-lease")) == container
    worker = WorkerLease("store-0-1", "ab12", 3, True, ContainerEndpoints(Endpoint("10.0.0.1", 12345)))
    assert write_worker_lease("orange", worker, None, at_ms) == documented("worker-lease")
    assert read_worker_lease(documented("worker-lease")) == worker
    cluster_map = read_map({"spec": {"containers": 4}, "status": documented("map")})
    assert write_map({"spec": {"containers": 4}}, cluster_map)["status"] == documented("map")
    assert cluster_map.assignments == {0: Assignment("a"), 1: Assignment("b", "a")}
