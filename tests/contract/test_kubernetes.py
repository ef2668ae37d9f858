"""Every implementation of the Kubernetes port keeps the same contract; the one over the network also when it fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from harness.kubernetesserver import NAMESPACE, KubernetesServer, kubernetes_server
from harness.localkubernetes import LocalKubernetes
from sim.kubernetes import KubernetesCore
from tailrace.cluster.endpoints import ContainerEndpoints, Endpoint
from tailrace.cluster.heartbeat import Heart
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS, KubernetesApi, Manifest, WatchEvent
from tailrace.cluster.kubernetes_api import HttpKubernetes, from_kubeconfig, in_cluster
from tailrace.cluster.lease_epochs import LeaseEpochs
from tailrace.cluster.leases import WorkerLease, read_worker_lease, write_worker_lease
from tailrace.cluster.renewal import Renewer
from tailrace.cluster.renewal_thread import RenewalThread
from tailrace.common import limits
from tailrace.common.errors import (
    AlreadyExistsError,
    DeadlineError,
    NotFoundError,
    NotOwnerError,
    StartError,
    UnavailableError,
    WriteConflictError,
)
from tailrace.common.real_ports import SystemClock


def lease(name: str, holder: str = "x", **labels: str) -> Manifest:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "labels": labels},
        "spec": {"holderIdentity": holder},
    }


def cluster() -> Manifest:
    return {
        "apiVersion": "tailrace.io/v1alpha1",
        "kind": "StreamCluster",
        "metadata": {"name": "c"},
        "spec": {"containers": 4},
    }


@pytest.fixture
async def http() -> AsyncIterator[tuple[KubernetesServer, HttpKubernetes]]:
    async with kubernetes_server() as (server, address):
        api = HttpKubernetes(client.Configuration(host=address), NAMESPACE)
        yield server, api
        await api.close()


@pytest.fixture(params=["in memory", "over HTTP"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[tuple[KubernetesCore, KubernetesApi]]:
    if request.param == "in memory":
        local = LocalKubernetes()
        yield local.core, local
        return
    async with kubernetes_server() as (server, address):
        api = HttpKubernetes(client.Configuration(host=address), NAMESPACE)
        yield server.core, api
        await api.close()


@pytest.fixture
def core(place: tuple[KubernetesCore, KubernetesApi]) -> KubernetesCore:
    return place[0]


@pytest.fixture
def api(place: tuple[KubernetesCore, KubernetesApi]) -> KubernetesApi:
    return place[1]


async def test_what_is_created_is_read(api: KubernetesApi) -> None:
    with pytest.raises(NotFoundError):
        await api.get(LEASES, "a")
    made = await api.create(LEASES, lease("a"))
    assert made["metadata"]["uid"]
    assert made["metadata"]["resourceVersion"]
    assert await api.get(LEASES, "a") == made
    with pytest.raises(AlreadyExistsError):
        await api.create(LEASES, lease("a"))


async def test_a_replace_compares(core: KubernetesCore, api: KubernetesApi) -> None:
    first = await api.create(LEASES, lease("a"))
    second = await api.replace(LEASES, {**first, "spec": {"holderIdentity": "y"}})
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    with pytest.raises(WriteConflictError):
        await api.replace(LEASES, {**first, "spec": {"holderIdentity": "z"}})
    assert await api.get(LEASES, "a") == second
    with pytest.raises(ValueError, match=r"metadata\.uid and metadata\.resourceVersion"):
        await api.replace(LEASES, lease("a"))
    core.delete(LEASES, "a")
    with pytest.raises((WriteConflictError, NotFoundError)):
        await api.replace(LEASES, second)
    await api.create(LEASES, lease("a"))
    with pytest.raises(WriteConflictError):
        await api.replace(LEASES, second)


async def test_status_is_apart(api: KubernetesApi) -> None:
    made = await api.create(STREAM_CLUSTERS, cluster())
    replaced = await api.replace_status(STREAM_CLUSTERS, {**made, "spec": {"containers": 9}, "status": {"x": [1]}})
    assert replaced["spec"] == {"containers": 4}
    assert replaced["status"] == {"x": [1]}
    with pytest.raises(WriteConflictError):
        await api.replace_status(STREAM_CLUSTERS, {**made, "status": {}})
    changed = await api.replace(STREAM_CLUSTERS, {**replaced, "spec": {"containers": 5}, "status": {}})
    assert (changed["spec"], changed["status"]) == ({"containers": 5}, {"x": [1]})


async def test_lists_are_by_label_and_their_items_are_whole(api: KubernetesApi) -> None:
    for name, role in (("b", "w"), ("a", "w"), ("c", "x")):
        await api.create(LEASES, lease(name, role=role, cluster="one"))
    listing = await api.list(LEASES, {"role": "w", "cluster": "one"})
    assert [item["metadata"]["name"] for item in listing.items] == ["a", "b"]
    first = listing.items[0]
    assert (first["kind"], first["apiVersion"]) == ("Lease", "coordination.k8s.io/v1")
    await api.replace(LEASES, {**first, "spec": {"holderIdentity": "y"}})
    assert len((await api.list(LEASES, {})).items) == 3


async def take(api: KubernetesApi, since: str, count: int) -> list[WatchEvent]:
    """So many events of Leases of role ``w``."""
    found: list[WatchEvent] = []
    async with asyncio.timeout(20), contextlib.aclosing(api.watch(LEASES, {"role": "w"}, since)) as events:
        async for event in events:
            found.append(event)
            if len(found) == count:
                break
    return found


async def test_a_watch_reports_missed_and_new_changes(core: KubernetesCore, api: KubernetesApi) -> None:
    since = (await api.list(LEASES, {})).resource_version
    made = await api.create(LEASES, lease("a", role="w"))
    await api.create(LEASES, lease("b", role="x"))
    watching = asyncio.ensure_future(take(api, since, 4))
    while not core.subscribers:  # noqa: ASYNC110 - of either implementation
        await asyncio.sleep(0.005)
    made = await api.replace(LEASES, {**made, "spec": {"holderIdentity": "y"}})
    core.delete(LEASES, "a")
    await api.create(LEASES, lease("a", role="w"))
    events = await watching
    assert [event.kind for event in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED"]
    assert events[1].manifest == made
    while core.subscribers:  # noqa: ASYNC110 - of either implementation
        await asyncio.sleep(0.005)


async def test_a_watch_from_too_long_ago_fails(core: KubernetesCore, api: KubernetesApi) -> None:
    since = (await api.list(LEASES, {})).resource_version
    await api.create(LEASES, lease("a", role="w"))
    core.compact()
    with pytest.raises(UnavailableError, match="410"):
        await take(api, since, 1)


async def test_many_watches_come_and_go(core: KubernetesCore, api: KubernetesApi) -> None:
    since = (await api.list(LEASES, {})).resource_version
    await api.create(LEASES, lease("a", role="w"))
    for _ in range(limits.KUBERNETES_WATCHES_MAX + 2):
        assert len(await take(api, since, 1)) == 1


# -- over the network -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [401, 403, 422, 429, 500, 503])
@pytest.mark.parametrize("after", [False, True])
async def test_an_answer_that_is_none(http: tuple[KubernetesServer, HttpKubernetes], code: int, after: bool) -> None:
    server, api = http
    server.answers = [-code if after else code]
    with pytest.raises(UnavailableError, match=str(code)):
        await api.create(LEASES, lease("a"))
    assert (("leases", "a") in server.core.objects) == after
    assert server.requests == ["POST"]
    server.answers = [code]
    with pytest.raises(UnavailableError, match=str(code)):
        await take(api, "100", 1)


async def test_no_write_is_repeated_behind_our_back(
    http: tuple[KubernetesServer, HttpKubernetes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KUBERNETES_CALL_DEADLINE_S", 0.3)
    server, api = http
    made = await api.create(LEASES, lease("a"))
    server.silence_s = {"PUT": 1.5, "POST": 1.5}
    with pytest.raises(DeadlineError):
        await api.replace(LEASES, {**made, "spec": {"holderIdentity": "y"}})
    with pytest.raises(DeadlineError):
        await api.create(LEASES, lease("b"))
    server.silence_s = {}
    assert (await api.get(LEASES, "a"))["spec"]["holderIdentity"] == "y"
    assert server.requests == ["POST", "PUT", "POST", "GET"]


async def test_no_server_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    api = HttpKubernetes(client.Configuration(host=f"http://127.0.0.1:{port}"), NAMESPACE)
    with pytest.raises(UnavailableError):
        await api.get(LEASES, "a")
    with pytest.raises(UnavailableError):
        await take(api, "1", 1)
    await api.close()


async def test_a_list_that_is_too_long(
    http: tuple[KubernetesServer, HttpKubernetes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KUBERNETES_LIST_MAX", 1)
    _, api = http
    await api.create(LEASES, lease("a"))
    await api.list(LEASES, {})
    await api.create(LEASES, lease("b"))
    with pytest.raises(UnavailableError, match="2 objects"):
        await api.list(LEASES, {})


async def test_a_silent_watch_ends(
    http: tuple[KubernetesServer, HttpKubernetes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KUBERNETES_WATCH_SILENCE_S", 0.2)
    server, api = http
    assert await take(api, str(server.core.version), 1) == []


async def test_there_are_not_too_many_watches(
    http: tuple[KubernetesServer, HttpKubernetes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KUBERNETES_WATCHES_MAX", 0)
    with pytest.raises(UnavailableError, match="watches are open"):
        await take(http[1], "100", 1)


async def test_epochs_over_the_network(http: tuple[KubernetesServer, HttpKubernetes]) -> None:
    server, api = http
    server.core.create(STREAM_CLUSTERS, cluster())
    epochs = LeaseEpochs(api, "c", "w", "1", SystemClock())
    with pytest.raises(NotOwnerError):
        await epochs.take(0)
    made = server.core.get(STREAM_CLUSTERS, "c")
    server.core.replace_status(STREAM_CLUSTERS, {**made, "status": {"containers": [{"id": 0, "worker": "w"}]}})
    server.core.create(LEASES, write_worker_lease("c", WorkerLease("w", "1", 1), None, 0))
    rivals = [LeaseEpochs(api, "c", "w", "1", SystemClock()) for _ in range(3)]
    taken = await asyncio.gather(*(rival.take(0) for rival in rivals for _ in range(3)))
    assert sorted(taken) == list(range(1, 10))
    assert await epochs.take(0, 20) == 21
    found = read_worker_lease(await api.get(LEASES, "c.worker.w"))
    assert found is not None


async def test_a_thread_renews_over_connections_of_its_own(http: tuple[KubernetesServer, HttpKubernetes]) -> None:
    server, _ = http
    address = http[1].address

    @contextlib.asynccontextmanager
    async def connect() -> AsyncIterator[Renewer]:
        api = HttpKubernetes(client.Configuration(host=address), NAMESPACE)
        endpoints = ContainerEndpoints(Endpoint("h", 1))
        yield Renewer(api, "c", "w", "1", endpoints, SystemClock(), heart)
        await api.close()

    heart = Heart()
    beating = asyncio.ensure_future(heart.beat())
    thread = RenewalThread(connect)
    await thread.start()
    async with asyncio.timeout(20):
        while server.requests.count("PUT") < 2:  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0.01)
    await thread.stop()
    beating.cancel()
    found = read_worker_lease(server.core.get(LEASES, "c.worker.w"))
    assert found is not None
    assert found.renewal >= 3


def test_outside_of_a_pod_there_is_no_pods_account() -> None:
    with pytest.raises(StartError, match="cannot be reached from here"):
        in_cluster(NAMESPACE)


async def test_a_kubeconfig_names_the_server(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="kubeconfig"):
        from_kubeconfig(NAMESPACE, str(tmp_path / "none"))
    async with kubernetes_server() as (server, address):
        server.core.create(LEASES, lease("a"))
        content: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "k", "cluster": {"server": address}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "k", "user": "u"}}],
            "current-context": "x",
        }
        (tmp_path / "config").write_text(json.dumps(content))
        api = from_kubeconfig(NAMESPACE, str(tmp_path / "config"))
        assert (await api.get(LEASES, "a"))["spec"]["holderIdentity"] == "x"
        await api.close()
