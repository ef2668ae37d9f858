"""Append blocks of form C through a raw socket: what the server's protocol layer costs per block.

The server runs in a child process over one of three containers: ``null`` (completes every append in the next turn of
the loop, so that only the protocol layer is measured), ``memory`` (the real container over a log in memory) and
``file`` (over the file log, with its syncs). Prints one JSON object.

    python benchmarks/append_load.py --block-bytes 7000 --container null
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import json
import multiprocessing
import os
import pstats
import signal
import socket
import struct
import tempfile
import threading
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import obstore

from tailrace.common.budgets import budgets_for
from tailrace.common.limits import MIB
from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.log.disk import RealDisk
from tailrace.log.file import FileLog
from tailrace.log.memory import MemoryLog, MemoryLogStore
from tailrace.segmentstore.api import AppendRequest
from tailrace.segmentstore.server.budgets import InFlightBudget
from tailrace.segmentstore.server.listener import SegmentStoreServer
from tailrace.segmentstore.worker.worker import Worker, WorkerPorts
from tailrace.storage.obstore_objects import ObstoreObjects
from tailrace.wire import codec
from tailrace.wire import commands as c

EVENT_BYTES = 108  # 100 bytes and the event's header


class NullContainer:
    """Takes appends and completes them in the next turn of the loop; nothing is stored."""

    def __init__(self) -> None:
        self._taken: list[AppendRequest] = []
        self._length = 0

    def submit_append(self, request: AppendRequest) -> None:
        if not self._taken:
            asyncio.get_running_loop().call_soon(self._commit)
        self._taken.append(request)

    def _commit(self) -> None:
        taken, self._taken = self._taken, []
        for request in taken:
            self._length += request.length
            request.new_length = self._length
            request.completed(request)

    async def create_segment(self, segment: str, **_: Any) -> None:
        pass

    async def writer_state(self, segment: str, writer_id: bytes) -> int:
        return -(2**63)


class NullRegistry:
    """The null container for everything."""

    def __init__(self) -> None:
        self._container: Any = NullContainer()

    def container_for(self, segment_name: str) -> Any:
        return self._container

    container_by_id = container_for
    table_service = container_for


async def registry_of(kind: str, folder: Path, stack: contextlib.AsyncExitStack) -> Any:
    """The containers to serve."""
    if kind == "null":
        return NullRegistry()
    disk = RealDisk()
    stack.callback(disk.close)

    def open_log(container_id: int) -> Any:
        if kind == "memory":
            return MemoryLog(MemoryLogStore(capacity_bytes=16 << 30))
        return FileLog(disk, str(folder / str(container_id)), container_id)

    ports = WorkerPorts(
        ObstoreObjects(obstore.store.MemoryStore()),
        open_log,
        lambda container_id, floor: floor + 1,
        SystemClock(),
        SystemEntropy(),
        bytes(16),
    )
    worker = Worker(1, (0,), budgets_for(256 * MIB, 1), ports)
    stack.push_async_callback(worker.close)
    await worker.start()
    return worker


async def serve(kind: str, pipe: Pipe) -> None:
    """Serve until the parent says stop."""
    with tempfile.TemporaryDirectory(prefix="append-load-") as folder:
        async with contextlib.AsyncExitStack() as stack:
            registry = await registry_of(kind, Path(folder), stack)
            await serve_registry(registry, pipe)


async def serve_registry(registry: Any, pipe: Pipe) -> None:
    """Serve the registry until the parent says stop."""
    server = SegmentStoreServer(registry, InFlightBudget(), SystemClock(), SystemEntropy())
    pipe.send((await server.start("127.0.0.1", 0))[1])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.close()


def serve_process(kind: str, pipe: Pipe, profile: str) -> None:
    """Body of the child process."""
    if not profile:
        asyncio.run(serve(kind, pipe))
        return
    profiler = cProfile.Profile()
    profiler.runcall(asyncio.run, serve(kind, pipe))
    pstats.Stats(profiler).dump_stats(profile)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Load:
    """One connection that keeps `window` blocks in flight."""

    def __init__(self, port: int, number: int, block_bytes: int, window: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.writer_id = number.to_bytes(16, "big")
        self.segment = f"bench/stream/{number}.#epoch.0"
        self.window = threading.Semaphore(window)
        self.sent_at: dict[int, float] = {}
        self.latencies: list[float] = []
        self.events = max(1, block_bytes // EVENT_BYTES)
        self._template(block_bytes)
        self._call(c.Hello(16, 5))
        self._call(c.CreateSegment(1, self.segment, 0, 0, ""))
        self._call(c.SetupAppend(2, self.writer_id, self.segment, ""))

    def _template(self, block_bytes: int) -> None:
        # Three quarters whole events, then an event that began in the block and ends with it.
        whole, rest = block_bytes * 3 // 4, min(50, block_bytes // 8)
        partial = codec.encode(c.PartialEvent(os.urandom(block_bytes - whole - rest)))
        block = codec.encode(c.AppendBlock(self.writer_id, os.urandom(whole) + partial))
        end = codec.encode(c.AppendBlockEnd(self.writer_id, whole, bytes(rest), self.events, 0, 0))
        self.frame = bytearray(block + end)
        self.number_at = len(self.frame) - 16

    def _call(self, command: c.Command) -> None:
        self.socket.sendall(codec.encode(command))
        self._receive()

    def _receive(self) -> tuple[int, bytes]:
        code, length = struct.unpack(">ii", self._exactly(8))
        return code, self._exactly(length)

    def _exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            more = self.socket.recv(length - len(data))
            if not more:
                raise ConnectionError("the server closed the connection")
            data += more
        return data

    def send(self, blocks: int, first: int) -> None:
        """Send blocks numbered from `first`."""
        for number in range(first, first + blocks):
            self.window.acquire()
            struct.pack_into(">qq", self.frame, self.number_at, number, number)
            self.sent_at[number] = time.perf_counter()
            self.socket.sendall(self.frame)

    def receive(self, blocks: int, first: int) -> None:
        """Take acknowledgements until all were acknowledged."""
        acked, last = first - 1, first + blocks - 1
        pending = b""
        while acked < last:
            pending += self.socket.recv(1 << 16)
            now = time.perf_counter()
            while len(pending) >= 56:
                code, _, _, number = struct.unpack_from(">ii16sq", pending)
                if code != c.DataAppended.CODE:
                    raise RuntimeError(f"reply {code} instead of an acknowledgement")
                pending = pending[56:]
                for each in range(acked + 1, number + 1):
                    self.latencies.append(now - self.sent_at.pop(each))
                    self.window.release()
                acked = number


def run(loads: list[Load], blocks: int, first: int) -> float:
    """Send and receive on all connections; seconds taken."""
    threads = [threading.Thread(target=load.send, args=(blocks, first)) for load in loads]
    threads += [threading.Thread(target=load.receive, args=(blocks, first)) for load in loads]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def measure(port: int, pid: int, options: argparse.Namespace) -> tuple[list[Load], float, float]:
    """Warm up, then run: the loads with their latencies, seconds taken, CPU seconds of the server."""
    loads = [Load(port, number, options.block_bytes, options.window) for number in range(options.connections)]
    warm = max(1, options.blocks // 10)
    run(loads, warm, 1)
    for load in loads:
        load.latencies.clear()
    cpu = cpu_seconds(pid)
    seconds = run(loads, options.blocks, warm + 1)
    return loads, seconds, cpu_seconds(pid) - cpu


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--container", choices=("null", "memory", "file"), default="null")
    parser.add_argument("--block-bytes", type=int, default=7000)
    parser.add_argument("--blocks", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=200)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--profile", default="", help="write the server's cProfile statistics to this file")
    options = parser.parse_args()
    pipe, child_pipe = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(
        target=serve_process, args=(options.container, child_pipe, options.profile)
    )
    child.start()
    assert child.pid is not None
    try:
        loads, seconds, cpu = measure(pipe.recv(), child.pid, options)
    finally:
        child.terminate()
        child.join()
    latencies = sorted(latency for load in loads for latency in load.latencies)
    blocks = options.blocks * options.connections
    values = [
        ("blocks", round(blocks / seconds), "1/s"),
        ("events of 100 B", round(blocks * loads[0].events / seconds), "1/s"),
        ("bytes", round(blocks * options.block_bytes / seconds / 1e6, 1), "MB/s"),
        ("server CPU per block", round(cpu / blocks * 1e6, 2), "us"),
        ("acknowledgement p50", round(latencies[len(latencies) // 2] * 1e3, 3), "ms"),
        ("acknowledgement p99", round(latencies[len(latencies) * 99 // 100] * 1e3, 3), "ms"),
    ]
    case = f"{options.container} container, {options.block_bytes} B blocks, {options.connections} connections"
    rows = [{"system": "tailrace", "case": case, "metric": m, "value": v, "unit": u} for m, v, u in values]
    print(json.dumps({"benchmark": "append_load", "machine": os.uname().nodename, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
