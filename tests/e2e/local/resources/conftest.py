"""The operator's reconcilers over resources in memory and a real standalone server."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from harness.localobjects import Hand, LocalObjects
from tailrace.client.async_client import Client
from tailrace.common.real_ports import SystemClock
from tailrace_operator.connections.controllers import Controllers
from tailrace_operator.kube.objects import READER_GROUPS, STREAMS
from tailrace_operator.readergroup.reconcile import ReaderGroupReconciler
from tailrace_operator.reconcile.outcome import Reconciler
from tailrace_operator.stream.reconcile import StreamReconciler


@pytest.fixture
async def client(controller: str) -> AsyncIterator[Client]:
    """A user's client of the server."""
    async with Client(controller) as made:
        yield made


@pytest.fixture
async def hand(controller: str) -> AsyncIterator[Hand]:
    """Reconcilers; the cluster's controller is the server of the module."""
    objects = LocalObjects()
    controllers = Controllers(objects, uri=lambda _: controller)
    reconcilers: dict[str, Reconciler] = {
        STREAMS.plural: StreamReconciler(objects, controllers, SystemClock()),
        READER_GROUPS.plural: ReaderGroupReconciler(objects, controllers, SystemClock()),
    }
    made = Hand(objects, reconcilers)
    made.make_cluster()
    yield made
    await controllers.close()


@pytest.fixture
def scope() -> str:
    """A scope of the test's own."""
    return f"test-{secrets.token_hex(4)}"
