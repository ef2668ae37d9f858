"""Planted bugs of a cluster: ownership, placement, and what owners do that are none any more."""

from __future__ import annotations

import pytest

from sim.bugs.registry import bug
from sim.workloads.fleet import FleetWorkload
from tailrace.log.object import ObjectLog
from tailrace.segmentstore.ownerwatch import OwnerWatch


def _zombies(seed: int) -> FleetWorkload:
    """Owners that do not hear that they are none any more."""
    return FleetWorkload(seed, ["isolated", "isolated", "pause"])


async def _never(self: OwnerWatch) -> None:
    """Looks never."""


@bug("stale-owner-reads", _zombies)
def _stale_owner_reads(patch: pytest.MonkeyPatch) -> None:
    """An owner answers reads for as long as nobody tells it that there is another one."""
    patch.setattr(OwnerWatch, "may_answer", lambda self: True)
    patch.setattr(OwnerWatch, "run", _never)


@bug("acknowledge-after-the-claim", _zombies)
def _acknowledge_after_the_claim(patch: pytest.MonkeyPatch) -> None:
    """A server acknowledges what is stored without a look whether there is a later owner."""

    async def acknowledge_stored(self: ObjectLog) -> None:
        """Trusts that nobody came since it opened the log."""
        while self._stored_through > self._acknowledged_through and self._failure is None:
            self._acknowledge(self._stored_through)
        self._looking = False

    patch.setattr(ObjectLog, "_acknowledge_stored", acknowledge_stored)
