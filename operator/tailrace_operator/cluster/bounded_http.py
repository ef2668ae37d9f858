"""Send HTTP requests to endpoints that users name, with a bound on the total time and on the size of responses.

The timeouts of urllib3 apply to single reads, so a server that sends a byte now and then would occupy a thread for
ever. Here a timer closes the connection. Responses are read completely, up to the bound.
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


class HeaderError(Exception):
    """HTTP does not allow a header of the request. No text, because headers have credentials."""


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
    """Connections that are closed `deadline_s` after creation; responses of at most `answer_max_bytes`."""

    def __init__(self, deadline_s: float, answer_max_bytes: int) -> None:
        super().__init__(
            timeout=urllib3.Timeout(total=deadline_s),
            retries=False,  # the caller retries; redirects are not followed
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
        """See PoolManager: the timer closes the connections of the pool."""
        pool = super().connection_from_host(*arguments, **options)
        kind = _WatchedHttps if pool.scheme == "https" else _WatchedHttp
        pool.ConnectionCls = functools.partial(kind, watch=self._watch)  # type: ignore[assignment]
        return pool

    def urlopen(self, method: str, url: str, redirect: bool = True, **options: Any) -> urllib3.HTTPResponse:  # type: ignore[override]
        """See PoolManager.

        Raises:
            HeaderError. OSError: the response is too long or too late.
        """
        preload = options.pop("preload_content", True)
        try:
            answer = super().urlopen(method, url, redirect=False, preload_content=False, **options)
        except urllib3.exceptions.HTTPError:  # some are ValueErrors, about the URL
            raise
        except ValueError:
            raise HeaderError from None  # the error's text has the whole header
        try:
            body = answer.read(self._answer_max_bytes + 1, decode_content=False)
        finally:
            answer.close()
        if self._is_over:  # a truncated response may look complete
            raise OSError(f"no complete response within {self._deadline_s:g} s")
        if len(body) > self._answer_max_bytes:
            raise OSError(f"the response has more than {self._answer_max_bytes} bytes")
        return urllib3.HTTPResponse(
            io.BytesIO(body), answer.headers, answer.status, preload_content=preload, decode_content=False
        )

    def close(self) -> None:
        """Close all connections."""
        self._timer.cancel()
        self._end()
        self.clear()

    def _watch(self, made: socket.socket) -> None:
        # A duplicate of the descriptor, because TLS moves the first one to another socket object.
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
            with contextlib.closing(connection), contextlib.suppress(OSError):  # it may be closed already
                connection.shutdown(socket.SHUT_RDWR)
