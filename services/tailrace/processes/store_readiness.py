"""Decides whether a segment store pod whose workers follow the map is ready; pure.

See docs/operations/upgrade.md#rollouts.

A rollout replaces the next pod when this one is ready. So a pod is not ready while it can open none of its containers,
and a new one not before it has opened its first. What has another reason than the pod, as an object store that is away
for all, counts as nothing here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.segmentstore.worker.not_open import Opens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.processes.workers import WorkerProcess


def why_not_ready(workers: Sequence[WorkerProcess], now_s: float) -> str:
    """Return why a pod whose workers follow the map is not ready, in one clause; empty: it is."""
    opens = {worker.opens for worker in workers}
    if Opens.SOME in opens:
        return ""
    if Opens.NONE in opens:
        return f"none of the pod's containers has opened for {limits.POD_OPENS_NONE_S:g} s"
    if any(worker.has_opened for worker in workers):
        return ""
    if Opens.TRYING in opens:
        return "the pod's first containers are opening"
    followed_s = [now_s if worker.followed_at_s is None else worker.followed_at_s for worker in workers]
    left_s = max(followed_s) + limits.POD_UNPROVED_S - now_s
    if left_s <= 0:
        return ""
    return f"the new pod has no containers yet: it is ready when it has opened one, or without any in {left_s:.0f} s"
