"""What every implementation of the epochs port does, over files, a fake Kubernetes API and a real one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tailrace.cluster.ownership import Epochs
from tailrace.common.errors import UnavailableError


@dataclass(frozen=True)
class EpochPlace:
    """Where epochs are kept; `new` gives one more rival, `wipe` loses what is kept of a container."""

    new: Callable[[], Epochs]
    wipe: Callable[[int], Awaitable[None]]


EpochCase = Callable[[EpochPlace], Awaitable[None]]


async def epochs_rise_from_one_for_each_container(place: EpochPlace) -> None:
    """Each container counts for itself, and rivals count on."""
    epochs = place.new()
    assert [await epochs.take(0) for _ in range(3)] == [1, 2, 3]
    assert await epochs.take(1) == 1
    assert await place.new().take(0) == 4


async def an_epoch_is_above_its_floor(place: EpochPlace) -> None:
    """A floor above the last epoch counts; one below it changes nothing."""
    epochs = place.new()
    assert await epochs.take(0, 41) == 42
    assert await epochs.take(0, 7) == 43
    assert await place.new().take(0) == 44


async def rivals_never_get_the_same_epoch(place: EpochPlace) -> None:
    """Every epoch is returned once, and to each rival in rising order."""

    async def rival() -> list[int]:
        epochs = place.new()
        own: list[int] = []
        while len(own) < 10:
            with contextlib.suppress(UnavailableError):  # others always won: not now
                own.append(await epochs.take(0))
        return own

    taken = await asyncio.gather(*(rival() for _ in range(6)))
    assert sorted(itertools.chain(*taken)) == list(range(1, 61))
    assert all(own == sorted(own) for own in taken)


async def what_was_lost_starts_at_the_floor(place: EpochPlace) -> None:
    """Without what was kept, the floor alone counts."""
    epochs = place.new()
    for _ in range(5):
        await epochs.take(0)
    await place.wipe(0)
    assert await epochs.take(0) == 1  # the log knows better, and says so
    assert await epochs.take(0, 5) == 6
    assert await place.new().take(0) == 7


EPOCH_CASES: Final[tuple[EpochCase, ...]] = (
    epochs_rise_from_one_for_each_container,
    an_epoch_is_above_its_floor,
    rivals_never_get_the_same_epoch,
    what_was_lost_starts_at_the_floor,
)
