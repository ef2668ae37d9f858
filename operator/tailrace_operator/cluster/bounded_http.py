"""HTTP to endpoints that users name, for one question: bounded as a whole, in time and in size.

Deadlines of urllib3 are of single waits: whoever sends a byte now and then keeps a thread for ever. Here a timer shuts
the connection, whatever it is waiting for. Answers are taken whole, up to a bound.
"""

from __future__ import annotations

import contextlib
import functools
import io
import socket
import threading
from typing import TYPE_CHECKING, Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

if TYPE_CHECKING:
    from collections.abc import Callable


class _WatchedHttp(HTTPConnection):
    def __init__(self, *arguments: Any, watch: Callable[[socket.socket], None], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._watch = watch

    def _new_conn(self) -> socket.socket:
        made = super()._new_conn()
        self._watch(made)
        return made


class _WatchedHttps(HTTPSConnection):
    def __init__(self, *arguments: Any, watch: Callable[[socket.socket], None], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._watch = watch

    def _new_conn(self) -> socket.socket:
        made = super()._new_conn()
        self._watch(made)
        return made


class BoundedHttp(urllib3.PoolManager):
    """Connections that end `deadline_s` after this was made; answers of at most `answer_max_bytes`."""

    def __init__(self, deadline_s: float, answer_max_bytes: int) -> None:
        super().__init__(
            timeout=urllib3.Timeout(total=deadline_s),
            retries=False,  # whoever asks does so again anyway; and no answer leads elsewhere
            maxsize=1,
            cert_reqs="CERT_REQUIRED",
        )
        self._deadline_s = deadline_s
        self._answer_max_bytes = answer_max_bytes
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._is_over = False
        self._timer = threading.Timer(deadline_s, self._end)
        self._timer.daemon = True
        self._timer.start()

    def connection_from_host(self, *arguments: Any, **options: Any) -> Any:
        """See PoolManager: the pool makes connections that are watched."""
        pool = super().connection_from_host(*arguments, **options)
        kind = _WatchedHttps if pool.scheme == "https" else _WatchedHttp
        pool.ConnectionCls = functools.partial(kind, watch=self._watch)  # type: ignore[assignment]
        return pool

    def urlopen(self, method: str, url: str, redirect: bool = True, **options: Any) -> urllib3.HTTPResponse:  # type: ignore[override]
        """See PoolManager. Raises OSError: the answer is too long, or was not there in time."""
        preload = options.pop("preload_content", True)
        answer = super().urlopen(method, url, redirect=False, preload_content=False, **options)
        try:
            body = answer.read(self._answer_max_bytes + 1, decode_content=False)
        finally:
            answer.close()
        if self._is_over:  # what was cut off may look like a whole answer
            raise OSError(f"no whole answer within {self._deadline_s:g} s")
        if len(body) > self._answer_max_bytes:
            raise OSError(f"it answers with more than {self._answer_max_bytes} bytes")
        return urllib3.HTTPResponse(
            io.BytesIO(body), answer.headers, answer.status, preload_content=preload, decode_content=False
        )

    def close(self) -> None:
        """Let go of everything."""
        self._timer.cancel()
        self._end()
        self.clear()

    def _watch(self, made: socket.socket) -> None:
        # A second number for the connection: under TLS the first one becomes another object's.
        with self._lock:
            self._open.append(made.dup())
            is_over = self._is_over
        if is_over:
            self._end()

    def _end(self) -> None:
        with self._lock:
            self._is_over = True
            ended, self._open = self._open, []
        for connection in ended:
            with contextlib.closing(connection), contextlib.suppress(OSError):  # it may have ended already
                connection.shutdown(socket.SHUT_RDWR)
