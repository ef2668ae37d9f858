"""Creates a worker's Lease, renews it while the worker's event loop beats, and marks it when the worker leaves.

`Renewer` runs on an event loop of its own in a thread (`renewal_thread`), or as a task of a simulated process
(docs/design.md#failure-detection).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Protocol

import structlog

from tailrace.cluster.heartbeat import Heart, HeartbeatRule
from tailrace.cluster.kubernetes import LEASES, KubernetesApi, Manifest
from tailrace.cluster.leases import WorkerLease, read_worker_lease, worker_lease_name, write_worker_lease
from tailrace.common import limits
from tailrace.common.errors import (
    AlreadyExistsError,
    NotFoundError,
    NotOwnerError,
    UnavailableError,
    WriteConflictError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.cluster.endpoints import ContainerEndpoints
    from tailrace.common.ports import Clock

_logger = structlog.get_logger()


class Renewals(Protocol):
    """The port to what renews the worker's Lease outside of the worker's event loop."""

    async def start(self) -> None:
        """Take the Lease for this process, and renew it from now on. Raises UnavailableError."""
        ...

    def leave(self) -> None:
        """Renew at once; from now on the Lease says that the worker wants no containers."""
        ...

    async def wait_left(self) -> None:
        """Return when the API server has stored such a renewal; it may never. The caller sets a timeout."""
        ...

    async def wait_superseded(self) -> None:
        """Return when another process runs under this worker's name: this one must end."""
        ...

    async def stop(self) -> None:
        """Stop renewing."""
        ...


class Renewer:
    """Keeps one process's Lease renewed."""

    def __init__(
        self,
        api: KubernetesApi,
        cluster: str,
        worker: str,
        incarnation: str,
        endpoints: ContainerEndpoints,
        clock: Clock,
        heart: Heart,
        *,
        cluster_id: str = "",
        not_open: Callable[[], str] = lambda: "",
        store_silent_s: Callable[[], int] = lambda: 0,
    ) -> None:
        """``not_open`` and ``store_silent_s`` return what the Lease says of that; called before each renewal."""
        self._api = api
        self._cluster = cluster
        self._lease = WorkerLease(worker, incarnation, 0, endpoints=endpoints, cluster_id=cluster_id)
        self._name = worker_lease_name(cluster, worker)
        self._clock = clock
        self._heart = heart
        self._not_open = not_open
        self._store_silent_s = store_silent_s
        self._stored: Manifest | None = None
        self._leaving = False
        self._due = asyncio.Event()
        self.left = asyncio.Event()
        """Set when the API server has stored a renewal that says that the worker leaves."""

    def leave(self) -> None:
        """See Renewals.leave; on the loop of `run`."""
        self._leaving = True
        self._due.set()

    async def register(self) -> None:
        """Take the Lease for this process, regardless of its former owner.

        Raises:
            UnavailableError: the API did not store it; retry later.
        """
        for _ in range(limits.EPOCH_CONFLICTS_MAX):
            self._stored = await self._read()
            if await self._try_write():
                return
        raise UnavailableError(f"Lease {self._name} is always changed by others")

    async def renew(self) -> None:
        """Renew once.

        Raises:
            NotOwnerError: another process has the Lease. UnavailableError: it is unknown whether it was renewed.
        """
        for _ in range(limits.EPOCH_CONFLICTS_MAX):
            if self._stored is not None and await self._try_write():
                return
            self._stored = await self._read()
            found = read_worker_lease(self._stored) if self._stored is not None else None
            if found is not None and found.incarnation != self._lease.incarnation:
                raise NotOwnerError(f"worker {self._lease.worker} was started elsewhere")
            if self._stored is None and await self._try_write():
                return  # it was deleted
        raise UnavailableError(f"Lease {self._name} is always changed by others")

    async def run(self) -> None:
        """Renew until cancelled, as the heartbeat rule allows.

        Raises:
            NotOwnerError: another process has the Lease.
        """
        loop = asyncio.get_running_loop()
        rule = HeartbeatRule(loop.time(), limits.HEARTBEAT_FRESH_S)
        blocked, trouble = False, ""
        while True:
            began_s = loop.time()
            self._due.clear()  # before the renewal: a `leave` during it needs another one
            if rule.may_renew(self._heart.beats, began_s):
                blocked = False
                try:
                    await self.renew()
                    trouble = ""
                except NotOwnerError:
                    raise
                except UnavailableError as error:
                    before, trouble = trouble, str(error)
                    if trouble != before:  # not once per second of an outage
                        _logger.warning("lease_not_renewed", lease=self._name, reason=trouble)
            elif not blocked:
                blocked = True
                _logger.error("event_loop_blocked", lease=self._name, seconds=limits.HEARTBEAT_FRESH_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(began_s + limits.WORKER_LEASE_RENEW_S):
                    await self._due.wait()

    async def _read(self) -> Manifest | None:
        try:
            return await self._api.get(LEASES, self._name)
        except NotFoundError:
            return None

    async def _try_write(self) -> bool:
        """Write the next renewal over what was read or stored last; False: the Lease has changed since."""
        lease = dataclasses.replace(self._lease, renewal=self._lease.renewal + 1, leaving=self._leaving)
        lease = dataclasses.replace(lease, not_open=self._not_open(), store_silent_s=self._store_silent_s())
        self._lease = lease  # also when the outcome is unknown: no two renewals have the same number
        manifest = write_worker_lease(self._cluster, lease, self._stored, self._clock.now_ms())
        found, self._stored = self._stored, None
        try:
            if found is None:
                self._stored = await self._api.create(LEASES, manifest)
            else:
                self._stored = await self._api.replace(LEASES, manifest)
        except (AlreadyExistsError, WriteConflictError, NotFoundError):
            return False
        if lease.leaving:
            self.left.set()
        return True
