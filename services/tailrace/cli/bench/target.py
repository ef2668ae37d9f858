"""The server under measurement: a running one, or a new one over a temporary folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tailrace.cli.demo.server import Endpoints, ServerProcess
from tailrace.common.errors import BadRequestError

_OWN_PORTS = {"controller": 0, "rest": 0, "store": 0, "admin": 0}


@dataclass(slots=True)
class Target:
    """A running server; only the benchmark's own server has `process` and `admin`."""

    controller: str
    admin: str | None = None
    pid: int | None = None
    process: ServerProcess | None = None

    async def restart(self, extra: Sequence[str] = ()) -> float:
        """Restart the server over the same folder, with an empty cache, and ``extra`` on its command line.

        Returns how many seconds the start took until it was ready.
        """
        if self.process is None:
            raise BadRequestError("the benchmark restarts only its own server; omit --controller")
        await self.process.stop()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self._follow(await self.process.start(extra))
        return loop.time() - began_s

    def _follow(self, endpoints: Endpoints) -> None:
        self.controller, self.admin, self.pid = endpoints.controller, endpoints.admin, endpoints.pid

    def cpu_s(self) -> float | None:
        """Return the processor time of the benchmark's own server; None for another one."""
        return None if self.pid is None else _cpu_s(self.pid)

    def resident_bytes(self) -> int | None:
        """Return the memory that the benchmark's own server uses; None for another one."""
        if self.pid is None:
            return None
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.asynccontextmanager
async def bench_target(
    controller: str | None, folder: Path | None, options: Sequence[str] = ()
) -> AsyncIterator[Target]:
    """Return the server at `controller`, or start one over a temporary folder in `folder`, which is deleted afterwards.

    ``options`` are added to the new server's command line.
    """
    if controller is not None:
        if options:
            raise BadRequestError(
                "--log, --tier2 and --s3-endpoint apply to the benchmark's own server; omit --controller"
            )
        yield Target(controller)
        return
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=folder) as name:
        process = ServerProcess(Path(name), ports=_OWN_PORTS, options=options)
        try:
            endpoints = await process.start()
            yield Target(endpoints.controller, endpoints.admin, endpoints.pid, process)
        finally:
            await process.stop()


def own_options(log: str, tier2: str, s3_endpoint: str | None) -> list[str]:
    """Return options of a new server. With `tier2`, a new folder below it is the server's Tier 2."""
    options = ["--log", log] if log != "file" else []
    if tier2:
        options += ["--tier2", f"{tier2.rstrip('/')}/bench-{os.urandom(8).hex()}"]
    if s3_endpoint is not None:
        options += ["--s3-endpoint", s3_endpoint]
    return options


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process and its running children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + sum(
        _cpu_s(int(child)) for child in children
    )


def metric_value(metrics: str, name: str) -> float:
    """Return a metric's value, the sum over all its labels, from the text of ``/metrics``; 0 when it is not there."""
    lines = metrics.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if re.split("[ {]", line, maxsplit=1)[0] == name)


async def flush_all(admin: str) -> None:
    """Flush every container to Tier 2."""
    import httpx

    async with httpx.AsyncClient(base_url=admin, timeout=300.0, trust_env=False) as client:
        for container in (await client.get("/v1/containers")).raise_for_status().json():
            (await client.post(f"/v1/containers/{container['container_id']}/flush")).raise_for_status()
