"""`tailrace-operator` as a process, kept running as a kubelet does, and what it does at an API server over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from harness.apiserver import NAMESPACE, ApiServer
from harness.ports import free_ports
from tailrace.cluster.kubernetes import LEASES, STREAM_CLUSTERS
from tailrace_operator.kube.objects import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
)

DEADLINE_S = 300.0
RESTARTS_MAX = 3
LEASE_NOT_RENEWED = "Lease tailrace-operator has not been renewed"
CHILDREN = (
    CONFIG_MAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
)


class OperatorProcess:
    """A process of the operator, run as a kubelet runs it.

    It is started again when it could not renew its Lease although the API server is up: on a busy machine it may get no
    processor for that long. Its log goes on in the same file. Every other end is final, and so is one after
    `RESTARTS_MAX`.
    """

    def __init__(self, command: tuple[str, ...], log: Path, server: ApiServer) -> None:
        self._command = command
        self._log = log
        self._server = server
        self._process: asyncio.subprocess.Process | None = None
        self._running: asyncio.Task[int] | None = None

    async def start(self) -> None:
        await self._spawn()
        self._running = asyncio.create_task(self._run())

    async def _spawn(self) -> asyncio.subprocess.Process:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*self._command, stderr=log, stdout=log)
        return self._process

    async def _run(self) -> int:
        assert self._process is not None
        process = self._process
        for _ in range(RESTARTS_MAX):
            code = await process.wait()
            if code != 1 or self._server.down or LEASE_NOT_RENEWED not in last_line(self._log):
                return code
            process = await self._spawn()
        return await process.wait()

    @property
    def returncode(self) -> int | None:
        """Of its final end; None: it runs."""
        assert self._running is not None
        return self._running.result() if self._running.done() else None

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def wait(self) -> int:
        """Wait until it has ended for good; the exit code."""
        assert self._running is not None
        return await asyncio.shield(self._running)

    async def kill(self) -> None:
        """End it for good, if it runs."""
        assert self._running is not None
        assert self._process is not None
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def last_line(log: Path) -> str:
    """The last line of a log; empty: there is none."""
    return next(reversed(log.read_text().splitlines()), "")


@dataclass
class Operators:
    """The API server, and processes of the operator that use it."""

    server: ApiServer
    kubeconfig: Path
    folder: Path
    processes: list[OperatorProcess] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    async def start(self) -> OperatorProcess:
        """One more process."""
        (port,) = free_ports(1)
        self.ports.append(port)
        arguments = [
            "--namespace",
            NAMESPACE,
            "--kubeconfig",
            str(self.kubeconfig),
            "--image",
            "localhost/tailrace:test",
        ]
        arguments += ["--health-host", "127.0.0.1", "--health-port", str(port), "--cluster-period", "1"]
        code = "from tailrace_operator.runtime.main import main; main()"
        log = self.folder / f"log-{len(self.processes)}"
        process = OperatorProcess((sys.executable, "-c", code, *arguments), log, self.server)
        self.processes.append(process)
        await process.start()
        return process

    def log(self, number: int = 0) -> list[dict[str, Any]]:
        """The lines of a process."""
        return [json.loads(line) for line in (self.folder / f"log-{number}").read_text().splitlines()]

    async def health(self, path: str = "healthz", number: int = 0) -> tuple[int, str]:
        """What its endpoint answers; 0: nothing."""
        with contextlib.suppress(httpx.HTTPError):
            async with httpx.AsyncClient() as client:
                answer = await client.get(f"http://127.0.0.1:{self.ports[number]}/{path}")
                return answer.status_code, answer.text
        return 0, ""

    def leader(self) -> str:
        """Who leads, by the Lease."""
        lease = self.server.find(LEASES, "tailrace-operator")
        return str(lease["spec"]["holderIdentity"]) if lease else ""

    def condition(self, condition: str, name: str = "main") -> tuple[str, str, str]:
        """Status, reason and message of a condition; empty: there is none."""
        found = self.server.find(STREAM_CLUSTERS, name) or {}
        for item in found.get("status", {}).get("conditions", []):
            if item["type"] == condition:
                return item["status"], item["reason"], item["message"]
        return "", "", ""

    async def until_condition(self, condition: str, status: str, reason: str, name: str = "main") -> str:
        """Wait for a condition; its message."""
        await until(
            lambda: self.condition(condition, name)[:2] == (status, reason),
            lambda: f"{self.condition(condition, name)}; {self.log()[-5:]}",
        )
        return self.condition(condition, name)[2]

    def children(self) -> dict[str, list[str]]:
        """Names of all children by kind."""
        found = {kind.kind: [item["metadata"]["name"] for item in self.server.all(kind)] for kind in CHILDREN}
        return {kind: names for kind, names in found.items() if names}


async def until(holds: Callable[[], bool], describe: Callable[[], str] = lambda: "") -> None:
    """Wait until something holds; other processes have no other way to say so."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                if holds():
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"it did not come to hold: {describe()}") from None


async def until_answer(ask: Callable[[], Awaitable[tuple[int, str]]], code: int) -> str:
    """Wait for an answer with that code; its text."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found, text = await ask()
            if found == code:
                return text
            await asyncio.sleep(0.1)
