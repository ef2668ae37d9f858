"""Lag of all reader groups: one measurement of a cluster for all its groups, each takes its own from it (design §11).

Whoever asks first after a period has passed starts the measurement; others wait for it or take what the last one found.
A group that was not measured yet is measured by itself, once.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import NotFoundError, OverloadedError, TailraceError
from tailrace_operator.readergroup import rust
from tailrace_operator.readergroup.measure import Histories, Sample, Seen, SegmentLook, measure
from tailrace_operator.readergroup.positions import GroupPositions, positions_of

if TYPE_CHECKING:
    from tailrace.client.async_client import Client
    from tailrace.client.group.reader_group import ReaderGroup
    from tailrace_operator.connections.controllers import ClusterName, Controllers


@dataclass(slots=True)
class _Group:
    """A group that is measured. ``handle`` follows the state of a group of the Java flavour."""

    scope: str
    name: str
    is_rust: bool
    publishes: bool
    handle: ReaderGroup | None = None
    seen: dict[str, Seen] = field(default_factory=dict)
    found: Sample | TailraceError | None = None


@dataclass(slots=True)
class _Cluster:
    """Groups by the resource that asks, and when they were measured together last, on the loop's clock."""

    groups: dict[str, _Group] = field(default_factory=dict)
    histories: Histories = field(default_factory=Histories)
    measured_s: float | None = None
    measuring: asyncio.Lock = field(default_factory=asyncio.Lock)


class LagTracker:
    """Samples of all groups that are asked for."""

    def __init__(self, controllers: Controllers) -> None:
        self._controllers = controllers
        self._clusters: dict[ClusterName, _Cluster] = {}
        self.measurements = 0

    async def sample(
        self, cluster: ClusterName, resource: str, scope: str, name: str, *, is_rust: bool, publishes: bool
    ) -> Sample:
        """The newest sample of a group; `resource` asks for it from now on.

        Raises:
            NoSuchReaderGroupError: it does not exist, or has no state yet. CorruptionError, FormatVersionError,
            IllegalStateError: its state cannot be read. UnavailableError. OverloadedError: too many groups.
        """
        known = self._clusters.setdefault(cluster, _Cluster())
        group = known.groups.get(resource)
        if group is None or (group.scope, group.name, group.is_rust) != (scope, name, is_rust):
            if sum(len(one.groups) for one in self._clusters.values()) >= limits.OPERATOR_LAG_GROUPS_MAX:
                raise OverloadedError(f"{limits.OPERATOR_LAG_GROUPS_MAX} reader groups are measured already")
            group = known.groups[resource] = _Group(scope, name, is_rust, publishes)
        group.publishes = publishes
        async with known.measuring:
            if known.measured_s is None or self._now_s() - known.measured_s >= limits.OPERATOR_LAG_PERIOD_S:
                known.measured_s = self._now_s()
                await self._measure(cluster, known, list(known.groups.values()))
            elif group.found is None or isinstance(group.found, TailraceError):
                await self._measure(cluster, known, [group])
        if isinstance(group.found, TailraceError):
            raise group.found.with_traceback(None)
        assert group.found is not None
        return group.found

    def invalidate(self, cluster: ClusterName) -> None:
        """The cluster's resource changed: its groups are measured again when the next sample is asked for."""
        known = self._clusters.get(cluster)
        if known is not None:
            known.measured_s = None

    def forget(self, cluster: ClusterName, resource: str) -> None:
        """Nobody asks for that resource's group any more."""
        known = self._clusters.get(cluster)
        if known is not None:
            known.groups.pop(resource, None)
            if not known.groups:
                del self._clusters[cluster]

    def forget_everywhere(self, resource: str) -> None:
        """The same, whichever cluster it was of."""
        for cluster in list(self._clusters):
            self.forget(cluster, resource)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _measure(self, cluster: ClusterName, known: _Cluster, groups: list[_Group]) -> None:
        """Measure groups, some at a time; what one group fails with is its own."""
        self.measurements += 1
        look = SegmentLook(known.histories)
        for start in range(0, len(groups), limits.OPERATOR_LAG_CONCURRENT_MAX):
            part = groups[start : start + limits.OPERATOR_LAG_CONCURRENT_MAX]
            try:
                async with self._controllers.use(cluster) as client:
                    await asyncio.gather(*(self._measure_one(client, group, look) for group in part))
            except TailraceError as error:
                for group in part:
                    group.found, group.handle = error, None

    async def _measure_one(self, client: Client, group: _Group, look: SegmentLook) -> None:
        try:
            positions = await self._positions(client, group)
            group.found = await measure(
                client, f"{group.scope}/{group.name}", positions, look, group.seen, publishes=group.publishes
            )
        except TailraceError as error:
            group.found, group.handle = error, None

    async def _positions(self, client: Client, group: _Group) -> GroupPositions:
        if group.is_rust:
            return await rust.read_positions(client, group.scope, group.name)
        if group.handle is not None:
            with contextlib.suppress(NotFoundError):  # the group was made anew: its state is in another segment
                return positions_of(await group.handle.state())
        group.handle = await client.reader_groups(group.scope).open(group.name)
        return positions_of(await group.handle.state())
