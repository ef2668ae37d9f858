"""A standalone server as a child process that can be killed at any moment and started again at the same addresses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from harness.ports import free_ports

READY_DEADLINE_S = 240.0
STOP_DEADLINE_S = 120.0
FLUSH_DEADLINE_S = 120.0
POLL_INTERVAL_S = 0.01
LOG_TAIL_CHARACTERS = 4000
_TIER2_OPTIONS = {"--tier2", "--s3-endpoint"}
_NAMES = ("controller", "rest", "store", "admin")


class StartFailedError(Exception):
    """The server ended before it served; the message is its last line."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"exit code {code}: {words}")
        self.code = code
        self.words = words


@dataclass
class Server:
    """A standalone server over ``folder/data``, or another folder ``data_in``.

    ``options`` are more words of its command line, ``environment`` more of its environment, ``prefix`` words before the
    command (a tracer, for example). ``workers`` > 1: worker processes. ``terminal``: of its standard
    streams, in place of the file of its log.
    """

    folder: Path
    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    prefix: Sequence[str] = ()
    workers: int = 1
    data_in: Path | None = None
    objects_in: Path | None = None
    terminal: int | None = None
    process: asyncio.subprocess.Process | None = None
    starts: int = 0

    def __post_init__(self) -> None:
        first = free_ports(len(_NAMES) - 1 + self.workers)
        controller, rest, admin, store, *_ = first
        self.ports = {"controller": controller, "rest": rest, "admin": admin, "store": store}

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.data_in or self.folder / "data"

    @property
    def tier2(self) -> Path:
        """The folder of Tier 2, unless the options name another one."""
        return self.data / "tier2"

    @property
    def objects(self) -> Path:
        """Where the files of new objects appear: in `tier2`, or in ``objects_in``."""
        return self.objects_in or self.tier2

    @property
    def log_file(self) -> Path:
        """What the server printed, of all starts."""
        return self.folder / "server.log"

    @property
    def controller(self) -> str:
        """Address for clients, the same after every start."""
        return f"tcp://127.0.0.1:{self.ports['controller']}"

    @property
    def admin(self) -> str:
        """URL of the admin interface."""
        return f"http://127.0.0.1:{self.ports['admin']}"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        """What the server printed so far."""
        return self.log_file.read_text(errors="replace")

    @property
    def log_at_any_pace(self) -> str:
        """The same without the lines that say that a busy machine has held the event loop up."""
        late = '"event": "event_loop_stalled"'
        return "".join(line for line in self.log.splitlines(keepends=True) if late not in line)

    def log_events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one event."""
        lines = (json.loads(line) for line in self.log.splitlines() if line.startswith("{"))
        return [line for line in lines if line.get("event") == name]

    @property
    def _ready_file(self) -> Path:
        return self.folder / f"ready-{self.starts}.json"

    # -- lifecycle -----------------------------------------------------------------------------------------------

    async def spawn(self) -> None:
        """Start the process and do not wait for it to serve."""
        assert self.process is None
        self.folder.mkdir(parents=True, exist_ok=True)
        self.starts += 1
        ports = [f"--{name}-port={port}" for name, port in self.ports.items()]
        if self.workers > 1:
            ports.append(f"--workers={self.workers}")
        with self.log_file.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(*self.prefix, sys.executable, "-m", "tailrace.cli", "standalone"),
                *("--data", str(self.data), "--ready-file", str(self._ready_file), *ports, *self.options),
                env={**os.environ, **self.environment},
                stdin=asyncio.subprocess.DEVNULL if self.terminal is None else self.terminal,
                stdout=log if self.terminal is None else self.terminal,
                stderr=log if self.terminal is None else self.terminal,
            )

    def is_ready(self) -> bool:
        """Whether the server serves. Raises StartFailedError when it ended instead."""
        assert self.process is not None
        if self.process.returncode is not None:
            code, self.process = self.process.returncode, None
            lines = self.log.strip().splitlines()
            raise StartFailedError(code, lines[-1] if lines else "")
        return self._ready_file.exists()

    async def wait_ready(self) -> None:
        """Wait until the server serves. Raises StartFailedError, TimeoutError."""
        async with asyncio.timeout(READY_DEADLINE_S):
            while not self.is_ready():  # noqa: ASYNC110  # a file is its way to say so
                await asyncio.sleep(POLL_INTERVAL_S)

    async def start(self) -> None:
        """Start and wait until it serves. Raises StartFailedError, TimeoutError."""
        await self.spawn()
        await self.wait_ready()

    async def kill(self) -> None:
        """SIGKILL; the process is gone when this returns."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """SIGTERM; fails when it does not end well."""
        code = await self._end(signal.SIGTERM)
        assert code in (0, -signal.SIGTERM), f"the server ended with {code}: {self.log[-LOG_TAIL_CHARACTERS:]}"

    async def wait_gone(self) -> None:
        """Wait until the process has ended, killed by another process."""
        assert self.process is not None
        async with asyncio.timeout(STOP_DEADLINE_S):
            await self.process.wait()
        self.process = None

    async def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        process, self.process = self.process, None
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            process.send_signal(number)
        try:
            async with asyncio.timeout(STOP_DEADLINE_S):
                return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process is not None:
            await self._end(signal.SIGKILL)

    async def verify(self) -> dict[str, Any]:
        """Prove, while it does not run, that its folder is whole; returns what `tailrace inspect verify` reports."""
        assert self.process is None
        words = list(self.options)
        options = [word for at, word in enumerate(words) if {*words[max(at - 1, 0) : at + 1]} & _TIER2_OPTIONS]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tailrace.cli", "inspect", "verify", "--data", str(self.data), "--json", *options),
            env={**os.environ, **self.environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, f"exit code {process.returncode}: {err.decode()}{out.decode()[:20_000]}"
        report: dict[str, Any] = json.loads(out)
        assert not report["problems"]
        print(
            f"verified {report['segment_bytes']} bytes, {report['objects']} objects, {report['orphan_count']} orphans"
        )
        return report

    # -- admin interface -----------------------------------------------------------------------------------------

    async def ask(self, path: str, *, method: str = "GET") -> Any:
        """What the admin interface answers, as JSON, also when it reports bad health. Raises httpx.HTTPStatusError."""
        async with httpx.AsyncClient(timeout=120) as client:
            answer = await client.request(method, self.admin + path)
        if path != "/v1/health":
            answer.raise_for_status()
        return answer.json() if answer.content else None

    async def flush(self) -> None:
        """Move everything to Tier 2."""
        for container in await self.ask("/v1/containers"):
            await self.ask(f"/v1/containers/{container['container_id']}/flush", method="POST")

    async def flush_until_tiered(self) -> None:
        """Move everything to Tier 2; what the controller writes for itself meanwhile takes another round."""
        async with asyncio.timeout(FLUSH_DEADLINE_S):
            await self.flush()
            while any(container["untiered_bytes"] for container in await self.ask("/v1/containers")):
                await self.flush()
