"""How long a container stays closed: short pauses for what passes by itself, long ones for what fails again."""

from __future__ import annotations

import errno

import pytest

from tailrace.common import limits
from tailrace.common.errors import (
    CorruptionError,
    DiskFullError,
    FencedError,
    MemoryDamageError,
    OutcomeUnknownError,
    StartError,
    UnavailableError,
)
from tailrace.segmentstore.worker.backoff import MemoryDamages, Pauses

PASSING = UnavailableError("the epoch is not available")
FAILING = OSError(errno.EIO, "a read failed")


def of_openings(pauses: Pauses, reason: Exception, count: int) -> list[float]:
    """The pauses after so many openings that failed."""
    taken = []
    for _ in range(count):
        pauses.not_opened(reason)
        taken.append(pauses.next_s())
    return taken


@pytest.mark.parametrize("reason", [PASSING, FencedError("log/0", 3)])
def test_what_passes_by_itself_is_tried_soon(reason: Exception) -> None:
    assert of_openings(Pauses(), reason, 7) == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


@pytest.mark.parametrize("reason", [FAILING, DiskFullError("full"), StartError("in use"), CorruptionError("log", "x")])
def test_what_does_not_is_tried_ever_less(reason: Exception) -> None:
    assert of_openings(Pauses(), reason, 8) == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_a_container_that_stops_again_and_again_waits_longer() -> None:
    pauses = Pauses()
    taken = []
    for _ in range(4):
        pauses.stopped(OutcomeUnknownError("the log is lost"), 5.0)
        taken.append(pauses.next_s())
    assert taken == [1.0, 2.0, 4.0, 8.0]
    assert of_openings(pauses, PASSING, 2) == [0.5, 1.0], "an epoch that is not available has nothing to do with that"
    pauses.stopped(OutcomeUnknownError("the log is lost"), 5.0)
    assert pauses.next_s() == 16.0


def test_a_fenced_container_asks_soon_whether_it_belongs_here() -> None:
    pauses = Pauses()
    pauses.stopped(FencedError("log/0", 3), 0.1)
    assert pauses.next_s() == 0.5
    pauses.stopped(FencedError("log/0", 4), 0.1)
    assert pauses.next_s() == 1.0, "two that fence each other calm down"


def test_a_container_that_stayed_open_starts_again_with_the_shortest_pause() -> None:
    pauses = Pauses()
    of_openings(pauses, PASSING, 5)
    of_openings(pauses, FAILING, 5)
    pauses.stopped(FencedError("log/0", 3), limits.CONTAINER_REOPEN_MAX_S + 1)
    assert pauses.next_s() == 0.5
    pauses.stopped(OutcomeUnknownError("the log is lost"), limits.CONTAINER_REOPEN_MAX_S + 1)
    assert pauses.next_s() == 32.0
    pauses.stopped(OutcomeUnknownError("the log is lost"), limits.CONTAINER_RESTART_MAX_S + 1)
    assert pauses.next_s() == 1.0


def damage(offset: int) -> MemoryDamageError:
    return MemoryDamageError(f"segment scope/stream/0 at {offset}", "100 cached bytes differ")


def test_memory_that_is_damaged_at_one_place_twice_is_not_recovered_again() -> None:
    damages = MemoryDamages()
    assert damages.may_recover(damage(0), 5.0)
    assert damages.may_recover(damage(100), 5.0)
    assert not damages.may_recover(damage(0), 5.0)
    assert damages.recoveries == 2


def test_memory_that_is_damaged_in_many_places_is_recovered_again_only_after_a_long_time() -> None:
    damages = MemoryDamages()
    most = limits.CONTAINER_MEMORY_DAMAGES_MAX
    assert all(damages.may_recover(damage(place), 5.0) for place in range(most))
    assert not damages.may_recover(damage(most), 5.0)
    assert damages.may_recover(damage(0), limits.CONTAINER_MEMORY_DAMAGE_FORGET_S + 1)
    assert damages.recoveries == most + 1
