"""A Maven repository of small libraries, on loopback."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tailrace.pipelines.s3.libraries import Library

CONTENTS = {f"org/example/{name}/1.0/{name}-1.0.jar": name.encode() * 1000 for name in ("first", "second", "third")}
Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Repository:
    """An HTTP server; ``special`` has other answers of paths than their contents."""

    url: str = ""
    special: dict[str, Answer] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    @property
    def libraries(self) -> list[Library]:
        """What it has."""
        return [Library(hashlib.sha256(content).hexdigest(), path) for path, content in CONTENTS.items()]

    def times(self, number: int) -> int:
        """How often a library was asked for."""
        return self.asked.count(self.libraries[number].path)


def send(handler: BaseHTTPRequestHandler, content: bytes, status: int = 200, length: int | None = None) -> None:
    """Send an answer, of another length than its head says if that is given."""
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(content) if length is None else length))
    handler.end_headers()
    handler.wfile.write(content)


@contextmanager
def serving() -> Iterator[Repository]:
    """Yield a repository that serves meanwhile."""
    served = Repository()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.removeprefix("/maven/")
            served.asked.append(path)
            if path in served.special:
                served.special[path](self)
            elif path in CONTENTS:
                send(self, CONTENTS[path])
            else:
                send(self, b"", 404)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_port}/maven"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
