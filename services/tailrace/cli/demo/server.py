"""Run `tailrace standalone` as a child process, and kill and restart it at the same addresses."""

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

# The default ports of Pravega: controller, REST, segment store, admin.
USUAL_PORTS = {"controller": 9090, "rest": 9091, "store": 12345, "admin": 6061}


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses of a server, from its ready file."""

    controller: str
    rest: str
    admin: str
    stores: tuple[str, ...]
    pid: int

    @classmethod
    def parse(cls, text: str) -> Endpoints:
        """Parse the ready file of `tailrace standalone`."""
        fields = json.loads(text)
        return cls(fields["controller"], fields["rest"], fields["admin"], tuple(fields["stores"]), fields["pid"])

    def ports(self) -> dict[str, int]:
        """Return the ports by the name of their command-line option."""
        addresses = {
            "controller": self.controller,
            "rest": self.rest,
            "store": f"tcp://{self.stores[0]}",
            "admin": self.admin,
        }
        return {name: urlsplit(address).port or 0 for name, address in addresses.items()}


def free_or_ephemeral(ports: dict[str, int], host: str = "127.0.0.1") -> dict[str, int]:
    """Return the ports, with 0 (any) for those in use by another process."""
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
    """A standalone server over one folder, as a child process, on the default ports where they are free.

    ``options`` are added to its command line. ``ready_within_s``: how long a start may take.
    """

    def __init__(
        self,
        data: Path,
        *,
        ports: dict[str, int] | None = None,
        options: Sequence[str] = (),
        ready_within_s: float = READY_DEADLINE_S,
    ) -> None:
        self._data = data
        self._ready_within_s = ready_within_s
        self._options = tuple(options)
        self._ready_file = data / "ready.json"
        self._log_file = data / "server.log"
        self._process: asyncio.subprocess.Process | None = None
        self._ports = dict(ports or USUAL_PORTS)
        self.endpoints: Endpoints | None = None
        """Addresses of the server after its start."""

    @property
    def data(self) -> Path:
        """Return the data folder."""
        return self._data

    @property
    def log_file(self) -> Path:
        """Return the file of the server's output."""
        return self._log_file

    async def start(self, extra: Sequence[str] = ()) -> Endpoints:
        """Start the server and wait until it is ready; a restart keeps the addresses.

        ``extra`` is added to the command line of this start.

        Raises:
            StartError: the server ended (with its last line of output) or was not ready in time.
        """
        self._data.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        ports = [f"--{name}-port={port}" for name, port in free_or_ephemeral(self._ports).items()]
        with self._log_file.open("ab") as log:
            start_of_log = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tailrace.cli.main", "standalone"),
                *("--data", str(self._data), "--ready-file", str(self._ready_file), *ports, *self._options, *extra),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C goes to this process only, which stops the server last
            )
        try:
            async with asyncio.timeout(self._ready_within_s):
                endpoints = await self._wait_until_ready(self._process, start_of_log)
        except TimeoutError:
            await self.kill()
            words = self._last_words(start_of_log)
            raise StartError(
                f"the server was not ready within {self._ready_within_s:g} s; its last output: {words}"
            ) from None
        self._ports = endpoints.ports()
        self.endpoints = endpoints
        return endpoints

    async def _wait_until_ready(self, process: asyncio.subprocess.Process, start_of_log: int) -> Endpoints:
        """Poll for the ready file, which is renamed into place when it is complete."""
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
        return lines[-1] if lines else f"no output; see {self._log_file}"

    async def kill(self) -> None:
        """Kill the server with SIGKILL and wait for its end."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Stop the server with SIGTERM, and with SIGKILL after a deadline."""
        await self._end(signal.SIGTERM)

    async def wait(self) -> int:
        """Wait until the server ends by itself; return its exit code."""
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
