"""A standalone server as a child process, and the command line against it, also as child processes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness import daily
from harness.server import READY_DEADLINE_S as READY_WITHIN_S
from tailrace.cli.demo.server import Endpoints, ServerProcess
from tailrace.cli.main import run

DAILY = (
    ("cli/test_cli_bench.py",),
    ("cli/test_cli_restore.py", "cli/test_operator_release.py"),
    ("cli/test_cli_bench_log.py", "cli/test_cli_bench_recovery.py", "cli/test_cli_verify.py"),
)
"""Commands that run for long: CI runs some of these groups each day, all other runs all of them."""
DAILY_COUNT = 1
COMMAND_DEADLINE_S = 120.0
EPHEMERAL = {"controller": 0, "rest": 0, "store": 0, "admin": 0}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the commands that have their turn on another day."""
    daily.leave_out(config, items, DAILY, DAILY_COUNT)


@pytest.fixture
def sighup_by_default() -> Iterator[None]:
    """Processes that a test starts end on SIGHUP, also when the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@dataclass(frozen=True)
class CommandLine:
    """Runs `tailrace` against one server: in this process, or in one of its own where it has standard input."""

    endpoints: Endpoints

    @property
    def environment(self) -> dict[str, str]:
        """What names the server."""
        return {**os.environ, "TAILRACE_CONTROLLER": self.endpoints.controller, "TAILRACE_ADMIN": self.endpoints.admin}

    def run(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command to its end; with `text` on its standard input."""
        apart = text or asyncio._get_running_loop() is not None  # a command runs a loop of its own
        return self._run_child(*arguments, text=text) if apart else self._run_here(*arguments)

    def _run_here(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        variables = {"TAILRACE_CONTROLLER": self.endpoints.controller, "TAILRACE_ADMIN": self.endpoints.admin}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run(arguments)
        texts = []
        for stream in (out, err):
            stream.flush()
            texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]  # a BytesIO
        return subprocess.CompletedProcess(arguments, code, *texts)

    def _run_child(self, *arguments: str, text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tailrace.cli", *arguments],
            env=self.environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=COMMAND_DEADLINE_S,
            check=False,
        )

    def ok(self, *arguments: str, text: str = "") -> str:
        """Standard output of a command that succeeds and has nothing to say on standard error."""
        ended = self.run(*arguments, text=text)
        assert ended.returncode == 0, ended.stderr
        assert "Traceback" not in ended.stderr
        return ended.stdout

    def value(self, *arguments: str, text: str = "") -> Any:
        """What a command prints with ``--json``."""
        return json.loads(self.ok(*arguments, "--json", text=text))

    def fails(self, *arguments: str, text: str = "") -> str:
        """The one line of a command that fails with exit code 1."""
        ended = self.run(*arguments, text=text)
        assert ended.returncode == 1, ended.stdout
        assert ended.stderr.count("\n") == 1, ended.stderr
        return ended.stderr.strip()

    @contextlib.asynccontextmanager
    async def running(self, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """A command with pipes, ended with SIGKILL if it still runs afterwards."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tailrace.cli", *arguments),
            env=self.environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """The command line against a server of this module."""
    server = ServerProcess(tmp_path_factory.mktemp("server"), ports=EPHEMERAL, ready_within_s=READY_WITHIN_S)
    with asyncio.Runner() as runner:
        endpoints = runner.run(server.start())
        try:
            yield CommandLine(endpoints)
        finally:
            runner.run(server.stop())


@pytest.fixture
def scope(cli: CommandLine) -> str:
    """A new scope."""
    name = f"test-{secrets.token_hex(4)}"
    cli.ok("scope", "create", name)
    return name


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """A file of 5,000 JSON lines with seven keys."""
    file = tmp_path / "lines.json"
    file.write_text("".join(json.dumps({"key": f"k{number % 7}", "n": number}) + "\n" for number in range(5000)))
    return file
