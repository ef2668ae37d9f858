"""The processes of a simulated cluster: segment store workers on object logs, and controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from google.protobuf.message import Message

from sim.process import SimProcess
from sim.workloads.fleetledger import Owners
from sim.world import SimWorld
from tailrace.client.pool import ConnectionPool
from tailrace.client.segments import SegmentClient
from tailrace.client.transport import error_of_status
from tailrace.client.types import Endpoint
from tailrace.common import limits
from tailrace.common.budgets import Budgets
from tailrace.common.errors import DeadlineError, TailraceError, UnavailableError
from tailrace.controller.app import Controller
from tailrace.controller.metadata import TableMetadataStore
from tailrace.log.object import ObjectLog
from tailrace.log.port import Buffer
from tailrace.storage.port import ObjectStore

CLUSTER_ID = b"simulated-clustr"
BUDGETS = Budgets(16 * limits.MIB, 8 * limits.MIB, 4 * limits.MIB, limits.MIB, limits.MIB, limits.MIB)
MAX_FRAME_BYTES = 64 * 1024


class WatchedLog(ObjectLog):
    """The object log, and what its owner is told, for the ledger."""

    def __init__(self, store: ObjectStore, container: int, owner: str, owners: Owners) -> None:
        super().__init__(store, container, max_frame_bytes=MAX_FRAME_BYTES)
        self._container = container
        self._owner = owner
        self._owners = owners
        self._epoch = 0

    async def open(self, epoch: int, nonce: bytes) -> None:
        """See DurableLog.open."""
        await super().open(epoch, nonce)
        self._epoch = epoch
        self._owners.opened(self._container, epoch, self.next_sequence, self._owner)

    def append(self, payload: Sequence[Buffer]) -> asyncio.Future[int]:
        """See DurableLog.append."""
        future = super().append(payload)
        future.add_done_callback(self._told)
        return future

    def _told(self, done: asyncio.Future[int]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._owners.acknowledged(self._container, self._epoch, done.result())
