"""Counts the faults that parts of the simulated world inject, and records which faults a seed turned on.

A fault that is turned on and never happens tests nothing, so runs compare both (`missing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar


class FaultCounter:
    """Base of a part of the world: counts its faults by kind; notes each fault by chance that is turned on."""

    CHANCES: ClassVar[Mapping[str, str]] = {}
    """Attribute that turns a fault on, and the kind under which the part counts it."""

    def __init__(self) -> None:
        self.faults: dict[str, int] = {}
        self.enabled: set[str] = set()

    def count(self, fault: str) -> None:
        """Count an injected fault."""
        self.faults[fault] = self.faults.get(fault, 0) + 1

    def forget_enabled(self) -> None:
        """Leave out what is on in every world by default; the constructor of a part calls it last."""
        self.enabled.clear()

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name in self.CHANCES and value:
            self.enabled.add(self.CHANCES[name])


ENABLED_IN_SEEDS_MIN = 3
ENABLED_SHARE_MIN = 1 / 8
"""A fault that was on in fewer seeds of a run, or in a smaller share of them, may be missing."""


def missing(
    enabled: Mapping[str, Mapping[str, int]],
    happened: Mapping[str, Mapping[str, int]],
    rare: Iterable[tuple[str, str]],
    seeds_each: int = 0,
) -> list[str]:
    """Return a sentence for each fault kind that was turned on and did not happen.

    `enabled`: workload to kind to the number of seeds that turned it on; `happened`: workload to kind to its count.
    `rare` pairs of workload and kind may be missing, but each kind must happen in some workload.
    ``seeds_each``: how many seeds of each workload there were.
    """
    excused = set(rare)
    enabled_min = max(ENABLED_IN_SEEDS_MIN, int(seeds_each * ENABLED_SHARE_MIN))
    everywhere = {kind for counts in happened.values() for kind, count in counts.items() if count}
    found = []
    for kind in sorted({kind for kinds in enabled.values() for kind in kinds}):
        seeds = {workload: kinds[kind] for workload, kinds in enabled.items() if kinds.get(kind)}
        if kind not in everywhere:
            if sum(seeds.values()) >= enabled_min:
                found.append(f"{kind} was on in {sum(seeds.values())} seeds of {', '.join(seeds)}, and never happened")
            continue
        found += [
            f"{kind} was on in {count} seeds of {workload}, and did not happen there"
            for workload, count in seeds.items()
            if count >= enabled_min
            and not happened.get(workload, {}).get(kind)
            and (workload, kind) not in excused
        ]
    return found
