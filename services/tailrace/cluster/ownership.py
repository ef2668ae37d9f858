"""Epochs: what makes an owner of a container (design §9).

A worker owns a container from the moment that the container's log is open for the epoch that the worker took; whoever
takes a greater one later and opens the log fences it (design §4). So epochs decide nothing by themselves: the log is
the floor and the judge. When it refuses an epoch because it knows a greater one (FencedError), the worker takes
another above that. Losing all that an implementation remembers therefore loses no data.
"""

from __future__ import annotations

from typing import Protocol


class Epochs(Protocol):
    """Hands out the epochs of containers to one worker."""

    async def take(self, container_id: int, floor: int = 0) -> int:
        """Take the container's next epoch, above `floor` and above all that were taken before, by compare-and-swap.

        Durable before it returns. One epoch is never returned twice, in whichever process, for as long as what the
        implementation stores lives and is written by nobody else; a call whose outcome is unknown uses its epoch up.

        Raises:
            NotOwnerError: a fresh, uncached read does not name this worker for the container: it must not be opened.
            UnavailableError: it cannot be told now; nothing was returned, the call may be repeated.
            StartError: what is stored is damaged and a person must look at it.
        """
        ...
