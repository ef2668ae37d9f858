"""The segment store of one process over a data folder: object store, logs, worker and server.

See docs/design.md#processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from tailrace.cluster.cluster_identity import CLUSTER_KEY, bind_tier2
from tailrace.cluster.data_folder import opened_epoch
from tailrace.common import limits
from tailrace.common.budgets import Budgets, budgets_for
from tailrace.common.errors import StartError, UnavailableError
from tailrace.log.disk import RealDisk
from tailrace.segmentstore.server.budgets import InFlightBudget
from tailrace.segmentstore.server.listener import SegmentStoreServer
from tailrace.segmentstore.worker.folder_logs import folder_logs
from tailrace.segmentstore.worker.worker import Worker, WorkerPorts
from tailrace.storage.contact import StoreContact, keep_contact, with_contact
from tailrace.storage.obstores import open_object_store, probe
from tailrace.storage.probe_objects import delete_left_overs

if TYPE_CHECKING:
    import socket
    from typing import NoReturn

    from tailrace.cluster.data_folder import LogKind
    from tailrace.common.ports import Clock, Entropy
    from tailrace.segmentstore.server.in_process import InProcessRequests
    from tailrace.storage.port import ObjectStore

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """Which containers of which folder a process serves, as plain values that another process can receive."""

    data: str
    tier2: str
    s3_endpoint: str | None
    cluster_id: str
    container_count: int
    owned: tuple[int, ...]
    cache_bytes: int
    log: LogKind = "file"

    @property
    def budgets(self) -> Budgets:
        """Return the budgets of the process. Raises StartError when the cache is too small."""
        return budgets_for(self.cache_bytes, len(self.owned), object_logs=self.log == "object")


class StoreService:
    """A running segment store: `start` recovers, `listen_on` serves, `close` ends it."""

    def __init__(
        self, spec: StoreSpec, clock: Clock, entropy: Entropy, connections_max: int = limits.CONNECTIONS_MAX
    ) -> None:
        self._spec = spec
        self._clock = clock
        self._entropy = entropy
        self._connections_max = connections_max
        self._stack = contextlib.AsyncExitStack()
        self._contact = StoreContact()
        self.worker: Worker
        self.in_process: InProcessRequests
        """Serves the requests of a controller in this process."""
        self.server: SegmentStoreServer

    async def start(self) -> None:
        """Reach Tier 2 and recover every container.

        A folder that was served before starts on full disks too: a container that cannot be opened for lack of room is
        opened later, and one whose log or Tier 2 takes no more bytes is read.

        Raises:
            StartError: the text says in one line what is wrong.
        """
        spec = self._spec
        budgets = spec.budgets
        data = Path(spec.data)
        known = any(opened_epoch(data, container_id) for container_id in spec.owned)
        store, trouble = await self._open_tier2(bound=known)
        disk = RealDisk()
        self._stack.callback(disk.close)
        logs = folder_logs(spec.log, data, spec.owned, disk)
        await logs.prepare(store, self._tier2_place, self._entropy.token(8).hex())
        cluster_id = uuid.UUID(spec.cluster_id).bytes
        ports = WorkerPorts(
            store=store,
            open_log=logs.open_log,
            next_epoch=logs.next_epoch,
            clock=self._clock,
            entropy=self._entropy,
            cluster_id=cluster_id,
            log_opened=logs.log_opened,
            contact=self._contact,
            figures=self._contact.figures,
        )
        self.worker = Worker(spec.container_count, spec.owned, budgets, ports)
        self._stack.push_async_callback(self.worker.close)
        await self.worker.start(on_full_disks=known)
        if trouble:
            self._report_until_available(store, trouble)
        self._keep_contact(store)
        in_flight = InFlightBudget(budgets.in_flight_bytes)
        self.server = SegmentStoreServer(
            self.worker, in_flight, self._clock, self._entropy, connections_max=self._connections_max
        )
        self._stack.push_async_callback(self.server.close)
        self.in_process = self.server.in_process()
        self._stack.push_async_callback(self.in_process.close)

    async def _open_tier2(self, *, bound: bool) -> tuple[ObjectStore, str]:
        """Open Tier 2 and bind it to the cluster; `bound`: it was bound before. Raises StartError.

        Returns also why it takes no objects now; empty: it does. One that was bound before must only be read.
        """
        spec = self._spec
        opened = open_object_store(spec.tier2, s3_endpoint=spec.s3_endpoint, create=not bound)
        store = with_contact(opened, self._contact)
        self._stack.push_async_callback(store.close)
        place = self._tier2_place
        trouble = ""
        try:
            await probe(store, self._entropy.token(8).hex(), place)
        except UnavailableError as error:
            if not bound:
                raise StartError(str(error)) from error
            trouble = str(error)
        try:
            await bind_tier2(store, place, spec.cluster_id, spec.container_count, bound=bound)
        except UnavailableError as error:
            raise StartError(trouble or f"{place} is not available: {error}") from error
        if not trouble:
            await delete_left_overs(store, self._entropy.token(8).hex(), CLUSTER_KEY)
        return store, trouble

    def _report_until_available(self, store: ObjectStore, trouble: str) -> None:
        """Report in the log and in the worker's health that Tier 2 takes no objects, until it does."""
        _logger.error("tier2_takes_no_objects", reason=trouble)
        self.worker.start_trouble = trouble
        probing = asyncio.get_running_loop().create_task(self._probe_until_available(store))
        self._stack.push_async_callback(_cancelled, probing)

    async def _probe_until_available(self, store: ObjectStore) -> None:
        while self.worker.start_trouble:
            await asyncio.sleep(limits.STORAGE_RETRY_MAX_S)
            try:
                await probe(store, self._entropy.token(8).hex(), self._tier2_place)
            except (UnavailableError, StartError) as error:
                self.worker.start_trouble = str(error)
            else:
                self.worker.start_trouble = ""
                _logger.warning("tier2_takes_objects", place=self._tier2_place)

    def _keep_contact(self, store: ObjectStore) -> None:
        """Follow whether Tier 2 answers, and report in the log when it does no more, and when it does again."""
        loop = asyncio.get_running_loop()
        contacting = keep_contact(store, self._contact, CLUSTER_KEY, limits.FOLDER_STORE_PROBE_S)
        for task in (loop.create_task(contacting), loop.create_task(self._report_silence())):
            self._stack.push_async_callback(_cancelled, task)

    async def _report_silence(self) -> NoReturn:
        loop, silent = asyncio.get_running_loop(), False
        while True:
            trouble = self._contact.trouble(loop.time())
            if trouble and not silent:
                _logger.error("object_store_does_not_serve", place=self._tier2_place, reason=trouble)
            elif silent and not trouble:
                _logger.warning("object_store_serves_again", place=self._tier2_place)
            silent = bool(trouble)
            await asyncio.sleep(limits.WORKER_STORE_PROBE_S / 4)

    @property
    def _tier2_place(self) -> str:
        spec = self._spec
        return f"Tier 2 {spec.tier2}" + (f" at {spec.s3_endpoint}" if spec.s3_endpoint else "")

    async def listen_on(self, listener: socket.socket) -> None:
        """Serve connections of a bound socket. Raises StartError."""
        try:
            await self.server.start_on(listener)
        except OSError as error:
            raise StartError(f"the store cannot listen: {error.strerror}") from error

    async def run(self, leave: asyncio.Event) -> None:
        """Serve until `leave` is set: the containers of a folder do not move."""
        await leave.wait()

    async def close(self) -> None:
        """Stop serving. All acknowledged data is on disk already."""
        await self._stack.aclose()


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    await asyncio.wait([task])
