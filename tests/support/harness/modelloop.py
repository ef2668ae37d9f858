"""An event loop with a time of its own, for tests without I/O: it waits for nothing, so its pace never changes."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any, NoReturn

TURN_S = 0.0001
"""How long a turn of the loop takes, so that time passes also for code that polls without sleeping."""


class _Selector(selectors.DefaultSelector):
    """Lets the loop's time pass in place of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return what is ready, at once unless nothing is scheduled."""
        if timeout is None:
            return super().select(None)
        self.now_s += max(timeout, TURN_S)
        return super().select(0)


class ModelLoop(asyncio.SelectorEventLoop):
    """Runs what is scheduled next as soon as nothing is ready. Its time does not pass while code runs."""

    def __init__(self) -> None:
        self._model = _Selector()
        super().__init__(self._model)

    def time(self) -> float:
        """Return the loop's own time."""
        return self._model.now_s

    def run_in_executor(self, *_: Any) -> NoReturn:  # type: ignore[override]  # none of its arguments matter
        """Refuse it: deadlines would pass before a thread has begun."""
        raise NotImplementedError("threads take real time, which this loop does not wait for")
