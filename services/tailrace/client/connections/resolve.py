"""Look up host names, and repeat a lookup whose answer is late (docs/design.md#client).

A resolver retries after 5 s, and busy clusters lose single datagrams. Without earlier retries, a writer whose container
moved would wait 5 s for the address of a host.
"""

from __future__ import annotations

import asyncio
import socket

from tailrace.common import limits


async def resolve(host: str, port: int) -> list[tuple[str, int]]:
    """Return the addresses of a host, in the order in which to try them.

    The first answer wins, also when it is an error. Other lookups continue in their threads without effect.

    Raises:
        OSError: the host does not exist, or the name server does not answer.
    """
    loop = asyncio.get_running_loop()
    questions: list[asyncio.Task[list[tuple[str, int]]]] = []
    try:
        while True:
            questions.append(loop.create_task(_ask(host, port)))
            is_last = len(questions) == limits.CLIENT_RESOLVE_QUESTIONS_MAX
            timeout_s = None if is_last else limits.CLIENT_RESOLVE_TIMEOUT_S
            answered, _ = await asyncio.wait(questions, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if answered:
                return answered.pop().result()
    finally:
        for question in questions:
            question.cancel()
        await asyncio.wait(questions)
        for question in questions:
            if not question.cancelled():
                question.exception()  # read the error: the first answer wins


async def _ask(host: str, port: int) -> list[tuple[str, int]]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(str(address[0]), int(address[1])) for *_, address in found]
