"""Hunts several planted bugs, one after the other or in several processes at once."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed

from sim.bugs import BUGS
from sim.bugs.registry import Hunted, hunt
from sim.seeds import processes


def hunt_named(name: str, first: int, seeds: int, seconds: float) -> Hunted:
    """One bug; an error that is not what finds it ends its hunt without success, and the others go on."""
    try:
        return hunt(BUGS[name], first=first, seeds=seeds, seconds=seconds)
    except Exception as error:
        traceback.print_exc()
        return Hunted(name, 0, 0.0, None, f"the hunt failed: {type(error).__name__}: {error}")


def hunt_all(
    names: Sequence[str], first: int, seeds: int, seconds: float, jobs: int, tell: Callable[[Hunted], None]
) -> list[Hunted]:
    """How the hunts ended, in the order of the names; `tell` hears of each when it ends."""
    hunts: dict[str, Hunted] = {}
    if jobs == 1:
        for name in names:
            hunts[name] = hunt_named(name, first, seeds, seconds)
            tell(hunts[name])
        return list(hunts.values())
    with processes(jobs) as pool:
        running = [pool.submit(hunt_named, name, first, seeds, seconds) for name in names]
        for future in as_completed(running):
            hunted = future.result()
            hunts[hunted.name] = hunted
            tell(hunted)
    return [hunts[name] for name in names]
