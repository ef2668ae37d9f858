"""A segment store worker in a process of its own: ``python -m tailrace.segmentstore.worker.process``.

See docs/design.md#processes.

The parent holds the listening sockets, so a port stays bound while its worker restarts. It writes one line of JSON to
standard input (`encode_orders`), may write `DRAIN` later, and ends the worker by closing standard input. The worker
writes lines to standard output: `READY` when it answers on its port, and as the last line the error that ended it. On
Kubernetes it also writes ``waiting: …`` and ``following`` (`cluster_service`). A ``waiting`` line after ``following``
names the containers that are not open. `SUPERSEDED` is the exit code of a worker whose name another process has now.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog

from tailrace.common import limits
from tailrace.common.cycle_collector import collect_cycles_rarely
from tailrace.common.errors import NotOwnerError, TailraceError
from tailrace.common.http import serve_app
from tailrace.common.logs import configure_logs
from tailrace.common.loop_stalls import LoopStalls
from tailrace.common.open_files import connection_limits, raise_open_files
from tailrace.common.process_exit import end_process, stop_on_signals
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.common.task_groups import running
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
    """What a worker process receives: its spec, and the descriptors of two inherited, bound sockets."""

    spec: Spec
    store_descriptor: int
    admin_descriptor: int


def encode_orders(orders: Orders) -> bytes:
    """Encode as one line of JSON."""
    kind = next(name for name, spec in _SPECS.items() if type(orders.spec) is spec)
    return json.dumps({"kind": kind, **dataclasses.asdict(orders)}).encode() + b"\n"


def decode_orders(line: bytes) -> Orders:
    """Decode a line that `encode_orders` returned."""
    content = json.loads(line)
    spec = {name: tuple(value) if type(value) is list else value for name, value in content["spec"].items()}
    return Orders(_SPECS[content["kind"]](**spec), content["store_descriptor"], content["admin_descriptor"])


def _report(line: str) -> None:
    # One write for each line: several threads report.
    os.write(sys.stdout.fileno(), (" ".join(line.split())[: limits.WORKER_REASON_MAX_CHARACTERS] + "\n").encode())


async def _serve(orders: Orders) -> None:
    stop, leave = stop_on_signals(), asyncio.Event()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    # The parent may end at any time, even while containers recover. Their logs must be unlocked for its successor.
    serving = loop.create_task(_run_service(orders, leave))
    ended = loop.create_task(_follow_parent(reader, leave))
    stopped = loop.create_task(stop.wait())
    await asyncio.wait((serving, ended, stopped), return_when=asyncio.FIRST_COMPLETED)
    for task in (serving, ended, stopped):
        task.cancel()
    results = await asyncio.gather(serving, ended, stopped, return_exceptions=True)
    transport.close()
    if isinstance(results[0], Exception):
        raise results[0]


async def _follow_parent(reader: asyncio.StreamReader, leave: asyncio.Event) -> None:
    """Obey the parent's lines; return when it closes standard input."""
    while line := await reader.readline():
        if line.strip() == DRAIN.encode():
            leave.set()


def _service(spec: Spec, connections_max: int, report: Callable[[str], None]) -> StoreService | ClusterStoreService:
    if isinstance(spec, StoreSpec):
        return StoreService(spec, SystemClock(), SystemEntropy(), connections_max)
    return ClusterStoreService(spec, SystemClock(), SystemEntropy(), connections_max, report)


async def _run_service(orders: Orders, leave: asyncio.Event) -> None:
    """Recover, report READY, and serve until `leave` is set or the task is cancelled. Raises StartError."""
    allowed = connection_limits(raise_open_files())
    service = _service(orders.spec, allowed.store, _report)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(service.close)
        await service.start()
        await service.listen_on(socket.socket(fileno=orders.store_descriptor))
        # Imported here: loading it takes as long as all else, and a worker that returns soon keeps its containers.
        from tailrace.segmentstore.worker.admin import create_app

        admin, stalls = socket.socket(fileno=orders.admin_descriptor), LoopStalls()
        await stack.enter_async_context(running(stalls.watch()))
        app = create_app(service.worker, service.server, stalls)
        await stack.enter_async_context(serve_app(app, admin, allowed.http))
        _report(READY)
        await service.run(leave)


def main() -> int:
    """Run a worker; the exit code is 1 when it cannot start."""
    configure_logs()
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 0  # the parent was killed before it wrote the whole line
    orders = decode_orders(line)
    if isinstance(orders.spec, ClusterStoreSpec):
        structlog.contextvars.bind_contextvars(worker=orders.spec.worker)
    collect_cycles_rarely()
    try:
        asyncio.run(_serve(orders))
    except BrokenPipeError:
        return 0  # the parent was killed before it could read READY
    except NotOwnerError as error:
        _report(str(error))
        return SUPERSEDED
    except TailraceError as error:
        _report(str(error))
        return 1
    return 0


if __name__ == "__main__":
    end_process(main())
