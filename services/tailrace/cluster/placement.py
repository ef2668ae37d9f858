"""Assigns containers to workers: a pure policy (docs/design.md#ownership).

The result does not depend on the order of the input. The container counts of accepting workers differ by one at most,
and no policy with that property moves fewer containers. A *kept* worker (silent, or not seen to renew yet) keeps its
containers and gets no others. A leaving worker gets none, and keeps only what no other worker can take. Containers
without a living worker are placed at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Workers:
    """The living workers by what they may have; each is in one of the three collections."""

    accepting: Collection[str] = ()
    keeping: Collection[str] = ()
    leaving: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """What changes now.

    ``placed``: new workers of containers that no living worker has. ``moved``: new workers of containers that living
    workers hand over. ``postponed``: how many more must move later. ``uneven``: how many of the moves, now or later,
    are for balance alone.
    """

    placed: Mapping[int, str] = field(default_factory=dict)
    moved: Mapping[int, str] = field(default_factory=dict)
    postponed: int = 0
    uneven: int = 0


def place(container_count: int, current: Mapping[int, str], workers: Workers) -> dict[int, str]:
    """Return the final worker of each container; containers that no worker can take are missing."""
    accepting = sorted(workers.accepting)
    keeping = set(workers.keeping)
    if not accepting:
        keeping |= set(workers.leaving)
    placed = {number: current[number] for number in range(container_count) if current.get(number) in keeping}
    if not accepting:
        return placed
    theirs: dict[str, list[int]] = {worker: [] for worker in accepting}
    homeless: list[int] = []
    for number in range(container_count):
        if number not in placed:
            theirs.get(current.get(number, ""), homeless).append(number)
    quotas = _quotas(theirs, container_count - len(placed))
    for worker in accepting:
        homeless.extend(theirs[worker][quotas[worker] :])
    homeless.sort()
    left = iter(homeless)
    for worker in accepting:
        kept = theirs[worker][: quotas[worker]]
        kept.extend(next(left) for _ in range(quotas[worker] - len(kept)))
        placed.update(dict.fromkeys(kept, worker))
    return placed


def _quotas(theirs: Mapping[str, list[int]], total: int) -> dict[str, int]:
    """Return how many containers each gets. Workers with most containers get the larger share: that moves fewest."""
    share, larger = divmod(total, len(theirs))
    by_count = sorted(theirs, key=lambda worker: (-len(theirs[worker]), worker))
    return {worker: share + (rank < larger) for rank, worker in enumerate(by_count)}


def moves_at_a_time(current: Mapping[int, str], workers: Workers, least: int, share: int) -> int:
    """Return how many containers may be handed over at a time: `least`, or one in `share` of those of leaving workers.

    Of the two it is the larger: the fewer move at a time, the shorter clients wait, but a drain of many must end.
    """
    leaving = sum(worker in workers.leaving for worker in current.values())
    return max(least, -(-leaving // share))


def next_step(
    container_count: int,
    current: Mapping[int, str],
    workers: Workers,
    handing_over: int,
    handing_over_max: int,
    *,
    balancing_max: int,
) -> Step:
    """Return the part of `place` to do now.

    Containers without a living worker are placed at once. The others move `handing_over_max` at a time, of which
    `handing_over` are in progress. Those of leaving workers move first. Moves for balance alone begin only while at
    most `balancing_max` moves would be in progress in all; 0 forbids them for now.
    """
    wanted = place(container_count, current, workers)
    living = {*workers.accepting, *workers.keeping, *workers.leaving}
    changed = [number for number in sorted(wanted) if wanted[number] != current.get(number)]
    placed = {number: wanted[number] for number in changed if current.get(number) not in living}
    moves = [number for number in changed if number not in placed]
    needed = [number for number in moves if current[number] in workers.leaving]
    uneven = [number for number in moves if current[number] not in workers.leaving]
    now = needed[: max(0, handing_over_max - handing_over)]
    now += uneven[: max(0, min(handing_over_max, balancing_max) - handing_over - len(now))]
    return Step(placed, {number: wanted[number] for number in now}, len(moves) - len(now), len(uneven))
