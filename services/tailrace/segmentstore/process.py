"""A segment store worker in a process of its own (design §1): ``python -m tailrace.segmentstore.process``.

The parent holds the listening sockets, so a port stays bound while its worker is started again. It writes one line of
JSON to standard input (`encode_orders`), reads ``ready`` or one line of error from standard output, and ends the worker
by closing standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import signal
import socket
import sys
from dataclasses import dataclass

import structlog

from tailrace.common.errors import TailraceError
from tailrace.common.http import serve_app
from tailrace.common.openfiles import connection_limits, raise_open_files
from tailrace.common.processend import end_process
from tailrace.common.realports import SystemClock, SystemEntropy
from tailrace.segmentstore.admin import create_app
from tailrace.segmentstore.service import StoreService, StoreSpec

READY = "ready"


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker process gets: its spec, and the numbers of two inherited, bound sockets."""

    spec: StoreSpec
    store_descriptor: int
    admin_descriptor: int


def encode_orders(orders: Orders) -> bytes:
    """One line of JSON."""
    return json.dumps(dataclasses.asdict(orders)).encode() + b"\n"


def decode_orders(line: bytes) -> Orders:
    """What `encode_orders` made."""
    content = json.loads(line)
    spec = content["spec"]
    spec["owned"] = tuple(spec["owned"])
    return Orders(StoreSpec(**spec), content["store_descriptor"], content["admin_descriptor"])


async def _serve(orders: Orders) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    # The parent may go at any time, also while containers recover: their logs must be free for its successor then.
    serving = loop.create_task(_run_service(orders))
    ended = loop.create_task(reader.read())
    stopped = loop.create_task(stop.wait())
    await asyncio.wait((serving, ended, stopped), return_when=asyncio.FIRST_COMPLETED)
    for task in (serving, ended, stopped):
        task.cancel()
    results = await asyncio.gather(serving, ended, stopped, return_exceptions=True)
    transport.close()
    if isinstance(results[0], Exception):
        raise results[0]


async def _run_service(orders: Orders) -> None:
    """Recover, say that the worker serves, and serve until cancelled. Raises StartError."""
    allowed = connection_limits(raise_open_files())
    service = StoreService(orders.spec, SystemClock(), SystemEntropy(), allowed.store)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(service.close)
        await service.start()
        await service.listen_on(socket.socket(fileno=orders.store_descriptor))
        admin = socket.socket(fileno=orders.admin_descriptor)
        await stack.enter_async_context(serve_app(create_app(service.worker), admin, allowed.http))
        sys.stdout.write(READY + "\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().create_future()


def main() -> int:
    """Entry point; the exit code is 1 when the worker cannot start."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 0  # the parent was killed before it had told everything
    try:
        asyncio.run(_serve(decode_orders(line)))
    except BrokenPipeError:
        return 0  # the parent was killed before it could hear that its worker serves
    except TailraceError as error:
        sys.stdout.write(f"{error}\n")
        sys.stdout.flush()
        return 1
    return 0


if __name__ == "__main__":
    end_process(main())
