"""The container map, read freshly whenever something may have changed (design §9).

A watch only wakes the reader up; what counts is read anew, never from a cache. So no watch that is late, dead or out of
order can bring an old map back, and every ``limits.MAP_RELIST_S`` the map is read whatever the watch says. While the
API does not answer nobody hears of a map, and everything stays as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import structlog

from tailrace.cluster.cluster_map import ClusterMap, read_map
from tailrace.cluster.kubernetes import STREAM_CLUSTERS, KubernetesApi
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, NotFoundError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

_logger = structlog.get_logger()


class MapReader:
    """Tells `on_map` each map that was read, changed or not."""

    def __init__(self, api: KubernetesApi, cluster: str, on_map: Callable[[ClusterMap], None]) -> None:
        self._api = api
        self._cluster = cluster
        self._on_map = on_map
        self._wake = asyncio.Event()
        self._version = ""
        self.trouble = ""
        """Why the last reading failed; empty: it did not."""
        self.is_gone = False
        """Whether the last reading that was answered found that the cluster does not exist."""

    def wake(self) -> None:
        """Read the map soon."""
        self._wake.set()

    async def run(self) -> NoReturn:
        """Follow the map until cancelled."""
        watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            while True:
                self._wake.clear()
                came = await self._read()
                wait_s = limits.MAP_RELIST_S if came else limits.MAP_RETRY_S
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), wait_s)
        finally:
            watching.cancel()
            await asyncio.wait([watching])

    async def _read(self) -> bool:
        """Read the map and tell it; False: to be tried again soon."""
        try:
            manifest = await self._api.get(STREAM_CLUSTERS, self._cluster)
            self._version = manifest["metadata"]["resourceVersion"]
            cluster_map = read_map(manifest)
        except UnavailableError as error:
            before, self.trouble = self.trouble, str(error)
            if self.trouble != before:
                _logger.warning("map_not_read", cluster=self._cluster, reason=self.trouble)
            return False
        except (NotFoundError, BadRequestError) as error:
            before, self.trouble = self.trouble, str(error)
            self.is_gone = isinstance(error, NotFoundError)
            if self.trouble != before:
                _logger.error("no_map", cluster=self._cluster, reason=self.trouble)
            return True
        self.trouble, self.is_gone = "", False
        self._on_map(cluster_map)
        return True

    async def _watch(self) -> NoReturn:
        """Wake the reader up on changes, and when a watch ends: what was missed is read then."""
        while True:
            if self._version:
                try:
                    async with contextlib.aclosing(self._api.watch(STREAM_CLUSTERS, {}, self._version)) as events:
                        async for event in events:
                            if event.manifest["metadata"]["name"] == self._cluster:
                                self.wake()
                except UnavailableError as error:
                    _logger.info("watch_ended", cluster=self._cluster, reason=str(error))
                self.wake()
            await asyncio.sleep(limits.MAP_RETRY_S)
