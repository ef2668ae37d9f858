"""Ports for servers that tests start, also where several test processes run at once.

Each process claims a block of ports for its lifetime: a port stays its own while the server that uses it is down.
"""

from __future__ import annotations

import itertools
import socket

PORTS = range(20_000, 30_000)
"""Below the ephemeral ports: while a server is down, no connection may take its port, not even as its own end."""
BLOCK_PORTS = 200


def _claimed() -> tuple[socket.socket, range]:
    """Claim a block. The claim is the name of a Unix socket: the kernel releases it when the process ends."""
    for first in range(PORTS.start, PORTS.stop, BLOCK_PORTS):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0tailrace-test-ports-{first}")
        except OSError:
            claim.close()
            continue
        return claim, range(first, first + BLOCK_PORTS)
    raise RuntimeError(f"no block of {BLOCK_PORTS} ports is free in {PORTS}")


_claim, BLOCK = _claimed()  # at import, so that tests which count descriptors count it before and after
_starts = itertools.cycle(BLOCK)


def free_ports(count: int) -> list[int]:
    """Return so many neighbouring ports of this process that nothing listens on; the least recently returned first."""
    for first in itertools.islice(_starts, 2 * BLOCK_PORTS):
        chosen = range(first, first + count)
        if chosen.stop <= BLOCK.stop and all(map(_is_free, chosen)):
            for _ in range(count - 1):
                next(_starts)
            return list(chosen)
    raise RuntimeError(f"no {count} free ports in {BLOCK}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
