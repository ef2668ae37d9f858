"""What every implementation of the Kubernetes port does, the fakes and a real API server alike.

Each case begins in an empty namespace. Manifests keep to the schema of `crds/`: a real server refuses others, and drops
fields that it does not know. A real server also fills in fields (times, defaults), so cases compare with what a call
returned, or field by field.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest

from harness import resourcecases
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS, Kind, KubernetesApi, Manifest, WatchEvent
from tailrace.cluster.lease_epochs import LeaseEpochs
from tailrace.cluster.leases import WorkerLease, read_worker_lease, write_worker_lease
from tailrace.common import limits
from tailrace.common.errors import AlreadyExistsError, NotFoundError, NotOwnerError, WriteConflictError
from tailrace.common.real_ports import SystemClock

EVENT_DEADLINE_S = 120.0


@dataclass(frozen=True)
class Place:
    """An API with an empty namespace; `delete` deletes an object by another client, and returns when it is gone."""

    api: KubernetesApi
    delete: Callable[[Kind, str], Awaitable[None]]


Case = Callable[[Place], Awaitable[None]]
Next = Callable[[], Awaitable[WatchEvent]]


def lease(name: str, holder: str = "x", **labels: str) -> Manifest:
    """Return a Lease to create."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "labels": labels},
        "spec": {"holderIdentity": holder},
    }


def cluster(**fields: Any) -> Manifest:
    """Return a StreamCluster ``c`` of 4 containers to create."""
    return resourcecases.manifest("StreamCluster", "c", {"containers": 4, **fields})


def held_by(manifest: Manifest, holder: str) -> Manifest:
    """Return the Lease with another holder."""
    return {**manifest, "spec": {**manifest["spec"], "holderIdentity": holder}}


def labelled(manifest: Manifest, **labels: str) -> Manifest:
    """Return the object with these labels alone."""
    return {**manifest, "metadata": {**manifest["metadata"], "labels": labels}}


@contextlib.asynccontextmanager
async def watching(api: KubernetesApi, labels: Mapping[str, str], since: str) -> AsyncIterator[Next]:
    """Watch Leases; the value waits for the next event."""
    async with contextlib.aclosing(api.watch(LEASES, labels, since)) as events:

        async def following() -> WatchEvent:
            async with asyncio.timeout(EVENT_DEADLINE_S):
                return await anext(events)

        yield following


async def version(api: KubernetesApi) -> str:
    """Return the version that a watch of Leases can begin from now."""
    return (await api.list(LEASES, {})).resource_version


async def what_is_created_is_read(place: Place) -> None:
    """An object is read as its creation returned it; a second creation under its name fails."""
    api = place.api
    with pytest.raises(NotFoundError):
        await api.get(LEASES, "a")
    made = await api.create(LEASES, lease("a"))
    assert made["metadata"]["uid"]
    assert made["metadata"]["resourceVersion"]
    assert made["spec"]["holderIdentity"] == "x"
    assert await api.get(LEASES, "a") == made
    with pytest.raises(AlreadyExistsError):
        await api.create(LEASES, lease("a", "y"))
    assert await api.get(LEASES, "a") == made


async def a_replace_compares(place: Place) -> None:
    """Only the newest version of the same object is replaced."""
    api = place.api
    first = await api.create(LEASES, lease("a"))
    second = await api.replace(LEASES, held_by(first, "y"))
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    with pytest.raises(WriteConflictError):
        await api.replace(LEASES, held_by(first, "z"))
    assert await api.get(LEASES, "a") == second
    with pytest.raises(ValueError, match=r"metadata\.uid and metadata\.resourceVersion"):
        await api.replace(LEASES, lease("a"))
    await place.delete(LEASES, "a")
    with pytest.raises((WriteConflictError, NotFoundError)):
        await api.replace(LEASES, second)
    with pytest.raises(NotFoundError):
        await api.get(LEASES, "a")
    third = await api.create(LEASES, lease("a"))
    assert third["metadata"]["uid"] != first["metadata"]["uid"]
    with pytest.raises(WriteConflictError):
        await api.replace(LEASES, second)
    assert await api.get(LEASES, "a") == third


