"""Closes a server of an event loop without losing the connections that it has just accepted."""

from __future__ import annotations

import asyncio

ACCEPT_TURNS = 3
"""Turns of the loop in which a connection that it had accepted gets its transport, and begins."""


async def close_server(server: asyncio.AbstractServer) -> None:
    """Stop listening; the caller ends the connections, all of which have begun then.

    asyncio's own ``close`` loses a connection that the loop accepted in the turn before: no transport can be made for
    it any more, and it stays open, unserved, until the cycle collector finds it.
    """
    loop = asyncio.get_running_loop()
    if isinstance(server, asyncio.Server) and isinstance(loop, asyncio.SelectorEventLoop):
        for listener in server.sockets:
            loop.remove_reader(listener)
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
    server.close()
