"""Assign buckets of work to live controllers: a pure policy (docs/controller.md#several-controllers)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.cluster.placement import Workers, place
from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def assign(owners: Sequence[str], alive: Collection[str], unheard: Collection[str]) -> tuple[str, ...]:
    """Return the owner of each bucket; "" when no controller can take it.

    Counts of the live controllers differ by one at most, and as few buckets as possible change. A controller that may
    be alive but was not heard yet keeps its buckets and gets no others.
    """
    current = {bucket: owner for bucket, owner in enumerate(owners) if owner}
    placed = place(limits.METADATA_BUCKETS, current, Workers(accepting=alive, keeping=unheard))
    return tuple(placed.get(bucket, "") for bucket in range(limits.METADATA_BUCKETS))