async def a_replace_without_a_change_has_no_version(place: Place) -> None:
    """An object that is replaced by itself keeps its version, and no watch reports it."""
    api = place.api
    since = await version(api)
    made = await api.create(LEASES, lease("a"))
    assert (await api.replace(LEASES, made))["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    changed = await api.replace(LEASES, held_by(made, "y"))
    async with watching(api, {}, since) as following:
        assert [(await following()).manifest for _ in range(2)] == [made, changed]


async def status_is_apart(place: Place) -> None:
    """Creation and replace change all but the status; a replace of the status changes nothing else."""
    api = place.api
    made = await api.create(STREAM_CLUSTERS, {**cluster(), "status": {"clusterId": "early"}})
    assert "status" not in made
    other = {**made["spec"], "controller": {"replicas": 3}}
    sent = {**labelled(made, role="w"), "spec": other, "status": {"clusterId": "one"}}
    replaced = await api.replace_status(STREAM_CLUSTERS, sent)
    assert replaced["spec"] == made["spec"]
    assert not replaced["metadata"].get("labels")
    assert replaced["status"] == {"clusterId": "one"}
    with pytest.raises(WriteConflictError):
        await api.replace_status(STREAM_CLUSTERS, {**made, "status": {}})
    with pytest.raises(WriteConflictError):
        await api.replace(STREAM_CLUSTERS, {**made, "spec": other})
    changed = await api.replace(STREAM_CLUSTERS, {**replaced, "spec": other, "status": {}})
    assert changed["spec"]["controller"]["replicas"] == 3
    assert changed["status"] == {"clusterId": "one"}
    assert await api.get(STREAM_CLUSTERS, "c") == changed


async def lists_are_by_label_and_their_items_are_whole(place: Place) -> None:
    """A list has the objects with all labels, by name; each can be replaced."""
    api = place.api
    for name, role in (("b", "w"), ("a", "w"), ("c", "x")):
        await api.create(LEASES, lease(name, role=role, cluster="one"))
    listing = await api.list(LEASES, {"role": "w", "cluster": "one"})
    assert [item["metadata"]["name"] for item in listing.items] == ["a", "b"]
    first = listing.items[0]
    assert (first["kind"], first["apiVersion"]) == ("Lease", "coordination.k8s.io/v1")
    await api.replace(LEASES, held_by(first, "y"))
    assert len((await api.list(LEASES, {})).items) == 3


async def a_watch_reports_missed_and_new_changes(place: Place) -> None:
    """A watch begins with the changes since its version, and goes on with those of other clients."""
    api = place.api
    since = await version(api)
    first = await api.create(LEASES, lease("a", role="w"))
    await api.create(LEASES, lease("b", role="x"))
    async with watching(api, {"role": "w"}, since) as following:
        assert await following() == WatchEvent("ADDED", first)
        second = await api.replace(LEASES, held_by(first, "y"))
        assert await following() == WatchEvent("MODIFIED", second)
        await place.delete(LEASES, "a")
        gone = await following()
        third = await api.create(LEASES, lease("a", role="w"))
        assert await following() == WatchEvent("ADDED", third)
    assert gone.kind == "DELETED"
    assert gone.manifest["spec"] == second["spec"]
    assert gone.manifest["metadata"]["uid"] == first["metadata"]["uid"]
    versions = [int(manifest["metadata"]["resourceVersion"]) for manifest in (second, gone.manifest, third)]
    assert versions == sorted(set(versions))


async def a_watch_reports_objects_whose_labels_change(place: Place) -> None:
    """An object that starts to have the labels is added; one that stops is deleted, in its state before."""
    api = place.api
    since = await version(api)
    other = await api.create(LEASES, lease("a", role="x"))
    begun = await api.replace(LEASES, labelled(held_by(other, "y"), role="w"))
    ended = await api.replace(LEASES, labelled(held_by(begun, "z"), role="x"))
    for missed in (True, False):  # the same changes, before the watch and during it
        async with watching(api, {"role": "w"}, since) as following:
            if not missed:
                await api.create(LEASES, lease("mark", role="w"))
                assert (await following()).manifest["metadata"]["name"] == "mark"
                begun = await api.replace(LEASES, labelled(held_by(ended, "y"), role="w"))
                ended = await api.replace(LEASES, labelled(held_by(begun, "z"), role="x"))
            assert await following() == WatchEvent("ADDED", begun)
            gone = await following()
        assert gone.kind == "DELETED"
        assert gone.manifest["metadata"]["labels"] == {"role": "w"}
        assert gone.manifest["spec"] == begun["spec"]
        assert gone.manifest["metadata"]["resourceVersion"] == ended["metadata"]["resourceVersion"]
        since = await version(api)


async def a_watch_from_the_future_waits(place: Place) -> None:
    """A watch from a version that is not reached yet reports the changes after that version alone."""
    api = place.api
    made = await api.create(LEASES, lease("a"))
    since = str(int(made["metadata"]["resourceVersion"]) + 20)
    async with watching(api, {}, since) as following:
        first = asyncio.ensure_future(following())
        for number in range(40):  # other clients' changes count, too
            made = await api.replace(LEASES, held_by(made, f"holder {number}"))
        event = await first
    assert event.kind == "MODIFIED"
    assert int(event.manifest["metadata"]["resourceVersion"]) > int(since)


async def many_watches_come_and_go(place: Place) -> None:
    """A watch that ended leaves its place to another."""
    api = place.api
    since = await version(api)
    await api.create(LEASES, lease("a", role="w"))
    for _ in range(limits.KUBERNETES_WATCHES_MAX + 2):
        async with watching(api, {"role": "w"}, since) as following:
            assert (await following()).kind == "ADDED"


async def epochs_are_taken_once(place: Place) -> None:
    """Rivals over one container's Lease get epochs of their own, and only the worker that the map names gets any."""
    api = place.api
    made = await api.create(STREAM_CLUSTERS, cluster())
    epochs = LeaseEpochs(api, "c", "w", "1", SystemClock())
    with pytest.raises(NotOwnerError):
        await epochs.take(0)
    await api.replace_status(STREAM_CLUSTERS, {**made, "status": {"containers": [{"id": 0, "worker": "w"}]}})
    await api.create(LEASES, write_worker_lease("c", WorkerLease("w", "1", 1), None, 0))
    rivals = [LeaseEpochs(api, "c", "w", "1", SystemClock()) for _ in range(3)]
    taken = await asyncio.gather(*(rival.take(0) for rival in rivals for _ in range(3)))
    assert sorted(taken) == list(range(1, 10))
    assert await epochs.take(0, 20) == 21
    assert read_worker_lease(await api.get(LEASES, "c.worker.w")) == WorkerLease("w", "1", 1)


CASES: Final[tuple[Case, ...]] = (
    what_is_created_is_read,
    a_replace_compares,
    a_replace_without_a_change_has_no_version,
    status_is_apart,
    lists_are_by_label_and_their_items_are_whole,
    a_watch_reports_missed_and_new_changes,
    a_watch_reports_objects_whose_labels_change,
    a_watch_from_the_future_waits,
    many_watches_come_and_go,
    epochs_are_taken_once,
)


def title(case: object) -> str:
    """Return the case's name for a test's id."""
    return str(getattr(case, "__name__", case))
