"""The Kubernetes port over a real API server: the same cases that the fakes of the other suites pass.

Nothing but an API server is needed: each case has a namespace of its own, and no operator looks at it.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from harness.kubectl import Kubectl
from harness.kubernetescases import CASES, Case, Place, title
from tailrace.cluster.kubernetes import Kind
from tailrace.cluster.kubernetes_api import from_kubeconfig


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
