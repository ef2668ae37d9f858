"""Serves an ASGI application on a bound socket, in a process with an event loop and signal handlers of its own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tailrace.common import limits
from tailrace.common.closing import close_server
from tailrace.common.errors import StartError
from tailrace.common.keepalive import probe_silent_peers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping, Sequence

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


class ReadsEndWithTheirPeer:
    """An ASGI application whose reads end when their peer closes the connection.

    Without it a list of 100,000 streams, or a look at every chunk of a segment, would go on for minutes for a peer that
    is gone, and a peer that comes again and again would have any number of them. Changes go on.
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request; other messages than HTTP requests pass unchanged. The body of a read is left out."""
        if scope["type"] != "http" or scope["method"] not in _READING:
            await self._app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        peer = loop.create_task(_wait_for_the_end(receive))
        bodies = iter(({"type": "http.request", "body": b"", "more_body": False},))

        async def receive_empty() -> Message:
            for body in bodies:
                return body
            await asyncio.wait((peer,))
            return {"type": "http.disconnect"}

        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                peer.cancel()  # from here on the connection's next request receives
            await send(message)

        async def answer() -> None:
            await self._app(scope, receive_empty, send_last)

        work = loop.create_task(answer())
        try:
            await asyncio.wait((work, peer), return_when=asyncio.FIRST_COMPLETED)
            if peer.done() and not peer.cancelled():
                work.cancel()
                await asyncio.wait((work,))
                peer.result()  # raises when the body was too large
            else:
                await work
        finally:
            work.cancel()
            peer.cancel()
            await asyncio.wait((work, peer))


async def _wait_for_the_end(receive: Receive) -> None:
    """Return when the peer is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


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


def _closing(send: Send) -> Send:
    """Return `send` for an answer with which the connection ends."""

    async def send_closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return send_closing


class Awaited(NamedTuple):
    """What a connection waits for from its peer."""

    what: str
    cycle: object = None
    """The last request that came whole."""
    unsent_bytes: int = 0

    def is_as(self, before: Awaited | None) -> bool:
        """Return whether the peer has done nothing for it since."""
        return (
            before is not None
            and self.what == before.what
            and self.cycle is before.cycle
            and self.unsent_bytes >= before.unsent_bytes
        )


_HEALTH_PATHS = ("/healthz", "/readyz")


def _bounded_protocol(connections_max: int) -> type[H11Protocol]:
    """Return a protocol that limits connections, and how long each waits for its peer.

    Above the limit, the connection that has had no request for longest is closed, so that a peer keeps others out
    neither by silence nor by slow heads. While requests hold all connections, more are taken in reserve: those get
    answers to health checks only, because Kubernetes restarts a pod that answers none. Another host than the one that
    holds most takes the place of a request of that one whose body has not come.
    """
    reserved = min(limits.HTTP_CONNECTIONS_RESERVED, connections_max)
    turns = itertools.count()

    class BoundedProtocol(H11Protocol):
        """One connection. It ends when its peer lets it wait for ``limits.HTTP_PEER_DEADLINE_S``."""

        _timer: asyncio.TimerHandle | None = None
        _before: Awaited | None = None
        _since_s = 0.0
        _turn = 0
        """Orders connections by when they were made or last answered."""
        _counts = False
        """Whether the last request counts towards the limit; those of the reserve do not."""
        _given_up = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.app = self._answer
            self._turn = next(turns)
            if len(self.connections) > connections_max:
                self._make_room()
            if not self._given_up:
                self._look()

        def on_response_complete(self) -> None:
            self._turn = next(turns)
            super().on_response_complete()

        def _has_no_request(self) -> bool:
            """Return whether no answer is due, nor one on its way."""
            answered = self.cycle is None or self.cycle.response_complete
            return answered and not self.transport.get_write_buffer_size()

        def _others(self) -> Iterator[BoundedProtocol]:
            """Yield the other connections that are not given up."""
            for each in self.connections:
                if isinstance(each, BoundedProtocol) and each is not self and not each._given_up:
                    yield each

        def _make_room(self) -> None:
            """Give up a connection without a request where there are too many; this one where all others have one."""
            left = [*self._others(), self]
            silent = [each for each in left if each._has_no_request()]
            if len(left) > connections_max + reserved or (len(left) > connections_max and len(silent) > reserved):
                oldest = min(silent, key=lambda each: each._turn)
                oldest._given_up = True
                oldest.transport.abort()

        def _host(self) -> str:
            """Return the address of the peer."""
            return self.client[0] if self.client else ""

        def _take_place(self, holders: Sequence[BoundedProtocol]) -> bool:
            """Give up the oldest connection whose body has not come, of the host that has most; return whether it was.

            Not for a host that then has as many itself: those of one host take no places from each other.
            """
            held = Counter(each._host() for each in holders)
            host, count = held.most_common(1)[0]
            slow = [each for each in holders if each._host() == host and each.conn.their_state is h11.SEND_BODY]
            if not slow or count <= held[self._host()] + 1:
                return False
            oldest = min(slow, key=lambda each: each._turn)
            oldest._given_up = True
            oldest.transport.abort()
            return True

        async def _answer(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
            """Pass a request on, unless others hold all connections: then only health checks."""
            app: Application = self.config.loaded_app
            holders = [each for each in self._others() if each._counts and not each._has_no_request()]
            self._counts = len(holders) < connections_max or self._take_place(holders)
            if self._counts:
                await app(scope, receive, send)
            elif scope["method"] in _READING and scope["path"] in _HEALTH_PATHS:
                await app(scope, receive, _closing(send))
            else:
                await _refuse(send, 503, b'{"detail":"too many requests at a time"}')

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)
            self.app = self.config.loaded_app  # a reference to itself would be cyclic garbage

        def _look(self) -> None:
            now_s, awaited = self.loop.time(), self._awaited()
            if awaited is None or not awaited.is_as(self._before):
                self._since_s = now_s
            elif now_s - self._since_s >= limits.HTTP_PEER_DEADLINE_S:
                self.transport.abort()
                return
            self._before = awaited
            look_s = min(limits.HTTP_LOOK_S, limits.HTTP_PEER_DEADLINE_S / 2)
            self._timer = self.loop.call_later(look_s, self._look)

        def _awaited(self) -> Awaited | None:
            if unsent_bytes := self.transport.get_write_buffer_size():
                return Awaited("take the answer", None, unsent_bytes)
            if self.conn.their_state is h11.SEND_BODY:
                return Awaited("end the body", self.cycle)
            if self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None:
                return Awaited("end the head", self.cycle)
            return None  # the application's answer; or the next request, for which uvicorn has a timer

    return BoundedProtocol


class _Server(uvicorn.Server):
    """A server that leaves signals to the process and loses no connection."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, then as uvicorn does."""
        for each in self.servers:
            await close_server(each)
        await super().shutdown(sockets)


def listen(name: str, host: str, port: int) -> socket.socket:
    """Return a bound TCP socket; port 0 takes a free one.

    Raises:
        StartError: the address cannot be bound; the text names it and the reason.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only for sockets created as TCP; accepted sockets inherit from the listener
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe_silent_peers(listener)
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
        BoundedBodies(NoChangesByPages(ReadsEndWithTheirPeer(app))),
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
