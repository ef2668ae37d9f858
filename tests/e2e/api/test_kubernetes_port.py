"""The Kubernetes port on a real API server, and epochs over it: the cases that the fakes of other suites pass.

Nothing but an API server is needed: each case has a namespace of its own, and no operator looks at it.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from harness.epochcases import EPOCH_CASES, EpochCase, EpochPlace
from harness.kubectl import Kubectl
from harness.kubernetescases import CASES, Case, Place, cluster, title
from tailrace.cluster.cluster_map import Assignment, ClusterMap, write_map
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS, Kind
from tailrace.cluster.kubernetes_api import from_kubeconfig
from tailrace.cluster.lease_epochs import LeaseEpochs
from tailrace.cluster.leases import container_lease_name
from tailrace.common.real_ports import SystemClock


@pytest.fixture
async def place(definitions: Kubectl) -> AsyncIterator[Place]:
    namespace = f"port-{uuid.uuid4().hex[:8]}"
    kubectl = definitions.within(namespace)

    async def delete(kind: Kind, name: str) -> None:
        await asyncio.to_thread(kubectl.delete, f"{kind.plural}.{kind.group}", name)

    await asyncio.to_thread(kubectl, "create", "namespace", namespace)
    api = from_kubeconfig(namespace, str(kubectl.kubeconfig))
    try:
        yield Place(api, delete)
    finally:
        await api.close()
        await asyncio.to_thread(kubectl, "delete", "namespace", namespace, "--wait=false")


@pytest.mark.parametrize("case", CASES, ids=title)
async def test_a_real_server_keeps_the_contract(place: Place, case: Case) -> None:
    await case(place)


@pytest.mark.parametrize("case", EPOCH_CASES, ids=title)
async def test_epochs_on_a_real_server_keep_the_contract(place: Place, case: EpochCase) -> None:
    api = place.api
    made = await api.create(STREAM_CLUSTERS, cluster())
    owners = ClusterMap(4, {number: Assignment("w") for number in range(4)})
    await api.replace_status(STREAM_CLUSTERS, write_map(made, owners))

    async def wipe(number: int) -> None:
        await place.delete(LEASES, container_lease_name("c", number))

    await case(EpochPlace(lambda: LeaseEpochs(api, "c", "w", "1", SystemClock()), wipe))
