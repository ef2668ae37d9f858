"""Runs programs as the first process of a PID namespace: starts, restarts, holds them, and reaps every orphan."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localcluster.errors import ClusterError

RESTART_DELAY_S = 1.0
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
HOLDS = ("hang", "refuse")  # stopped where it stands; or ended, and not started until it is released


@dataclass
class Component:
    """A program that is to run all the time."""

    name: str
    command: Sequence[str]
    pid: int | None = None
    restarts: int = 0
    held: str | None = None
    release: asyncio.TimerHandle | None = field(default=None, repr=False)


class Supervisor:
    """All children of this process. Every exit is noticed here, also of orphans that became its children."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self._logs = logs
        self._environment = dict(environment)
        self._components: dict[str, Component] = {}
        self._by_pid: dict[int, Component] = {}
        self._commands: dict[int, asyncio.Future[int]] = {}

    def attach(self) -> None:
        """Begin to notice exits; needs a running event loop."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    def start(self, name: str, command: Sequence[str]) -> None:
        """Run a program from now on."""
        self._components[name] = Component(name, command)
        self._spawn(self._components[name])

    async def run(self, name: str, command: Sequence[str]) -> int:
        """Run a program once; returns its exit code (negative: a signal)."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._commands[self._launch(name, command)] = future
        return await future

    def hold(self, name: str, how: str, limit_s: float) -> None:
        """Take a component away for up to ``limit_s`` seconds; a second hold replaces the first."""
        component = self._component(name)
        if how not in HOLDS:
            raise ClusterError(f"{how!r} is no way to hold a component: {' or '.join(HOLDS)}")
        self.release(name)
        component.held = how
        component.release = asyncio.get_running_loop().call_later(limit_s, self.release, name)
        if component.pid is not None:
            os.kill(component.pid, signal.SIGSTOP if how == "hang" else signal.SIGKILL)

    def release(self, name: str) -> None:
        """Let a component go on; nothing happens to one that is not held."""
        component = self._component(name)
        if component.release is not None:
            component.release.cancel()
            component.release = None
        how, component.held = component.held, None
        if how == "hang" and component.pid is not None:
            os.kill(component.pid, signal.SIGCONT)
        elif how == "refuse" and component.pid is None:
            self._spawn(component)

    def status(self) -> dict[str, dict[str, object]]:
        """Name → process, number of restarts, hold."""
        return {
            name: {"pid": component.pid, "restarts": component.restarts, "held": component.held}
            for name, component in self._components.items()
        }

    def _component(self, name: str) -> Component:
        if name not in self._components:
            raise ClusterError(f"no component {name!r} runs; there are {', '.join(sorted(self._components))}")
        return self._components[name]

    def _spawn(self, component: Component) -> None:
        if component.pid is None and component.held is None:
            component.pid = self._launch(component.name, component.command)
            self._by_pid[component.pid] = component

    def _launch(self, name: str, command: Sequence[str]) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self._logs / f"{name}.log"), flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        return os.posix_spawnp(
            command[0],
            list(command),
            self._environment,
            file_actions=actions,
            setsid=True,
            setsigdef=IGNORED_BY_PYTHON,
        )

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._ended(pid, os.waitstatus_to_exitcode(status))

    def _ended(self, pid: int, code: int) -> None:
        if pid in self._commands:
            self._commands.pop(pid).set_result(code)
        elif pid in self._by_pid:
            component = self._by_pid.pop(pid)
            component.pid = None
            with (self._logs / f"{component.name}.log").open("a") as log:
                log.write(f"=== {component.name} ended with {code}\n")
            if component.held is None:
                component.restarts += 1
                asyncio.get_running_loop().call_later(RESTART_DELAY_S, self._spawn, component)
