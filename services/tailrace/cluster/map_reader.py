"""Reads the container map whenever it may have changed (docs/design.md#ownership).

A watch event only wakes the reader, which then reads the map from the API, never from a cache. So a late, dead or
reordered watch cannot bring an old map back. The reader also reads every ``limits.MAP_RELIST_S`` without an event.
While the API does not answer, it passes on no map, and nothing changes.
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
    """Calls `on_map` with each map that it reads, changed or not."""

    def __init__(self, api: KubernetesApi, cluster: str, on_map: Callable[[ClusterMap], None]) -> None:
        self._api = api
        self._cluster = cluster
        self._on_map = on_map
        self._wake = asyncio.Event()
        self._version = ""
        self.trouble = ""
        """Why the last read failed; empty when it succeeded."""
        self.is_gone = False
        """Whether the last answered read found that the cluster does not exist."""

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
        """Read the map and pass it on; False: retry soon."""
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
                _logger.error("map_missing", cluster=self._cluster, reason=self.trouble)
            return True
        self.trouble, self.is_gone = "", False
        self._on_map(cluster_map)
        return True

    async def _watch(self) -> NoReturn:
        """Wake the reader on changes, and when a watch ends, because changes may have been missed."""
        while True:
            if self._version:
                try:
                    async with contextlib.aclosing(self._api.watch(STREAM_CLUSTERS, {}, self._version)) as events:
                        async for event in events:
                            if event.manifest["metadata"]["name"] == self._cluster:
                                self.wake()
                except (UnavailableError, NotFoundError) as error:  # not found: the definition is away for a moment
                    _logger.info("watch_ended", cluster=self._cluster, reason=str(error))
                self.wake()
            await asyncio.sleep(limits.MAP_RETRY_S)
