"""Track the lag of all reader groups: one measurement of a cluster serves all its groups (docs/design.md#resources).

The first request after a period starts the measurement. Other requests wait for it, or return the last result. A
measurement begins with the groups whose result is the oldest, and takes no more groups once it has lasted for a while.
A group whose last measurement failed, or was too long ago, is measured alone, beside the others: it may wait for a
container that is not open.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.client.group import rust
from tailrace.client.group.view import GroupView, view_of
from tailrace.common import limits
from tailrace.common.call_deadline import request_deadline
from tailrace.common.errors import NotFoundError, OverloadedError, TailraceError, UnavailableError
from tailrace.common.task_groups import run_all
from tailrace_operator.readergroup.measure import Histories, Sample, Seen, SegmentLook, measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.client.async_client import Client
    from tailrace.client.group.reader_group import ReaderGroup
    from tailrace_operator.connections.controllers import ClusterName, Controllers


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedGroup:
    """A group to measure, and the resource that asks for it. ``publishes``: it publishes stream cuts."""

    resource: str
    scope: str
    name: str
    is_rust: bool
    publishes: bool


@dataclass(slots=True)
class _Group:
    """A tracked group. ``handle`` follows the state of a group of the Java flavour; ``results`` counts measurements.

    ``found``: the result of the last one, which ended at ``found_s`` on the loop's clock.
    """

    group: TrackedGroup
    handle: ReaderGroup | None = None
    seen: dict[str, Seen] = field(default_factory=dict)
    found: Sample | TailraceError | None = None
    found_s: float = -math.inf
    results: int = 0
    measuring: asyncio.Lock = field(default_factory=asyncio.Lock)

    def current(self, now_s: float) -> Sample | None:
        """Return the sample of the last measurement; None: it failed, or is too old."""
        if isinstance(self.found, Sample) and now_s - self.found_s <= limits.OPERATOR_LAG_AGE_MAX_S:
            return self.found
        return None

    def note(self, found: Sample | TailraceError, now_s: float) -> None:
        """Keep the result of a measurement. After a failure the state is opened again."""
        self.found, self.found_s = found, now_s
        self.results += 1
        if isinstance(found, TailraceError):
            self.handle = None


@dataclass(slots=True)
class _Cluster:
    """Groups by their resource, and when they were last measured together, on the loop's clock.

    ``measurements``: of all together, that have ended.
    """

    groups: dict[str, _Group] = field(default_factory=dict)
    histories: Histories = field(default_factory=Histories)
    measured_s: float | None = None
    measurements: int = 0
    measuring: asyncio.Lock = field(default_factory=asyncio.Lock)

    def is_due(self, now_s: float, measurements: int) -> bool:
        """Return whether the groups are to be measured together.

        ``measurements``: those that had ended when the request came. One that waited for another one has its result.
        """
        if self.measured_s is None:
            return True
        return self.measurements == measurements and now_s - self.measured_s >= limits.OPERATOR_LAG_PERIOD_S

    def to_measure(self) -> list[_Group]:
        """Return the groups that are measured together, the one with the oldest result first.

        Without those whose last measurement failed: each may wait for its deadline, and its own requests measure it.
        """
        groups = [group for group in self.groups.values() if not isinstance(group.found, TailraceError)]
        return sorted(groups, key=lambda group: group.found_s)


class LagTracker:
    """Keeps the newest sample of every requested group."""

    def __init__(self, controllers: Controllers) -> None:
        self._controllers = controllers
        self._clusters: dict[ClusterName, _Cluster] = {}
        self.measurements = 0

    async def sample(self, cluster: ClusterName, wanted: TrackedGroup) -> Sample:
        """Return the newest sample of a group, and track the group from now on.

        Raises:
            NoSuchReaderGroupError: the group does not exist, or has no state yet. CorruptionError, FormatVersionError,
            IllegalStateError: its state cannot be read. UnavailableError. OverloadedError: too many groups.
        """
        known = self._clusters.setdefault(cluster, _Cluster())
        group = known.groups.get(wanted.resource)
        if group is None or _identity(group.group) != _identity(wanted):
            if sum(len(one.groups) for one in self._clusters.values()) >= limits.OPERATOR_LAG_GROUPS_MAX:
                raise OverloadedError(
                    f"{limits.OPERATOR_LAG_GROUPS_MAX} reader groups are measured, which is the limit"
                )
            group = known.groups[wanted.resource] = _Group(wanted)
        group.group = wanted
        results = group.results
        measurements = known.measurements
        async with known.measuring:
            if known.is_due(self._now_s(), measurements):
                known.measured_s = self._now_s()
                try:
                    await self._measure(cluster, known, known.to_measure())
                finally:
                    known.measurements += 1
        if group.results == results and group.current(self._now_s()) is None:
            await self._measure(cluster, known, [group])
        if isinstance(group.found, TailraceError):
            raise group.found.with_traceback(None)
        assert group.found is not None
        return group.found

    def samples(self) -> Iterator[tuple[str, Sample]]:
        """Yield the newest sample of every group that was measured recently, with its resource."""
        now_s = self._now_s()
        for cluster in self._clusters.values():
            for resource, group in cluster.groups.items():
                if (found := group.current(now_s)) is not None:
                    yield resource, found

    def invalidate(self, cluster: ClusterName) -> None:
        """Discard the samples of a changed cluster: the next request measures its groups again."""
        known = self._clusters.get(cluster)
        if known is not None:
            known.measured_s = None

    def forget(self, cluster: ClusterName, resource: str) -> None:
        """Stop tracking the group of a resource."""
        known = self._clusters.get(cluster)
        if known is not None:
            known.groups.pop(resource, None)
            if not known.groups:
                del self._clusters[cluster]

    def forget_everywhere(self, resource: str) -> None:
        """Stop tracking the group of a resource in every cluster."""
        for cluster in list(self._clusters):
            self.forget(cluster, resource)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _measure(self, cluster: ClusterName, known: _Cluster, groups: list[_Group]) -> None:
        """Measure groups, a few at a time; the failure of one group does not affect others.

        Those that are not reached in time keep their result, and are the first ones of the next measurement.
        """
        self.measurements += 1
        look = SegmentLook(known.histories)
        left, until_s = iter(groups), self._now_s() + limits.OPERATOR_LAG_MEASURE_S

        async def work() -> None:
            for group in left:  # shared by all workers
                async with group.measuring:  # else a group that is measured alone would change meanwhile
                    group.note(await self._result(cluster, group, look), self._now_s())
                if self._now_s() >= until_s:
                    return

        await run_all(*(work() for _ in groups[: limits.OPERATOR_LAG_CONCURRENT_MAX]))

    async def _result(self, cluster: ClusterName, group: _Group, look: SegmentLook) -> Sample | TailraceError:
        """Measure one group; return its sample, or why it has none.

        Each request is bounded by itself, because the client repeats it for longer than `Controllers.use` lasts, and
        because a group of many segments may take long while all its requests are answered.
        """
        name = f"{group.group.scope}/{group.group.name}"
        try:
            async with self._controllers.use(cluster) as client:
                with request_deadline(limits.OPERATOR_LAG_REQUEST_DEADLINE_S):
                    positions = await self._positions(client, group)
                    return await measure(client, name, positions, look, group.seen, publishes=group.group.publishes)
        except TailraceError as error:
            return _named(error, name)

    async def _positions(self, client: Client, group: _Group) -> GroupView:
        scope, name = group.group.scope, group.group.name
        if group.group.is_rust:
            return await rust.read_view(client.context, scope, name)
        if group.handle is not None:
            with contextlib.suppress(NotFoundError):  # the group was created again: its state is in another segment
                return view_of(await group.handle.state())
        group.handle = await client.reader_groups(scope).open(name)
        return view_of(await group.handle.state())


def _named(error: TailraceError, group: str) -> TailraceError:
    """Return the error, with the group's name if it says only that something does not answer."""
    if not isinstance(error, UnavailableError):
        return error
    named = UnavailableError(f"reader group {group} cannot be measured now: {error}")
    named.__cause__ = error.with_traceback(None)  # the group keeps it for long
    return named


def _identity(group: TrackedGroup) -> tuple[str, str, bool]:
    return group.scope, group.name, group.is_rust
