"""The containers of a worker that are not open: what is reported of them, and whether the worker can open any; pure.

A pod that can open none of its containers is not ready, so that a rollout stops there (`processes.store_readiness`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.common import limits
from tailrace.common.errors import ContainerStoppedError, DiskFullError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class NotOpen:
    """An owned container that is not open: for how long, and why it stopped or did not open the last time.

    ``waits``: the reason is that something else did not answer, such as the object store or the Kubernetes API.
    """

    container_id: int
    for_s: float
    reason: str
    waits: bool = False


def is_waiting(error: BaseException) -> bool:
    """Return whether a container is not open because something else did not answer, by the error of that."""
    if isinstance(error, ContainerStoppedError):
        return error.__cause__ is not None and is_waiting(error.__cause__)
    return isinstance(error, UnavailableError) and not isinstance(error, DiskFullError)


class Opens(enum.StrEnum):
    """What a worker opens of its containers."""

    NOTHING_DUE = "nothing due"
    """It has none, or one waits for something else that does not answer: neither says anything of the worker."""
    TRYING = "trying"
    """None is open yet."""
    SOME = "some"
    NONE = "none"
    """None has been open for `limits.POD_OPENS_NONE_S`."""


class Openings:
    """Follows what a worker opens; times are seconds of one monotonic clock.

    Only time counts in which the worker had containers, none of them was open, and nothing else was the reason: after
    an outage of the object store workers have all of the time again. A worker that opened none before an outage has
    shown nothing else by it.
    """

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._opens = Opens.NOTHING_DUE

    def look(self, now_s: float, owned: int, closed: Sequence[NotOpen], *, store_answers: bool) -> Opens:
        """Return what the worker opens now: `owned` containers, of which those in `closed` are not open."""
        waits = not store_answers or any(each.waits for each in closed)
        if owned > len(closed):
            self._opens = Opens.SOME
        elif not owned or (waits and self._opens is not Opens.NONE):
            self._opens = Opens.NOTHING_DUE
        elif self._opens is not Opens.NONE:
            if self._since_s is None:
                self._since_s = now_s
            self._opens = Opens.NONE if now_s - self._since_s >= limits.POD_OPENS_NONE_S else Opens.TRYING
        if self._opens in (Opens.SOME, Opens.NOTHING_DUE):
            self._since_s = None
        return self._opens


def summarise_not_open(containers: Sequence[NotOpen]) -> str:
    """Summarise the containers that are not open, longest first. Empty when all are open."""
    ordered = sorted(containers, key=lambda each: (-each.for_s, each.container_id))
    named = ordered[: limits.CONTAINERS_NOT_OPEN_REPORT_MAX]
    room = limits.WORKER_REASON_MAX_CHARACTERS // (limits.CONTAINERS_NOT_OPEN_REPORT_MAX + 1)
    sentences = [
        f"container {each.container_id} has not been open for {each.for_s:.0f} s: {each.reason}"[:room]
        for each in named
    ]
    if more := len(ordered) - len(named):
        sentences.append(f"{more} more containers are not open")
    return "; ".join(sentences)


def name_not_open(containers: Sequence[NotOpen]) -> str:
    """Name the containers that are not open and why, without times: it changes only when one of them does."""
    ordered = sorted(containers, key=lambda each: each.container_id)
    named = ordered[: limits.CONTAINERS_NOT_OPEN_REPORT_MAX]
    room = limits.WORKER_REASON_MAX_CHARACTERS // (limits.CONTAINERS_NOT_OPEN_REPORT_MAX + 1)
    sentences = [f"container {each.container_id} is not open: {each.reason}"[:room] for each in named]
    if more := len(ordered) - len(named):
        sentences.append(f"{more} more containers are not open")
    return "; ".join(sentences)
