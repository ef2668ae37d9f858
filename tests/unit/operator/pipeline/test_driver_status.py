"""Drivers are asked over HTTP: what fits is taken, and one that does not answer is bounded."""

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tailrace_operator.pipeline.driver_status import HttpDriverStatus, understood


@pytest.fixture
def answer() -> Iterator[dict[str, Any]]:
    found: dict[str, Any] = {"body": b"{}", "status": 200}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(found["status"])
            self.end_headers()
            self.wfile.write(found["body"])

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    found["port"] = server.server_port
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


async def test_an_answer_is_taken(answer: dict[str, Any]) -> None:
    drivers = HttpDriverStatus(answer["port"])
    try:
        answer["body"] = json.dumps({"rows": 5, "lagBytes": 0, "lastBatchTime": "2026-01-02T03:04:05Z"}).encode()
        found = await drivers.progress("127.0.0.1")
        assert found == {"rows": 5, "lagBytes": 0, "lastBatchTime": "2026-01-02T03:04:05Z"}
        for body, status in ((b"no JSON", 200), (b"[]", 200), (b"x" * 100_000, 200), (b"{}", 503)):
            answer["body"], answer["status"] = body, status
            assert await drivers.progress("127.0.0.1") is None
    finally:
        drivers.close()


async def test_no_answer_is_none(answer: dict[str, Any]) -> None:
    drivers = HttpDriverStatus(1)
    try:
        assert await drivers.progress("127.0.0.1") is None
    finally:
        drivers.close()


def test_only_what_the_status_has_is_taken() -> None:
    given = {"rows": -1, "bytes": True, "batches": "3", "lagSeconds": 4, "lastBatchTime": "now", "more": 1}
    assert understood(given) == {"lagSeconds": 4}
    assert understood(None) is None
