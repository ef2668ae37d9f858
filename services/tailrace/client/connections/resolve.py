"""Addresses of names, asked for more than once when an answer is late (design §10).

A resolver waits 5 s for an answer before it asks again, and in a busy cluster single datagrams are lost: a writer whose
container moved would wait as long for nothing but the address of a host that it may have known all the time.
"""

from __future__ import annotations

import asyncio
import socket

from tailrace.common import limits


async def resolve(host: str, port: int) -> list[tuple[str, int]]:
    """Addresses and ports of a host, in the order in which to try them.

    The first answer counts, be it an error. A question goes on in its thread when nobody waits for it any more.

    Raises:
        OSError: there is no such host, or the name server cannot tell.
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
                question.exception()  # seen: the first answer counts


async def _ask(host: str, port: int) -> list[tuple[str, int]]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(str(address[0]), int(address[1])) for *_, address in found]
