"""Connections to the controllers of all StreamClusters, and the state of these (ADR 0013).

Each cluster has one client, created on first use and closed when its cluster is deleted or another cluster needs the
slot. One short probe detects a controller that does not answer. Until a growing pause has passed, all calls to it then
fail at once, so that hundreds of objects of one cluster do not delay those of others.
"""

from __future__ import annotations

import asyncio
import enum
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tailrace.client.async_client import Client
from tailrace.client.control.stream_reports import StreamReports
from tailrace.client.retry import Backoff
from tailrace.common import limits, names
from tailrace.common.errors import (
    DeadlineError,
    InvalidSpecError,
    NotFoundError,
    OverloadedError,
    TailraceError,
    UnavailableError,
)
from tailrace.common.real_ports import SystemEntropy
from tailrace_operator.kube.manifests import CONTAINERS_OPEN, is_deleted, written_condition
from tailrace_operator.kube.objects import STREAM_CLUSTERS
from tailrace_operator.schema.specs import StreamClusterSpec

if TYPE_CHECKING:
    from tailrace.client.control.owners import StreamDescription
    from tailrace.client.model import StreamName
    from tailrace.cluster.kubernetes import Manifest
    from tailrace.common.ports import Entropy
    from tailrace_operator.kube.objects import Objects


class ClusterName(NamedTuple):
    """Identify a StreamCluster."""

    namespace: str
    name: str


class ClusterState(enum.Enum):
    """Whether a StreamCluster exists."""

    EXISTS = "exists"
    DELETING = "deleting"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class _Known:
    """What a StreamCluster said when it was read last, on the loop's clock."""

    looked_s: float
    state: ClusterState
    not_open: str = ""
    retention_period_ms: int | None = None


