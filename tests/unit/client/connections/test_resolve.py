"""A client whose name server is late, loses queries, or returns addresses without a listener."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tailrace.client.connections.connection import connect
from tailrace.client.connections.resolve import resolve
from tailrace.client.types import Endpoint
from tailrace.common import limits
from tailrace.common.errors import ConnectionLostError

Address = tuple[str, int]


class NameServer:
    """Answers the questions of this loop: each by an address, an error, or (None) never."""

    def __init__(self, answers: list[list[Address] | OSError | None]) -> None:
        self.answers = answers
        self.questions = 0
        self.waiting = 0

    async def getaddrinfo(self, host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        answer = self.answers[self.questions]
        self.questions += 1
        self.waiting += 1
        try:
            if answer is None:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
        finally:
            self.waiting -= 1
        assert answer is not None
        if isinstance(answer, OSError):
            raise answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in answer]


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> Callable[..., NameServer]:
    """Replace the running loop's resolver; lookups are not repeated unless the test sets a delay."""

    def install(*answers: list[Address] | OSError | None, timeout_s: float = 3600) -> NameServer:
        monkeypatch.setattr(limits, "CLIENT_RESOLVE_TIMEOUT_S", timeout_s)
        server = NameServer(list(answers))
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", server.getaddrinfo)
        return server

    return install


async def test_a_lost_question_is_asked_once_more(name_server: Callable[..., NameServer]) -> None:
    server = name_server(None, None, [("10.0.0.1", 7)], timeout_s=0.01)
    assert await resolve("store", 7) == [("10.0.0.1", 7)]
    assert server.questions == limits.CLIENT_RESOLVE_QUESTIONS_MAX
    assert not server.waiting


async def test_questions_are_bounded(name_server: Callable[..., NameServer]) -> None:
    server = name_server(*[None] * 10, timeout_s=0.001)
    asking = asyncio.create_task(resolve("store", 7))
    while server.waiting < limits.CLIENT_RESOLVE_QUESTIONS_MAX:  # noqa: ASYNC110 - the client has no event to wait for
        await asyncio.sleep(0.001)
    await asyncio.wait([asking], timeout=0.05)
    assert server.questions == limits.CLIENT_RESOLVE_QUESTIONS_MAX
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not server.waiting


async def test_an_answer_in_time_needs_no_second_question(name_server: Callable[..., NameServer]) -> None:
    server = name_server([("10.0.0.2", 7), ("10.0.0.1", 7)], None)
    assert await resolve("store", 7) == [("10.0.0.2", 7), ("10.0.0.1", 7)]
    assert server.questions == 1


async def test_an_unknown_name_is_reported_at_once(name_server: Callable[..., NameServer]) -> None:
    server = name_server(socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
    with pytest.raises(ConnectionLostError, match=r"is not reachable: .*Name or service not known"):
        await connect(Endpoint("store", 7))
    assert server.questions == 1


async def test_the_next_address_is_tried(name_server: Callable[..., NameServer], store: Any) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        name_server([unused.getsockname(), (store.endpoint.host, store.endpoint.port)], [unused.getsockname()])
        connection = await connect(Endpoint("store", 7))
        assert connection.is_open
        await connection.close()
        with pytest.raises(ConnectionLostError, match="store:7 is not reachable"):
            await connect(Endpoint("store", 7))
