"""Epochs in Leases: the implementation for Kubernetes (docs/design.md#ownership).

The container's Lease holds the last epoch; a replace with its resource version is the compare-and-swap. The Lease is
read *before* the map. So a former worker cannot overtake the new one: when the new worker has taken its epoch, the
Lease has changed, and the former worker's replace fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.cluster.cluster_map import read_map
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS, KubernetesApi, Manifest
from tailrace.cluster.leases import (
    CONTAINER_ROLE,
    ContainerLease,
    container_lease_name,
    labels_of,
    read_container_lease,
    read_worker_lease,
    worker_lease_name,
    write_container_lease,
)
from tailrace.common import limits
from tailrace.common.errors import (
    AlreadyExistsError,
    NotFoundError,
    NotOwnerError,
    UnavailableError,
    WriteConflictError,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from tailrace.common.ports import Clock


class LeaseEpochs:
    """Epochs for one process of a worker (`incarnation`); implements `Epochs`.

    ``cluster_id`` is stored in the Leases: a cluster that was deleted and created again is another one.
    """

    def __init__(
        self, api: KubernetesApi, cluster: str, worker: str, incarnation: str, clock: Clock, cluster_id: str = ""
    ) -> None:
        self._cluster_id = cluster_id
        self._api = api
        self._cluster = cluster
        self._worker = worker
        self._incarnation = incarnation
        self._clock = clock
        self._taken: dict[int, int] = {}

    async def take(self, container_id: int, floor: int = 0) -> int:
        """See Epochs.take."""
        for _ in range(limits.EPOCH_CONFLICTS_MAX):
            found = await self._read(container_id)
            await self._check_named(container_id)
            epoch = max(_epoch_of(found), floor) + 1
            lease = ContainerLease(container_id, self._worker, epoch, self._cluster_id)
            try:
                await self._write(lease, found)
            except (AlreadyExistsError, WriteConflictError, NotFoundError):
                continue  # a rival was faster, or the Lease is gone; our write may be stored, its epoch is used up
            self._taken[container_id] = epoch
            return epoch
        raise UnavailableError(f"epoch of container {container_id}: lost {limits.EPOCH_CONFLICTS_MAX} times to others")

    async def lower(self, container_id: int, last: int) -> None:
        """Lower the epoch to the last one that the log knows, `last`: the taken one is too far above it to be opened.

        Normal use does not reach such an epoch, so a person or a program edited the Lease. It stays unchanged when
        another worker has taken an epoch since. Numbers above `last` may have been used before. When two workers open
        the log for one epoch, the log's claim admits one, and the other takes a greater epoch (ADR 0009).

        Raises:
            UnavailableError: it is unknown whether the Lease was changed; the next epoch shows it.
        """
        epoch = self._taken.get(container_id, 0)
        if epoch <= last:
            return
        self._taken[container_id] = last  # in any case: `keep` must not restore an epoch that cannot be opened
        found = await self._read(container_id)
        if found is None or _epoch_of(found) != epoch:
            return
        try:
            await self._write(ContainerLease(container_id, self._worker, last, self._cluster_id), found)
        except (WriteConflictError, NotFoundError):
            return  # another worker took it just now

    async def release(self, container_id: int) -> None:
        """Record that this process has released the container, unless another worker has taken it since.

        Raises:
            UnavailableError: it may not be recorded; the next owner waits a little longer.
        """
        epoch = self._taken.get(container_id)
        found = await self._read(container_id)
        lease = read_container_lease(found) if found is not None else None
        if found is None or lease is None or (lease.epoch, lease.holder) != (epoch, self._worker):
            return
        try:
            await self._write(ContainerLease(container_id, "", lease.epoch, self._cluster_id), found)
        except (WriteConflictError, NotFoundError):
            return  # another worker took it just now

    async def holder(self, container_id: int) -> str:
        """Return the worker that took the last epoch and has not released it; empty: none. Raises UnavailableError."""
        found = await self._read(container_id)
        lease = read_container_lease(found) if found is not None else None
        return lease.holder if lease is not None else ""

    async def keep(self, container_ids: Collection[int]) -> None:
        """Create missing Leases of containers that this process holds.

        Safety does not need them; without them the placer cannot know the holder of a container.

        Raises:
            UnavailableError: some may still be missing.
        """
        listing = await self._api.list(LEASES, labels_of(self._cluster, CONTAINER_ROLE))
        leases = [lease for item in listing.items if (lease := read_container_lease(item)) is not None]
        missing = set(container_ids) - {lease.container_id for lease in leases}
        for container_id in sorted(missing & self._taken.keys()):
            lease = ContainerLease(container_id, self._worker, self._taken[container_id], self._cluster_id)
            try:
                await self._write(lease, None)
            except AlreadyExistsError:
                continue  # the list was outdated, or another worker took the container just now
            except NotFoundError as error:  # the namespace is deleted, or created again just now
                raise UnavailableError(f"Lease of container {container_id} cannot be created: {error}") from error

    async def _read(self, container_id: int) -> Manifest | None:
        try:
            return await self._api.get(LEASES, container_lease_name(self._cluster, container_id))
        except NotFoundError:
            return None

    async def _write(self, lease: ContainerLease, found: Manifest | None) -> None:
        manifest = write_container_lease(self._cluster, lease, found, self._clock.now_ms())
        if found is None:
            await self._api.create(LEASES, manifest)
        else:
            await self._api.replace(LEASES, manifest)

    async def _check_named(self, container_id: int) -> None:
        """Raise NotOwnerError when the map names another worker, or another process runs under this worker's name."""
        try:
            cluster_map = read_map(await self._api.get(STREAM_CLUSTERS, self._cluster))
        except NotFoundError as error:
            raise NotOwnerError(f"container {container_id}: cluster {self._cluster} does not exist") from error
        assignment = cluster_map.assignments.get(container_id)
        if assignment is None or assignment.worker != self._worker:
            owner = "no worker" if assignment is None else assignment.worker
            raise NotOwnerError(f"container {container_id} is assigned to {owner}, not to {self._worker}")
        try:
            lease = read_worker_lease(await self._api.get(LEASES, worker_lease_name(self._cluster, self._worker)))
        except NotFoundError:
            return  # deleted; the worker creates it again
        if lease is not None and lease.incarnation != self._incarnation:
            raise NotOwnerError(f"container {container_id}: worker {self._worker} was started elsewhere")


async def any_epoch_taken(api: KubernetesApi, cluster: str, cluster_id: str = "") -> bool:
    """Return whether a container of the cluster ever had an owner, according to the Leases that exist.

    Leases of an earlier cluster of the same name do not count: this one may have another Tier 2. Every owner binds Tier
    2 before it takes an epoch (`cluster_identity.bind_tier2`, whose ``bound`` this is). If an epoch was taken and the
    identity is missing, Tier 2 has lost its objects. Raises UnavailableError.
    """
    listing = await api.list(LEASES, labels_of(cluster, CONTAINER_ROLE))
    leases = [lease for item in listing.items if (lease := read_container_lease(item)) is not None]
    return any(lease.epoch > 0 and lease.cluster_id == cluster_id for lease in leases)


def _epoch_of(manifest: Manifest | None) -> int:
    lease = read_container_lease(manifest) if manifest is not None else None
    return lease.epoch if lease is not None else 0
