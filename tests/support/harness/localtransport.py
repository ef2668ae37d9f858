"""A transport of the controller client that calls a function of the same process instead of a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from google.protobuf.message import Message

M = TypeVar("M", bound="Message")


class LocalTransport:
    """Pass each call to ``handle(method, request)``, which raises the product's errors itself."""

    def __init__(self, handle: Callable[[str, Any], Awaitable[Any]]) -> None:
        self._handle = handle

    async def call(self, method: str, request: Message, reply: type[M], deadline_s: float) -> M:
        """Make one attempt."""
        answer = await self._handle(method, request)
        assert isinstance(answer, reply)
        return answer

    async def close(self) -> None:
        """Release nothing."""
