"""Endpoints of containers for tests of controllers."""

from __future__ import annotations

from tailrace.cluster.endpoints import ContainerEndpoints, Endpoint, EndpointMap


def single_endpoint_map(container_count: int, endpoint: Endpoint, external: Endpoint | None = None) -> EndpointMap:
    """The map of a server that serves every container at one address."""
    both = ContainerEndpoints(endpoint, external)
    return EndpointMap(container_count, dict.fromkeys(range(container_count), both))
