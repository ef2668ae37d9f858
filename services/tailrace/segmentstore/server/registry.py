"""The port through which the server finds the containers of its process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tailrace.segmentstore.api import SegmentContainer
    from tailrace.segmentstore.tables.types import TableOperations


class ContainerRegistry(Protocol):
    """The containers of this process (docs/design.md#ownership)."""

    def container_for(self, segment_name: str) -> SegmentContainer:
        """Return the running container of a segment. Raises WrongHostError when it does not run here."""
        ...

    def container_by_id(self, container_id: int) -> SegmentContainer:
        """Return the running container with that number. Raises WrongHostError when it does not run here."""
        ...

    def is_pending(self, segment_name: str) -> bool:
        """Return whether the segment's container is about to open here."""
        ...

    async def wait_opened(self, segment_name: str) -> None:
        """Wait until the container is not pending, at most ``limits.PENDING_CONTAINER_TIMEOUT_S``."""
        ...

    def table_service(self, container: SegmentContainer) -> TableOperations:
        """Return the table segments of a container."""
        ...
