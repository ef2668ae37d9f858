"""The demo's server: `tailrace standalone` as a child process, killed and restarted at the same addresses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tailrace.common.errors import StartError

READY_DEADLINE_S = 60.0
STOP_DEADLINE_S = 30.0
POLL_INTERVAL_S = 0.02

# Where clients look for the original: controller, REST, segment store, admin.
USUAL_PORTS = {"controller": 9090, "rest": 9091, "store": 12345, "admin": 6061}


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a server listens, as its ready file tells."""

    controller: str
    rest: str
    admin: str
    stores: tuple[str, ...]
    pid: int

    @classmethod
    def parse(cls, text: str) -> Endpoints:
        """Reads the ready file of `tailrace standalone`."""
        fields = json.loads(text)
        return cls(fields["controller"], fields["rest"], fields["admin"], tuple(fields["stores"]), fields["pid"])

    def ports(self) -> dict[str, int]:
        """The ports by the name of their command-line option."""
        addresses = {
            "controller": self.controller,
            "rest": self.rest,
            "store": f"tcp://{self.stores[0]}",
            "admin": self.admin,
        }
        return {name: urlsplit(address).port or 0 for name, address in addresses.items()}


def free_or_ephemeral(ports: dict[str, int], host: str = "127.0.0.1") -> dict[str, int]:
    """The same ports, with 0 (any) in place of those that something else listens on."""
    chosen = {}
    for name, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                chosen[name] = port
            except OSError:
                chosen[name] = 0
    return chosen


class ServerProcess:
    """A standalone server over one folder, as a child process; on the usual ports where they are free.

    ``options`` are more words of its command line.
    """

    def __init__(self, data: Path, *, ports: dict[str, int] | None = None, options: Sequence[str] = ()) -> None:
        self._data = data
        self._options = tuple(options)
        self._ready_file = data / "ready.json"
        self._log_file = data / "server.log"
        self._process: asyncio.subprocess.Process | None = None
        self._ports = dict(ports or USUAL_PORTS)
        self.endpoints: Endpoints | None = None
        """Where the server listens, once it was started."""

    @property
    def log_file(self) -> Path:
        """Where the server's output goes."""
        return self._log_file

    async def start(self) -> Endpoints:
        """Starts the server and waits until it serves; after a restart at the same addresses.

        Raises:
            StartError: it ended instead, with its own words, or it did not serve in time.
        """
        self._data.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        ports = [f"--{name}-port={port}" for name, port in free_or_ephemeral(self._ports).items()]
        with self._log_file.open("ab") as log:
            start_of_log = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tailrace.cli.main", "standalone"),
                *("--data", str(self._data), "--ready-file", str(self._ready_file), *ports, *self._options),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C is for us: we end the server when nothing needs it any more
            )
        try:
            async with asyncio.timeout(READY_DEADLINE_S):
                endpoints = await self._wait_until_ready(self._process, start_of_log)
        except TimeoutError:
            await self.kill()
            words = self._last_words(start_of_log)
            raise StartError(f"the server did not serve within {READY_DEADLINE_S:g} s; it said: {words}") from None
        self._ports = endpoints.ports()
        self.endpoints = endpoints
        return endpoints

    async def _wait_until_ready(self, process: asyncio.subprocess.Process, start_of_log: int) -> Endpoints:
        """Polls for the ready file, which is renamed into place when it is whole."""
        while True:
            if process.returncode is not None:
                words = self._last_words(start_of_log)
                raise StartError(f"the server ended with exit code {process.returncode}: {words}")
            if self._ready_file.exists():
                endpoints = Endpoints.parse(self._ready_file.read_text())
                if endpoints.pid == process.pid:
                    return endpoints
            await asyncio.sleep(POLL_INTERVAL_S)

    def _last_words(self, start_of_log: int) -> str:
        with self._log_file.open("rb") as log:
            log.seek(start_of_log)
            lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it said nothing; see {self._log_file}"

    async def kill(self) -> None:
        """SIGKILL: nothing of the server runs any more when this returns."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL when it takes too long."""
        await self._end(signal.SIGTERM)

    async def wait(self) -> int:
        """Waits until the server ends by itself; returns its exit code."""
        return await self._process.wait() if self._process is not None else 0

    async def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            process.send_signal(number)
        try:
            async with asyncio.timeout(STOP_DEADLINE_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