@dataclass(slots=True)
class _Link:
    """The client of one cluster; when it last answered and until when calls fail at once, on the loop's clock."""

    client: Client
    reports: StreamReports
    backoff: Backoff
    users: int = 0
    answered_s: float | None = None
    silent_until_s: float | None = None
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Controllers:
    """Clients of the clusters' controllers. ``uri`` returns the URI of a cluster's controllers."""

    def __init__(
        self,
        objects: Objects,
        *,
        uri: Callable[[ClusterName], str],
        entropy: Entropy | None = None,
    ) -> None:
        self._objects = objects
        self._uri = uri
        self._entropy: Entropy = entropy or SystemEntropy()
        self._links: OrderedDict[ClusterName, _Link] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._known: OrderedDict[ClusterName, _Known] = OrderedDict()

    # -- state of clusters --------------------------------------------------------------------------------------

    async def state(self, cluster: ClusterName, *, fresh: bool = False) -> ClusterState:
        """Return whether the StreamCluster exists; `fresh`: without the cache of OPERATOR_CLUSTER_KNOWN_S.

        Connections to a missing cluster are closed.

        Raises:
            UnavailableError: the API server does not answer.
        """
        return (await self._look(cluster, fresh=fresh)).state

    async def containers_not_open(self, cluster: ClusterName) -> str:
        """Return the sentence of the StreamCluster on containers that no worker can open; empty when there are none.

        Raises:
            UnavailableError: the API server does not answer.
        """
        return (await self._look(cluster)).not_open

    async def retention_period_ms(self, cluster: ClusterName) -> int | None:
        """Return how often the cluster's controllers apply policies; None: its specification is invalid.

        Raises:
            UnavailableError: the API server does not answer.
        """
        return (await self._look(cluster)).retention_period_ms

    async def _look(self, cluster: ClusterName, *, fresh: bool = False) -> _Known:
        now_s = asyncio.get_running_loop().time()
        known = self._known.get(cluster)
        if known is not None and not fresh and now_s - known.looked_s < limits.OPERATOR_CLUSTER_KNOWN_S:
            return known
        try:
            manifest = await self._objects.get(STREAM_CLUSTERS, cluster.namespace, cluster.name)
        except NotFoundError:
            found = _Known(now_s, ClusterState.MISSING)
            await self.forget(cluster)
        else:
            state = ClusterState.DELETING if is_deleted(manifest) else ClusterState.EXISTS
            opened = written_condition(manifest, CONTAINERS_OPEN)
            not_open = str(opened.get("message")) if opened.get("status") == "False" else ""
            found = _Known(now_s, state, not_open, _retention_period_ms(manifest))
        self._known[cluster] = found
        self._known.move_to_end(cluster)
        if len(self._known) > limits.OPERATOR_CLUSTERS_KNOWN_MAX:
            self._known.popitem(last=False)
        return found

    # -- connections --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def use(self, cluster: ClusterName) -> AsyncIterator[Client]:
        """Provide a client of the cluster for at most OPERATOR_CONTROLLER_DEADLINE_S.

        Raises:
            UnavailableError: the controller does not answer. DeadlineError: the calls took too long.
            OverloadedError: too many clusters are in use. All errors of the calls themselves.
        """
        link = self._link(cluster)
        link.users += 1
        try:
            await self._ensure_answering(cluster, link)
            try:
                async with asyncio.timeout(limits.OPERATOR_CONTROLLER_DEADLINE_S):
                    yield link.client
            except TimeoutError as error:
                link.answered_s = None
                raise DeadlineError(
                    f"the controller of cluster {cluster.name} took more than "
                    f"{limits.OPERATOR_CONTROLLER_DEADLINE_S:g} s to answer"
                ) from error
            except UnavailableError:
                link.answered_s = None
                raise
            link.answered_s = asyncio.get_running_loop().time()
        finally:
            link.users -= 1

    def is_silent(self, cluster: ClusterName) -> bool:
        """Return whether the last probe of the controller was not answered. Other calls fail for other reasons, too."""
        link = self._links.get(cluster)
        return link is not None and link.silent_until_s is not None

    async def describe(self, cluster: ClusterName, stream: StreamName) -> StreamDescription:
        """Return a stream's present state with its sizes, inside of `use`. Callers of about the same time share a call.

        Raises:
            NoSuchStreamError. UnavailableError: the controller or the stream's segments do not answer.
        """
        return await self._link(cluster).reports.describe(stream)

    def _link(self, cluster: ClusterName) -> _Link:
        link = self._links.get(cluster)
        if link is None:
            if len(self._links) >= limits.OPERATOR_CLIENTS_MAX:
                self._drop_idle()
            backoff = Backoff(
                self._entropy,
                initial_s=limits.OPERATOR_CONTROLLER_PAUSE_MIN_S,
                maximum_s=limits.OPERATOR_CONTROLLER_PAUSE_MAX_S,
            )
            client = Client(self._uri(cluster))
            reports = StreamReports(lambda: client.context.controller)
            link = self._links[cluster] = _Link(client, reports, backoff)
        self._links.move_to_end(cluster)
        return link

    def _drop_idle(self) -> None:
        """Close the connection that has been idle longest, to make room."""
        idle = next((cluster for cluster, link in self._links.items() if link.users == 0), None)
        if idle is None:
            raise OverloadedError(
                f"{limits.OPERATOR_CLIENTS_MAX} connections to controllers are in use, which is the limit"
            )
        task = asyncio.ensure_future(_close(self._links.pop(idle)))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _ensure_answering(self, cluster: ClusterName, link: _Link) -> None:
        """Probe the controller unless it answered recently. One probe at a time serves all waiting callers."""
        async with link.asking:
            now_s = asyncio.get_running_loop().time()
            if link.answered_s is not None and now_s - link.answered_s < limits.OPERATOR_CONTROLLER_SILENT_S:
                return
            if link.silent_until_s is not None and now_s < link.silent_until_s:
                raise UnavailableError(f"the controller of cluster {cluster.name} does not answer")
            try:
                async with asyncio.timeout(limits.OPERATOR_CONTROLLER_PROBE_S):
                    await link.client.context.controller.scope_exists(names.INTERNAL_SCOPE)
            except (TimeoutError, TailraceError) as error:
                link.silent_until_s = asyncio.get_running_loop().time() + link.backoff.next_delay_s()
                reason = str(error) or f"no answer within {limits.OPERATOR_CONTROLLER_PROBE_S:g} s"
                raise UnavailableError(f"the controller of cluster {cluster.name} does not answer: {reason}") from error
            link.answered_s, link.silent_until_s = asyncio.get_running_loop().time(), None
            link.backoff.reset()

    def invalidate(self, cluster: ClusterName) -> None:
        """Discard the cached state of a changed cluster, so that its controller is probed at the next call."""
        self._known.pop(cluster, None)
        link = self._links.get(cluster)
        if link is not None:
            link.answered_s = link.silent_until_s = None

    async def forget(self, cluster: ClusterName) -> None:
        """Close the connections to a deleted cluster; calls in progress fail."""
        self._known.pop(cluster, None)
        link = self._links.pop(cluster, None)
        if link is not None:
            await _close(link)

    async def close(self) -> None:
        """Close all connections."""
        links, self._links = list(self._links.values()), OrderedDict()
        await asyncio.gather(*(_close(link) for link in links), *self._closing)


def _retention_period_ms(manifest: Manifest) -> int | None:
    try:
        return StreamClusterSpec.parse(manifest).retention_period_ms
    except InvalidSpecError:
        return None


async def _close(link: _Link) -> None:
    await link.reports.close()
    await link.client.close()
