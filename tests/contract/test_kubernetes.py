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

from harness.kubernetescases import CASES, Case, Place, lease, title
from harness.kubernetesserver import NAMESPACE, KubernetesServer, kubernetes_server
from harness.localkubernetes import LocalKubernetes
from sim.kubernetes import KubernetesCore
from tailrace.cluster.endpoints import ContainerEndpoints, Endpoint
from tailrace.cluster.heartbeat import Heart
from tailrace.cluster.kubernetes import LEASES, Kind, KubernetesApi, WatchEvent
from tailrace.cluster.kubernetes_api import HttpKubernetes, from_kubeconfig, in_cluster
from tailrace.cluster.leases import read_worker_lease
from tailrace.cluster.renewal import Renewer
from tailrace.cluster.renewal_thread import RenewalThread
from tailrace.common import limits
from tailrace.common.errors import DeadlineError, StartError, UnavailableError
from tailrace.common.real_ports import SystemClock


@pytest.fixture
async def http() -> AsyncIterator[tuple[KubernetesServer, HttpKubernetes]]:
    async with kubernetes_server() as (server, address):
        api = HttpKubernetes(client.Configuration(host=address), NAMESPACE)
        yield server, api
        await api.close()


@pytest.fixture(params=["in memory", "over HTTP"])
async def fake(request: pytest.FixtureRequest) -> AsyncIterator[tuple[KubernetesCore, KubernetesApi]]:
    if request.param == "in memory":
        local = LocalKubernetes()
        yield local.core, local
        return
    async with kubernetes_server() as (server, address):
        api = HttpKubernetes(client.Configuration(host=address), NAMESPACE)
        yield server.core, api
        await api.close()


@pytest.mark.parametrize("case", CASES, ids=title)
async def test_a_fake_keeps_the_contract(fake: tuple[KubernetesCore, KubernetesApi], case: Case) -> None:
    core, api = fake

    async def delete(kind: Kind, name: str) -> None:
        core.delete(kind, name)

    await case(Place(api, delete))
    async with asyncio.timeout(120):
        while core.subscribers:  # noqa: ASYNC110 - of either implementation
            await asyncio.sleep(0.005)


async def take(api: KubernetesApi, since: str, count: int) -> list[WatchEvent]:
    """So many events of Leases of role ``w``."""
    found: list[WatchEvent] = []
    async with asyncio.timeout(120), contextlib.aclosing(api.watch(LEASES, {"role": "w"}, since)) as events:
        async for event in events:
            found.append(event)
            if len(found) == count:
                break
    return found


async def test_a_watch_from_too_long_ago_fails(fake: tuple[KubernetesCore, KubernetesApi]) -> None:
    core, api = fake
    since = (await api.list(LEASES, {})).resource_version
    await api.create(LEASES, lease("a", role="w"))
    core.compact()
    with pytest.raises(UnavailableError, match="410"):
        await take(api, since, 1)


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
    server, api = http
    made = await api.create(LEASES, lease("a"))
    server.silence_s = {"PUT": 1.5, "POST": 1.5}
    with monkeypatch.context() as shortly:
        shortly.setattr(limits, "KUBERNETES_CALL_DEADLINE_S", 0.3)
        with pytest.raises(DeadlineError):
            await api.replace(LEASES, {**made, "spec": {"holderIdentity": "y"}})
        with pytest.raises(DeadlineError):
            await api.create(LEASES, lease("b"))
    for _ in range(3000):  # on a slow machine they arrive after their deadlines
        if len(server.requests) >= 3:
            break
        await asyncio.sleep(0.01)
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
    async with asyncio.timeout(120):
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
