"""The endpoints of containers, which segment store workers publish (docs/design.md#processes)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.cluster.segment_mapping import container_of
from tailrace.common.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping


class ListenerKind(enum.Enum):
    """The kind of listener that a client connected to; the client gets endpoints of the same kind."""

    INTERNAL = "internal"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and port of the segment store's binary protocol."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ContainerEndpoints:
    """A container's published endpoints; without an external one the internal one serves both kinds."""

    internal: Endpoint
    external: Endpoint | None = None

    def of_kind(self, kind: ListenerKind) -> Endpoint:
        """Return the endpoint for clients of that kind."""
        if kind is ListenerKind.EXTERNAL and self.external is not None:
            return self.external
        return self.internal


class EndpointMap:
    """Container id → endpoints, for a fixed number of containers.

    Satisfies the controller's ``ContainerMap`` port. The owner of the map replaces entries as containers move;
    readers see the latest.
    """

    def __init__(self, container_count: int, endpoints: Mapping[int, ContainerEndpoints] | None = None) -> None:
        self._container_count = container_count
        self._endpoints: dict[int, ContainerEndpoints] = dict(endpoints or {})

    @property
    def container_count(self) -> int:
        """Return the number of containers, which never changes."""
        return self._container_count

    def publish(self, container_id: int, endpoints: ContainerEndpoints) -> None:
        """Set the endpoints of a container."""
        if not 0 <= container_id < self._container_count:
            raise ValueError(f"container {container_id} of {self._container_count}")
        self._endpoints[container_id] = endpoints

    def endpoint_of(self, segment_name: str, kind: ListenerKind = ListenerKind.INTERNAL) -> tuple[str, int]:
        """Return (host, port) of the worker that owns the segment's container.

        Raises:
            UnavailableError: no worker has published the container yet.
        """
        container_id = container_of(segment_name, self._container_count)
        endpoints = self._endpoints.get(container_id)
        if endpoints is None:
            raise UnavailableError(f"container {container_id} of segment {segment_name} has no owner")
        endpoint = endpoints.of_kind(kind)
        return endpoint.host, endpoint.port

    def internal_endpoint(self, container_id: int) -> Endpoint:
        """Return the endpoint of a container for other servers. Raises UnavailableError: it has no owner."""
        endpoints = self._endpoints.get(container_id)
        if endpoints is None:
            raise UnavailableError(f"container {container_id} has no owner")
        return endpoints.internal
