"""Looks at a container after every turn of the loop, and at what goes over from owner to owner."""

from __future__ import annotations

import asyncio

from sim.checks.fencing import Fencing
from sim.checks.memory import check_cache, check_container, check_idle, check_returned, check_untiered
from sim.checks.monotonic import Monotonic
from sim.loop import SimLoop
from tailrace.common import limits
from tailrace.segmentstore.attributes import attribute_store
from tailrace.segmentstore.container.container import Container

TURNS_BETWEEN_LOOKS = 7
IDLE_LOOKS_MAX = 30_000
LARGEST_APPEND_BYTES = 2 * limits.MIB


class ContainerWatch:
    """Budgets (I12), what may only grow (I5) and fencing (I7) of one container over all its owners."""

    def __init__(self, loop: SimLoop, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes
        self._owner: Container | None = None
        self._turns = 0
        self._monotonic = Monotonic()
        self._fencing = Fencing()
        pass_time = loop._pass_time

        def pass_and_look(timeout: float) -> None:
            pass_time(timeout)
            self._turns += 1
            if self._turns % TURNS_BETWEEN_LOOKS == 0:
                self.look()

        loop._pass_time = pass_and_look  # type: ignore[method-assign]

    def ended(self) -> None:
        """The owner will do nothing more; what it showed last counts."""
        self.look()
        self._owner = None

    def follow(self, owner: Container) -> None:
        """A new owner has recovered."""
        self._owner = owner
        self._fencing.opened(owner)
        self.look()

    def look(self) -> None:
        """Raises Violation."""
        self._fencing.look()
        owner = self._owner
        if owner is None:
            return
        self._monotonic.look(owner.state)
        check_cache(owner.core.cache, [owner.state], self._cache_bytes)
        check_container(owner, LARGEST_APPEND_BYTES, attribute_store._PAGES_MAX_BYTES)
        check_untiered(owner)

    async def idle(self) -> None:
        """Without requests the owner's own work ends, and nothing stays reserved.

        Raises Violation. ContainerStoppedError: it has stopped.
        """
        assert self._owner is not None
        for _ in range(IDLE_LOOKS_MAX):
            core = self._owner.core
            if core.processor.idle and not core.cache.cache.pinned_blocks:  # an upload of its own pins
                break
            await asyncio.sleep(0.01)
        self.look()
        self._owner.core.check_running()  # one that stopped meanwhile took everything with it
        check_idle(self._owner)

    def closed(self) -> None:
        """The owner was closed."""
        if self._owner is not None:
            check_returned(self._owner)
        self._owner = None
