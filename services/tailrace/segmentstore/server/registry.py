"""How the server finds the containers that run here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tailrace.segmentstore.api import SegmentContainer
    from tailrace.segmentstore.tables.types import TableOperations


class ContainerRegistry(Protocol):
    """The containers of this process (design §9)."""

    def container_for(self, segment_name: str) -> SegmentContainer:
        """The running container that owns the segment's name. Raises WrongHostError when it does not run here."""
        ...

    def container_by_id(self, container_id: int) -> SegmentContainer:
        """The running container with that number. Raises WrongHostError when it does not run here."""
        ...

    def is_arriving(self, segment_name: str) -> bool:
        """Whether the container of the segment is to be opened here and is not yet."""
        ...

    async def wait_arrived(self, segment_name: str) -> None:
        """Return when `is_arriving` may have ended, and within ``limits.PENDING_CONTAINER_TIMEOUT_S``."""
        ...

    def table_service(self, container: SegmentContainer) -> TableOperations:
        """The table segments of a container."""
        ...
