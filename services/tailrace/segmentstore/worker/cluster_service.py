"""The segment store of one worker process on Kubernetes, composed of its parts.

See docs/design.md#processes, docs/design.md#ownership, ADR 0013.

Object logs, epochs in Leases, a Lease that a thread renews, and a follower that opens and releases containers as the
map says. The simulator runs this composition, too (`tests/simulation/sim/workloads/fleetnodes.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from tailrace.cluster.cluster_identity import CLUSTER_KEY, bind_tier2
from tailrace.cluster.endpoints import ContainerEndpoints, Endpoint
from tailrace.cluster.follower import Follower
from tailrace.cluster.heartbeat import Heart
from tailrace.cluster.lease_epochs import LeaseEpochs, any_epoch_taken
from tailrace.cluster.renewal import Renewer
from tailrace.cluster.renewal_thread import RenewalThread
from tailrace.common import limits
from tailrace.common.budgets import Budgets, worker_budgets
from tailrace.common.errors import NotOwnerError, StartError, UnavailableError
from tailrace.log.object import ObjectLog
from tailrace.log.object_requests import frame_window
from tailrace.log.object_scan import scan_slots
from tailrace.log.probe import probe_conditions
from tailrace.segmentstore.server.budgets import InFlightBudget
from tailrace.segmentstore.server.listener import SegmentStoreServer
from tailrace.segmentstore.worker.folder_logs import epoch_of_objects
from tailrace.segmentstore.worker.not_open import Openings, name_not_open, summarise_not_open
from tailrace.segmentstore.worker.worker import Worker, WorkerPorts
from tailrace.storage.contact import StoreContact, keep_contact, silence, with_contact
from tailrace.storage.obstores import open_object_store
from tailrace.storage.probe_objects import delete_left_overs

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
    from typing import NoReturn

    from tailrace.cluster.kubernetes_api import HttpKubernetes
    from tailrace.common.ports import Clock, Entropy
    from tailrace.segmentstore.worker.not_open import Opens
    from tailrace.storage.port import ObjectStore

FOLLOWING = "following"
"""Reported once the worker has its Lease and has applied the map for the first time."""
BEAT = "beat: "
"""Reported once a second from another thread, with the count of the event loop's heartbeats."""
OPENS = "opens: "
"""Reported once the worker follows the map, with what it opens of its containers (`not_open.Opens`)."""
WAITING = "waiting: "
"""Reported with a reason while something that the worker needs does not answer."""

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ClusterStoreSpec:
    """One worker of a pod, as plain values that another process can receive."""

    namespace: str
    cluster: str
    cluster_id: str
    container_count: int
    worker: str
    """The worker's name; it stays the same when its process restarts."""
    host: str
    port: int
    """Where clients reach it."""
    tier2: str
    s3_endpoint: str | None
    s3_region: str | None
    cache_bytes: int
    attribute_bytes: int
    kubeconfig: str | None = None
    """None: the pod's own service account."""
    siblings: tuple[str, ...] = ()
    """The other workers of the pod; they drain together with this one."""
    tried: bool = False
    """An earlier process of this pod has probed the store."""

    @property
    def budgets(self) -> Budgets:
        """Return the budgets of the process. Raises StartError when the cache is too small."""
        return worker_budgets(self.cache_bytes, self.attribute_bytes)


