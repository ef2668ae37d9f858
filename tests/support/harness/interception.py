"""Puts something in front of all calls of a store: holds, failures, counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

Call = Callable[[], Awaitable[Any]]
Around = Callable[[str, tuple[Any, ...], Call], Awaitable[Any]]


class Intercepted:
    """A store whose calls go through ``around(name, arguments, call)``, each after a turn of the event loop."""

    def __init__(self, target: Any, around: Around) -> None:
        self._target = target
        self._around = around

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)

        async def intercepted(*arguments: Any, **keywords: Any) -> Any:
            await asyncio.sleep(0)  # as a real store lets others run
            return await self._around(name, arguments, lambda: method(*arguments, **keywords))

        return intercepted
