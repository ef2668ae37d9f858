"""The controllers' side of placement: keeps the endpoints of containers in step with the map.

See docs/design.md#processes, docs/design.md#ownership.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tailrace.cluster.map_reader import MapReader

if TYPE_CHECKING:
    from typing import NoReturn

    from tailrace.cluster.cluster_map import ClusterMap
    from tailrace.cluster.endpoints import EndpointMap
    from tailrace.cluster.kubernetes import KubernetesApi

_logger = structlog.get_logger()


class EndpointFollower:
    """Fills ``endpoints``; `run` keeps them in step with the map.

    Containers that the map does not mention keep their endpoints. A client that connects to a former owner gets
    WrongHost and asks the controller again; a client without an endpoint has no server to ask.
    """

    def __init__(self, api: KubernetesApi, cluster: str, endpoints: EndpointMap) -> None:
        self.endpoints = endpoints
        self._cluster = cluster
        self._reader = MapReader(api, cluster, self.follow)

    async def run(self) -> NoReturn:
        """Follow the map until cancelled."""
        await self._reader.run()

    @property
    def trouble(self) -> str:
        """Return why the last attempt to read the map failed; empty when it succeeded."""
        return self._reader.trouble

    def follow(self, cluster_map: ClusterMap) -> None:
        """Publish the endpoints of a map."""
        if cluster_map.container_count != self.endpoints.container_count:
            _logger.error("container_count_changed", cluster=self._cluster, count=cluster_map.container_count)
            return
        for container_id, assignment in cluster_map.assignments.items():
            endpoints = cluster_map.workers.get(assignment.worker)
            if endpoints is not None:
                self.endpoints.publish(container_id, endpoints)
