"""A segment store worker in a process of its own (design §1): ``python -m tailrace.segmentstore.worker.process``.

The parent holds the listening sockets, so a port stays bound while its worker is started again. It writes one line of
JSON to standard input (`encode_orders`), may write `DRAIN` later, and ends the worker by closing standard input. On
standard output come lines: `READY` when the worker answers on its port, for a worker on Kubernetes also ``waiting: …``
and ``following`` (`clusterservice`; ``waiting`` after ``following`` tells which containers are not open), and as the
last one what it failed with. `SUPERSEDED` is the exit code of one whose name another process has now.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog

from tailrace.common import limits
from tailrace.common.errors import NotOwnerError, TailraceError
from tailrace.common.http import serve_app
from tailrace.common.logs import configure_logs
from tailrace.common.open_files import connection_limits, raise_open_files
from tailrace.common.process_exit import end_process
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.segmentstore.worker.cluster_service import ClusterStoreService, ClusterStoreSpec
from tailrace.segmentstore.worker.folder_service import StoreService, StoreSpec

if TYPE_CHECKING:
    from collections.abc import Callable

READY: Final = "ready"
DRAIN: Final = "drain"
SUPERSEDED: Final = 3
Spec: TypeAlias = StoreSpec | ClusterStoreSpec
_SPECS: Final[dict[str, type[Any]]] = {"folder": StoreSpec, "cluster": ClusterStoreSpec}


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker process gets: its spec, and the numbers of two inherited, bound sockets."""

    spec: Spec
    store_descriptor: int
    admin_descriptor: int


def encode_orders(orders: Orders) -> bytes:
    """One line of JSON."""
    kind = next(name for name, spec in _SPECS.items() if type(orders.spec) is spec)
    return json.dumps({"kind": kind, **dataclasses.asdict(orders)}).encode() + b"\n"


def decode_orders(line: bytes) -> Orders:
    """What `encode_orders` made."""
    content = json.loads(line)
    spec = {name: tuple(value) if type(value) is list else value for name, value in content["spec"].items()}
    return Orders(_SPECS[content["kind"]](**spec), content["store_descriptor"], content["admin_descriptor"])


def _tell(line: str) -> None:
    # One write for each line: they come from several threads.
    os.write(sys.stdout.fileno(), (" ".join(line.split())[: limits.WORKER_REASON_MAX_CHARACTERS] + "\n").encode())


async def _serve(orders: Orders) -> None:
    stop, leave = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    # The parent may go at any time, also while containers recover: their logs must be free for its successor then.
    serving = loop.create_task(_run_service(orders, leave))
    ended = loop.create_task(_hear(reader, leave))
    stopped = loop.create_task(stop.wait())
    await asyncio.wait((serving, ended, stopped), return_when=asyncio.FIRST_COMPLETED)
    for task in (serving, ended, stopped):
        task.cancel()
    results = await asyncio.gather(serving, ended, stopped, return_exceptions=True)
    transport.close()
    if isinstance(results[0], Exception):
        raise results[0]


async def _hear(reader: asyncio.StreamReader, leave: asyncio.Event) -> None:
    """What the parent says; returns when it says no more."""
    while line := await reader.readline():
        if line.strip() == DRAIN.encode():
            leave.set()


def _service(spec: Spec, connections_max: int, tell: Callable[[str], None]) -> StoreService | ClusterStoreService:
    if isinstance(spec, StoreSpec):
        return StoreService(spec, SystemClock(), SystemEntropy(), connections_max)
    return ClusterStoreService(spec, SystemClock(), SystemEntropy(), connections_max, tell)


async def _run_service(orders: Orders, leave: asyncio.Event) -> None:
    """Recover, say that the worker serves, and serve until it is to leave, or cancelled. Raises StartError."""
    allowed = connection_limits(raise_open_files())
    service = _service(orders.spec, allowed.store, _tell)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(service.close)
        await service.start()
        await service.listen_on(socket.socket(fileno=orders.store_descriptor))
        # Here, not above: it takes as long to load as all else, and a worker that is back soon keeps its containers.
        from tailrace.segmentstore.worker.admin import create_app

        admin = socket.socket(fileno=orders.admin_descriptor)
        await stack.enter_async_context(serve_app(create_app(service.worker), admin, allowed.http))
        _tell(READY)
        await service.run(leave)


def main() -> int:
    """Entry point; the exit code is 1 when the worker cannot start."""
    configure_logs()
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 0  # the parent was killed before it had told everything
    orders = decode_orders(line)
    if isinstance(orders.spec, ClusterStoreSpec):
        structlog.contextvars.bind_contextvars(worker=orders.spec.worker)
    try:
        asyncio.run(_serve(orders))
    except BrokenPipeError:
        return 0  # the parent was killed before it could hear that its worker serves
    except NotOwnerError as error:
        _tell(str(error))
        return SUPERSEDED
    except TailraceError as error:
        _tell(str(error))
        return 1
    return 0


if __name__ == "__main__":
    end_process(main())