class ClusterStoreService:
    """One worker: `start` waits for Tier 2, `listen_on` serves, `run` follows the map, `close` ends it.

    ``report`` is called with `WAITING` plus a reason, and with `FOLLOWING`, when the state changes.
    """

    def __init__(
        self,
        spec: ClusterStoreSpec,
        clock: Clock,
        entropy: Entropy,
        connections_max: int,
        report: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._clock = clock
        self._entropy = entropy
        self._connections_max = connections_max
        self._report = report
        self._stack = contextlib.AsyncExitStack()
        self._incarnation = entropy.token(8).hex()
        self._opened: dict[int, int] = {}
        self._scan_slots = scan_slots()
        self._put_window = frame_window()
        self._heart = Heart()
        self._not_open = ""
        self._contact = StoreContact()
        self._store_silent_s = 0
        self._contacting: list[asyncio.Task[NoReturn]] = []
        self._renewals = self._make_renewals()
        self._registering: asyncio.Task[None] | None = None
        self.worker: Worker
        self._api: HttpKubernetes
        self._store: ObjectStore
        self._epochs: LeaseEpochs
        self.server: SegmentStoreServer

    # -- start ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reach Tier 2, check that it belongs to the cluster, and start the worker. Waits for what does not answer.

        Raises:
            StartError: Tier 2 belongs to another cluster or cannot hold logs, or Kubernetes is not configured.
        """
        spec = self._spec
        self._api = self._connect()
        self._stack.push_async_callback(self._api.close)
        self._store = with_contact(self._open_store(), self._contact)
        self._stack.push_async_callback(self._store.close)
        self._keep_contact()
        if spec.tried:  # renew the Lease soon, or the placer moves the containers to other workers
            self._register()
        await self._retry_until_answered(self._bind)
        self._epochs = LeaseEpochs(
            self._api, spec.cluster, spec.worker, self._incarnation, self._clock, spec.cluster_id
        )
        ports = WorkerPorts(
            store=self._store,
            open_log=self._open_log,
            next_epoch=self._next_epoch,
            clock=self._clock,
            entropy=self._entropy,
            cluster_id=uuid.UUID(spec.cluster_id).bytes,
            log_opened=self._log_opened,
            lower_epoch=self._epochs.lower,
            contact=self._contact,
            figures=self._contact.figures,
            moves=True,
        )
        budgets = spec.budgets
        self.worker = Worker(spec.container_count, (), budgets, ports)
        self._stack.push_async_callback(self.worker.close)
        await self.worker.start()
        in_flight = InFlightBudget(budgets.in_flight_bytes)
        self.server = SegmentStoreServer(
            self.worker, in_flight, self._clock, self._entropy, connections_max=self._connections_max
        )
        self._stack.push_async_callback(self.server.close)

    async def listen_on(self, listener: socket.socket) -> None:
        """Serve connections of a bound socket. Raises StartError."""
        try:
            await self.server.start_on(listener)
        except OSError as error:
            raise StartError(f"the store cannot listen on port {self._spec.port}: {error.strerror}") from error

    # The simulator replaces these ways out of the process (threads, Tier 2 and the Kubernetes API), and
    # `_delete_left_overs`: its objects have no times.

    def _make_renewals(self) -> RenewalThread:
        return RenewalThread(self._renewer)

    def _open_store(self) -> ObjectStore:
        spec = self._spec
        return open_object_store(spec.tier2, s3_endpoint=spec.s3_endpoint, s3_region=spec.s3_region)

    def _connect(self) -> HttpKubernetes:
        # Imported here: a server without Kubernetes does not need its client.
        from tailrace.cluster.kubernetes_api import from_kubeconfig, in_cluster

        spec = self._spec
        if spec.kubeconfig is None:
            return in_cluster(spec.namespace)
        return from_kubeconfig(spec.namespace, spec.kubeconfig)

    def _keep_contact(self) -> None:
        """Follow until `close` for how long Tier 2 does not answer, also while a start waits for it."""
        loop = asyncio.get_running_loop()
        contacting = keep_contact(self._store, self._contact, CLUSTER_KEY)
        self._contacting = [loop.create_task(contacting), loop.create_task(self._note_silence())]
        self._stack.push_async_callback(_cancel, self._contacting)

    async def _note_silence(self) -> NoReturn:
        """Remember what the Lease is to say; its thread reads it before each renewal."""
        while True:
            silent_s = int(self._contact.silent_s(asyncio.get_running_loop().time()))
            self._store_silent_s = silent_s if silent_s >= limits.WORKER_STORE_SILENT_REPORT_S else 0
            await asyncio.sleep(limits.WORKER_LEASE_RENEW_S / 2)

    def _register(self) -> None:
        """Create the worker's Lease and renew it until `close`."""
        if self._registering is None:
            loop = asyncio.get_running_loop()
            tasks = [loop.create_task(self._heart.beat())]
            self._registering = loop.create_task(self._retry_until_answered(self._renewals.start))
            self._stack.push_async_callback(self._renewals.stop)
            self._stack.push_async_callback(_cancel, [*tasks, self._registering])

    async def _bind(self) -> None:
        spec = self._spec
        place = f"Tier 2 {spec.tier2}" + (f" at {spec.s3_endpoint}" if spec.s3_endpoint else "")
        if not spec.tried:
            with _naming(place):
                await probe_conditions(self._store, self._entropy.token(8).hex(), place)
        bound = await any_epoch_taken(self._api, spec.cluster, spec.cluster_id)
        with _naming(place):
            await bind_tier2(self._store, place, spec.cluster_id, spec.container_count, bound=bound)
        if not spec.tried:
            await self._delete_left_overs()

    async def _delete_left_overs(self) -> None:
        await delete_left_overs(self._store, self._entropy.token(8).hex(), CLUSTER_KEY)

    async def _retry_until_answered(self, call: Callable[[], Awaitable[None]]) -> None:
        """Retry a call until it is answered; report each new reason for waiting."""
        reported = ""
        while True:
            try:
                await call()
                return
            except UnavailableError as error:
                if (reason := str(error)) != reported:
                    _logger.warning("worker_waits", worker=self._spec.worker, reason=reason)
                    self._report(WAITING + reason)
                    reported = reason
            await asyncio.sleep(limits.WORKER_WAIT_RETRY_S)

    # -- what the worker needs ------------------------------------------------------------------------------------

    def _open_log(self, container_id: int) -> ObjectLog:
        return ObjectLog(
            self._store,
            container_id,
            opened_epoch=self._opened[container_id],
            scan_slots=self._scan_slots,
            put_window=self._put_window,
        )

    async def _next_epoch(self, container_id: int, floor: int) -> int:
        epoch = await self._epochs.take(container_id, floor)
        if container_id not in self._opened:  # shows whether a log existed: a lost log must not pass for a new one
            self._opened[container_id] = await epoch_of_objects(self._store, container_id)
        return epoch

    def _log_opened(self, container_id: int, epoch: int) -> None:
        self._opened[container_id] = epoch

    # -- service -------------------------------------------------------------------------------------------------

    async def run(self, leave: asyncio.Event) -> None:
        """Own the containers that the map assigns until `leave` is set; then hand them over, and return.

        Raises:
            NotOwnerError: another process runs under this worker's name.
        """
        self._register()
        assert self._registering is not None
        leaving = asyncio.get_running_loop().create_task(_set(leave))
        try:
            await asyncio.wait((self._registering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if self._registering.done():  # without a Lease it owns nothing to hand over
                self._registering.result()
                await self._follow(leaving)
        finally:
            await _cancel([leaving])

    async def _follow(self, leaving: asyncio.Task[None]) -> None:
        spec = self._spec
        loop = asyncio.get_running_loop()
        follower = Follower(self._api, spec.cluster, spec.worker, self.worker, self._epochs, self._renewals)
        superseded = loop.create_task(self._renewals.wait_superseded())
        following = loop.create_task(follower.run())
        tasks = [superseded, following, loop.create_task(self._report_progress(follower))]
        try:
            endless = (superseded, following, *self._contacting)
            await asyncio.wait((*endless, leaving), return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                tasks.append(loop.create_task(follower.drain(together_with=spec.siblings)))
                await asyncio.wait((*endless, tasks[-1]), return_when=asyncio.FIRST_COMPLETED)
            if superseded.done():
                raise NotOwnerError(f"worker {spec.worker} was started elsewhere, or cannot renew its Lease")
            for task in (*endless, tasks[-1]):
                if task.done():
                    task.result()
        finally:
            await _cancel(tasks)

    async def _report_progress(self, follower: Follower) -> None:
        """Report why the map is not applied yet, then that it is, then which containers are not open."""
        reported = ""
        while not follower.has_followed:
            if follower.trouble not in ("", reported):
                reported = follower.trouble
                self._report(WAITING + reported)
            await asyncio.sleep(limits.WORKER_PROGRESS_POLL_S)
        self._report(FOLLOWING)
        await report_not_open(
            self.worker,
            self._report,
            self._name_not_open,
            store_silent_s=lambda: self._store_silent_s,
            store_refusal=lambda: self._contact.refusal,
            opens=lambda opens: self._report(OPENS + opens),
        )

    def _name_not_open(self, text: str) -> None:
        """Remember what the Lease is to say; its thread reads it before each renewal."""
        self._not_open = text

    @contextlib.asynccontextmanager
    async def _renewer(self) -> AsyncIterator[Renewer]:
        """Make the renewer for the renewal thread, with connections of its own."""
        spec = self._spec
        api = self._connect()
        beating = asyncio.get_running_loop().create_task(self._report_beats())
        try:
            endpoints = ContainerEndpoints(Endpoint(spec.host, spec.port))
            yield Renewer(
                api,
                spec.cluster,
                worker=spec.worker,
                incarnation=self._incarnation,
                endpoints=endpoints,
                clock=self._clock,
                heart=self._heart,
                cluster_id=spec.cluster_id,
                not_open=lambda: self._not_open,
                store_silent_s=lambda: self._store_silent_s,
            )
        finally:
            await _cancel([beating])
            await api.close()

    async def _report_beats(self) -> None:
        """Report the count of the event loop's heartbeats. This thread reports in time even when the loop is busy."""
        while True:
            self._report(f"{BEAT}{self._heart.beats}")
            await asyncio.sleep(limits.WORKER_LEASE_RENEW_S)

    async def close(self) -> None:
        """Stop serving. All acknowledged data is stored already."""
        await self._stack.aclose()


async def report_not_open(
    worker: Worker,
    report: Callable[[str], None],
    name: Callable[[str], None] = lambda _: None,
    store_silent_s: Callable[[], int] = lambda: 0,
    store_refusal: Callable[[], str] = lambda: "",
    opens: Callable[[Opens], None] = lambda _: None,
) -> NoReturn:
    """Report for how long containers have not been open, and why; `name` them without times. Runs until cancelled.

    Also that the object store does not answer, or with which error it refuses requests (`store_refusal`), when that
    lasts (`store_silent_s`). ``opens`` is called with what the worker opens of its containers, when that changes.
    """
    was, opened, openings = "", "", Openings()
    loop = asyncio.get_running_loop()
    while True:
        found, silent_s = worker.not_open(), store_silent_s()
        look = openings.look(loop.time(), len(worker.owned()), worker.closed(), store_answers=not silent_s)
        if look != opened:
            opened = look
            opens(look)
        store, store_name = silence(silent_s, store_refusal())
        name("; ".join(filter(None, (store_name, name_not_open(found)))))
        now = "; ".join(filter(None, (store, summarise_not_open(found))))
        if now != was:
            report(WAITING + now if now else FOLLOWING)
            was = now
        await asyncio.sleep(limits.CONTAINERS_NOT_OPEN_POLL_S)


@contextlib.contextmanager
def _naming(place: str) -> Iterator[None]:
    """Name the store in its errors."""
    try:
        yield
    except UnavailableError as error:
        raise UnavailableError(f"{place} is not available: {error}") from error


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
