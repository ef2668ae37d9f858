"""Lets the kernel probe peers that are silent (docs/operations/run.md#connections)."""

from __future__ import annotations

import socket
from typing import Protocol

from tailrace.common import limits


class HasOptions(Protocol):
    """A socket, or asyncio's view of one."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """Set an option."""
        ...


def probe_silent_peers(listener: HasOptions) -> None:
    """Probe silent peers of a listener's connections, which inherit this.

    What a peer that vanished asked for or holds does not wait for it for ever.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.TCP_KEEPALIVE_IDLE_S)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, limits.TCP_KEEPALIVE_INTERVAL_S)
