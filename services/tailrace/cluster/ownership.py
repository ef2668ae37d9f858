"""The port for epochs, which make a worker the owner of a container (docs/design.md#ownership).

A worker owns a container once the container's log is open for the epoch that the worker took. A worker that takes a
greater epoch later and opens the log fences it (docs/design.md#tier-1). So epochs decide nothing by themselves; the log
does. When the log refuses an epoch because it knows a greater one (FencedError), the worker takes another above that.
Losing the whole state of an implementation therefore loses no data.
"""

from __future__ import annotations

from typing import Protocol


class Epochs(Protocol):
    """Hands out the epochs of containers to one worker."""

    async def take(self, container_id: int, floor: int = 0) -> int:
        """Take the container's next epoch, above `floor` and above all that were taken before, by compare-and-swap.

        Durable before it returns. No two calls, in any process, return the same epoch, while the stored state exists
        and only implementations of this port write it. A call whose outcome is unknown uses its epoch up.

        Raises:
            NotOwnerError: a fresh, uncached read does not name this worker for the container: it must not open it.
            UnavailableError: the outcome is unknown; the caller may retry.
            StartError: the stored state is damaged; an operator must look at it.
        """
        ...
