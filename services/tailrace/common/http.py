"""Serves an ASGI application on a bound socket, in a process with an event loop and signal handlers of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tailrace.common import limits
from tailrace.common.errors import StartError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class _BodyTooLargeError(Exception):
    """The request's body has more than `limits.HTTP_BODY_MAX_BYTES`."""


class BoundedBodies:
    """An ASGI application that returns 413 for bodies above `limits.HTTP_BODY_MAX_BYTES`, before they are in memory."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request; other messages than HTTP requests pass unchanged."""
        received_bytes = 0
        answered = False

        async def bounded() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > limits.HTTP_BODY_MAX_BYTES:
                raise _BodyTooLargeError
            return message

        async def noted(message: Message) -> None:
            nonlocal answered
            if not answered and received_bytes > limits.HTTP_BODY_MAX_BYTES:
                raise _BodyTooLargeError  # the application took the error for one of its own, and answers that
            answered = True
            await send(message)

        try:
            if _declared_bytes(scope) > limits.HTTP_BODY_MAX_BYTES:
                raise _BodyTooLargeError
            await self._app(scope, bounded, noted)
        except _BodyTooLargeError:
            if answered:
                raise
            body = b'{"detail":"the body has more than %d bytes"}' % limits.HTTP_BODY_MAX_BYTES
            await _refuse(send, 413, body)


class NoChangesByPages:
    """An ASGI application that returns 403 for changes that a web page asks for.

    A browser on a machine that reaches this listener would carry them out for any page: a page's own name may resolve
    to this listener's address, so that they count as requests to the page's own site. Browsers name the page in the
    header ``Origin`` of everything but GET and HEAD; other programs send none. See docs/operations/run.md#web-pages.
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request; other messages than HTTP requests pass unchanged."""
        if scope["type"] == "http" and scope["method"] not in _READING and _names_a_page(scope):
            await _refuse(send, 403, b'{"detail":"web pages may not change anything here (header Origin)"}')
            return
        await self._app(scope, receive, send)


_READING = ("GET", "HEAD")
_PAGE_HEADERS = (b"origin", b"referer", b"sec-fetch-site")


def _names_a_page(scope: MutableMapping[str, Any]) -> bool:
    return any(name in _PAGE_HEADERS for name, _ in scope.get("headers", ()))


def _declared_bytes(scope: MutableMapping[str, Any]) -> int:
    for name, value in scope.get("headers", ()):
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


async def _refuse(send: Send, status: int, body: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _bounded_protocol(connections_max: int) -> type[H11Protocol]:
    """Return a protocol that limits connections, and how long a peer may take for a request or an answer."""

    class BoundedProtocol(H11Protocol):
        """One connection."""

        _receiving: asyncio.TimerHandle | None = None
        _sending: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > connections_max:
                transport.abort()
                return
            self._receiving = self._deadline()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_receiving()
            self._end_sending()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._bound_request()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._bound_request()

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            self._bound_request()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._sending = self._sending or self._deadline()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._end_sending()

        def _bound_request(self) -> None:
            """Give a request that has begun until the deadline to end, and a peer to take the rest of what was sent."""
            if self.transport.is_closing():
                self._sending = self._sending or self._deadline()
            begun = self.conn.their_state is h11.SEND_BODY or (
                self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
            )
            if not begun:
                self._end_receiving()
            elif self._receiving is None:
                self._receiving = self._deadline()

        def _deadline(self) -> asyncio.TimerHandle:
            return self.loop.call_later(limits.HTTP_REQUEST_DEADLINE_S, self.transport.abort)

        def _end_receiving(self) -> None:
            if self._receiving is not None:
                self._receiving.cancel()
                self._receiving = None

        def _end_sending(self) -> None:
            if self._sending is not None:
                self._sending.cancel()
                self._sending = None

    return BoundedProtocol


class _Server(uvicorn.Server):
    """A server that leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


def listen(name: str, host: str, port: int) -> socket.socket:
    """Return a bound TCP socket; port 0 takes a free one.

    Raises:
        StartError: the address cannot be bound; the text names it and the reason.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only for sockets created as TCP; accepted sockets inherit from the listener
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # as are these: what a peer that vanished asked for or holds does not wait for it for ever
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.TCP_KEEPALIVE_IDLE_S)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, limits.TCP_KEEPALIVE_INTERVAL_S)
    try:
        listener.bind((host, port))
        listener.listen(limits.LISTEN_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise StartError(f"{name} port {port} of {host}: {getattr(error, 'strerror', error)}") from error
    return listener


@contextlib.asynccontextmanager
async def serve_app(
    app: Application, listener: socket.socket, connections_max: int = limits.HTTP_CONNECTIONS_MAX
) -> AsyncIterator[None]:
    """Serve while the context lasts."""
    config = uvicorn.Config(
        BoundedBodies(NoChangesByPages(app)),
        http=_bounded_protocol(connections_max),
        ws="none",
        backlog=limits.HTTP_BACKLOG,
        log_config=None,
        log_level="error",  # invalid requests of clients are not warnings
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=int(limits.CLOSE_DEADLINE_S),
    )
    server = _Server(config)
    task = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await task
