"""The worker's side of placement: opens the containers that the map assigns to it, releases the others.

See docs/design.md#ownership.

Safety does not depend on it: epochs and the log decide who owns a container. A container that the map does not mention
stays where it is. Nothing changes while the map cannot be read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import structlog

from tailrace.cluster.kubernetes import LEASES, ForbiddenError
from tailrace.cluster.leases import WORKER_ROLE, WorkerLease, labels_of, read_worker_lease
from tailrace.cluster.map_reader import MapReader
from tailrace.common import limits
from tailrace.common.errors import NotOwnerError, TailraceError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import NoReturn

    from tailrace.cluster.cluster_map import Assignment, ClusterMap
    from tailrace.cluster.kubernetes import KubernetesApi
    from tailrace.cluster.renewal import Renewals

_logger = structlog.get_logger()


class ContainerHost(Protocol):
    """The part that runs containers: a segment store worker."""

    def expect_container(self, container_id: int) -> None:
        """Let requests for the container wait: it opens here once its former owner has released it."""
        ...

    def unexpect_container(self, container_id: int) -> None:
        """End the waiting of requests: the container is open, or is not opened for now."""
        ...

    async def open_container(self, container_id: int) -> None:
        """Own the container from now on; return when the first attempt to open it has ended.

        Raises:
            NotOwnerError: the container belongs to another worker; this worker does not own it.
        """
        ...

    async def release_container(self, container_id: int) -> None:
        """Release the container: move what time allows to Tier 2, then close its log."""
        ...

    def owned(self) -> Collection[int]:
        """Return the containers that this worker owns, running or not."""
        ...


class Handover(Protocol):
    """Through which an owner and its successor agree when a container is released (`LeaseEpochs`)."""

    async def release(self, container_id: int) -> None:
        """Record that this process has released the container. Raises UnavailableError."""
        ...

    async def holder(self, container_id: int) -> str:
        """Return the worker that has not released the container; empty: none. Raises UnavailableError."""
        ...

    async def keep(self, container_ids: Collection[int]) -> None:
        """Record that this process holds the containers, where the record is missing. Raises UnavailableError."""
        ...


class Follower:
    """Keeps the containers of a host in step with the map's assignments to one worker."""

    def __init__(
        self,
        api: KubernetesApi,
        cluster: str,
        worker: str,
        host: ContainerHost,
        handover: Handover,
        renewals: Renewals,
    ) -> None:
        self._api = api
        self._cluster = cluster
        self._worker = worker
        self._host = host
        self._handover = handover
        self._renewals = renewals
        self._reader = MapReader(api, cluster, self._follow)
        self._map: ClusterMap | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._left = False
        self._seen: dict[str, tuple[tuple[str, int] | None, float]] = {}
        """While it drains: the last renewal seen of each other worker, and when."""
        self._forbidden_s: float | None = None
        """While it drains: since when the API forbids this process to list Leases."""
        self._changed = asyncio.Event()

    async def run(self) -> NoReturn:
        """Follow the map until cancelled; the containers stay unchanged then."""
        keeping = asyncio.get_running_loop().create_task(self._keep())
        try:
            await self._reader.run()
        finally:
            tasks = [keeping, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    @property
    def has_followed(self) -> bool:
        """Return whether the map was read, and its changes have begun."""
        return self._map is not None

    @property
    def trouble(self) -> str:
        """Return why the last attempt to read the map failed; empty when it succeeded."""
        return self._reader.trouble

    async def drain(self, together_with: Collection[str] = ()) -> None:
        """Leave: hand all containers over as the placer moves them. `run` must keep running meanwhile.

        Containers that remain after ``limits.DRAIN_DEADLINE_S`` are released without a successor. They are released at
        once when no worker can take them. That is so when every other worker leaves (by its Lease, or `together_with`
        this one) or has not renewed its Lease during the drain for the time of a lapse. It is also so when the cluster
        is deleted, or the API has forbidden to list Leases for that time: uninstalling removes the rights before its
        pods end, and by then living workers have seen this one lapse.

        Before it returns it waits until the worker's Lease says that it leaves, at most
        ``limits.DRAIN_MARK_TIMEOUT_S`` from its beginning: other workers would count this one as alive otherwise.
        """
        self._renewals.leave()
        self._seen.clear()
        self._forbidden_s = None
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        ends_at_s = began_s + limits.DRAIN_DEADLINE_S
        while self._host.owned() and loop.time() < ends_at_s:
            self._changed.clear()  # before the request, during which containers may go
            if not await self._has_others(together_with):
                break
            self._reader.wake()
            try:
                await asyncio.wait_for(self._changed.wait(), min(limits.MAP_RETRY_S, ends_at_s - loop.time()))
            except TimeoutError:
                continue
        self._left = True
        left = sorted(self._host.owned())  # without the containers that are handed over now
        if left:
            _logger.warning("containers_not_handed_over", worker=self._worker, containers=left)
        for container_id in left:
            self._settle(container_id)
        await self._wait_settled()
        await self._wait_marked(began_s + limits.DRAIN_MARK_TIMEOUT_S)

    async def _wait_settled(self) -> None:
        """Wait until all changes in progress are done; log once which take longer than a release should."""
        in_progress = self._tasks.copy()
        if in_progress:
            _, pending = await asyncio.wait(in_progress.values(), timeout=limits.DRAIN_CLOSE_TIMEOUT_S)
            if pending:
                late = sorted(number for number, task in in_progress.items() if task in pending)
                _logger.warning("containers_not_closed", worker=self._worker, containers=late)
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def _wait_marked(self, ends_at_s: float) -> None:
        if self._reader.is_gone:  # no placer reads it any more
            return
        try:
            async with asyncio.timeout_at(ends_at_s):
                await self._renewals.wait_left()
        except TimeoutError:
            reason = f"the API server took no renewal within {limits.DRAIN_MARK_TIMEOUT_S:g} s"
            _logger.warning("leave_not_recorded", worker=self._worker, reason=reason)

    async def _keep(self) -> NoReturn:
        while True:
            await asyncio.sleep(limits.MAP_RELIST_S)
            try:
                await self._handover.keep(self._host.owned())
            except UnavailableError as error:
                _logger.info("leases_not_checked", worker=self._worker, reason=str(error))

    async def _has_others(self, leaving: Collection[str]) -> bool:
        """Return whether another worker may take a container: one that the placer knows, alive and not leaving."""
        if self._reader.is_gone:
            return False
        if self._map is None:
            return True
        others = self._map.workers.keys() - {self._worker, *leaving}
        if not others:
            return False
        try:
            listing = await self._api.list(LEASES, labels_of(self._cluster, WORKER_ROLE))
        except UnavailableError as error:
            _logger.debug("other_workers_unknown", worker=self._worker, reason=str(error))
            return not self._is_long_forbidden(error)
        self._forbidden_s = None
        leases = [lease for item in listing.items if (lease := read_worker_lease(item)) is not None]
        return bool(others - {lease.worker for lease in leases if lease.leaving} - self._silent(others, leases))

    def _is_long_forbidden(self, error: UnavailableError) -> bool:
        """Return whether the API has refused without a break for the time of a lapse."""
        if not isinstance(error, ForbiddenError):
            self._forbidden_s = None
            return False
        now_s = asyncio.get_running_loop().time()
        if self._forbidden_s is None:
            self._forbidden_s = now_s
        return now_s - self._forbidden_s > limits.WORKER_LEASE_LAPSE_S

    def _silent(self, others: Collection[str], leases: Collection[WorkerLease]) -> set[str]:
        """Return which of the others were not seen to renew for the time of a lapse.

        The placer cannot declare the last workers dead, and a worker may end before its Lease says that it leaves.
        """
        now_s = asyncio.get_running_loop().time()
        renewals = {lease.worker: (lease.incarnation, lease.renewal) for lease in leases}
        for worker in others:
            renewal = renewals.get(worker)
            if worker not in self._seen or self._seen[worker][0] != renewal:
                self._seen[worker] = renewal, now_s
        return {worker for worker in others if now_s - self._seen[worker][1] > limits.WORKER_LEASE_LAPSE_S}

    def _follow(self, cluster_map: ClusterMap) -> None:
        self._map = cluster_map
        for container_id in range(cluster_map.container_count):
            if self._is_wanted(container_id) is not (container_id in self._host.owned()):
                self._settle(container_id)

    def _is_wanted(self, container_id: int) -> bool:
        """Return whether the container should run here; when the map does not say, whether it does."""
        if self._left:
            return False
        assignment = self._assignment(container_id)
        if assignment is None:
            return container_id in self._host.owned()
        return assignment.worker == self._worker

    def _assignment(self, container_id: int) -> Assignment | None:
        return None if self._map is None else self._map.assignments.get(container_id)

    def _settle(self, container_id: int) -> None:
        if container_id not in self._tasks:
            self._tasks[container_id] = asyncio.get_running_loop().create_task(self._make_so(container_id))

    async def _make_so(self, container_id: int) -> None:
        """Open or release the container until it is as the latest map says."""
        try:
            while (wanted := self._is_wanted(container_id)) is not (container_id in self._host.owned()):
                await (self._take(container_id) if wanted else self._let_go(container_id))
        except NotOwnerError as error:  # the map has changed already
            _logger.info("container_not_ours", container=container_id, reason=str(error))
            self._reader.wake()
        except (TailraceError, OSError) as error:  # may pass: every reading of the map tries again
            _logger.warning("container_not_settled", container=container_id, reason=str(error))
        finally:
            del self._tasks[container_id]  # without an await since the last check: no new map comes in between
            self._changed.set()

    async def _take(self, container_id: int) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self._host.expect_container(container_id)
        try:
            if await self._is_free(container_id):
                waited_s = loop.time() - began_s
                await self._host.open_container(container_id)
                _logger.info(  # open or not yet
                    "container_taken",
                    worker=self._worker,
                    container=container_id,
                    waited_ms=round(waited_s * 1000),
                    opening_ms=round((loop.time() - began_s - waited_s) * 1000),
                )
        finally:
            self._host.unexpect_container(container_id)

    async def _let_go(self, container_id: int) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await self._host.release_container(container_id)
        closing_ms = round((loop.time() - began_s) * 1000)
        _logger.info("container_released", worker=self._worker, container=container_id, closing_ms=closing_ms)
        try:
            await self._handover.release(container_id)
        except UnavailableError as error:
            _logger.warning("release_not_recorded", container=container_id, reason=str(error))

    async def _is_free(self, container_id: int) -> bool:
        """Wait within bounds until a living owner releases; False: the container should not run here any more."""
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + limits.HANDOVER_TIMEOUT_S
        while self._is_wanted(container_id):
            assignment = self._assignment(container_id)
            before = assignment.handed_over_by if assignment is not None else ""
            if before in ("", self._worker) or loop.time() >= ends_at_s:
                return True
            try:
                if await self._handover.holder(container_id) != before:
                    return True
            except UnavailableError as error:
                _logger.info("holder_unknown", container=container_id, reason=str(error))
                return True
            await asyncio.sleep(limits.HANDOVER_POLL_S)
        return False
