"""A standalone server for the published clients, in a process of its own, and the environments those clients need.

TAILRACE_COMPAT_CONTROLLER (and TAILRACE_COMPAT_STORE) name a server that runs already, to be tested instead of ours;
TAILRACE_COMPAT_SCALE is then the JSON list of a command that scales, with {scope}, {stream} and {segments} in it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
READY_DEADLINE_S = 180.0
STOP_DEADLINE_S = 120.0
LOG_TAIL_CHARACTERS = 4000


@dataclass(frozen=True)
class CompatServer:
    """The server under test."""

    controller: str
    """``tcp://HOST:PORT``, the form of the clients."""
    store: str
    """``HOST:PORT`` of a segment store."""
    scale_command: list[str]
    """A command that scales: {scope}, {stream} and {segments} stand for its values."""

    def environment(self, profile: str) -> dict[str, str]:
        """What a child that tests the server finds in its environment."""
        return {
            **os.environ,
            "TAILRACE_CONTROLLER": self.controller,
            "TAILRACE_COMPAT_CONTROLLER": self.controller,
            "TAILRACE_COMPAT_SCALE": json.dumps(self.scale_command),
            "TAILRACE_TEST_PROFILE": profile,
            "RUST_BACKTRACE": "0",
        }


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:] if log.exists() else "(no log)"


def _wait_until_ready(process: subprocess.Popen[bytes], ready: Path, log: Path) -> dict[str, object]:
    deadline = time.monotonic() + READY_DEADLINE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}:\n{_tail(log)}")
        if ready.exists():
            report: dict[str, object] = json.loads(ready.read_text())
            return report
        time.sleep(0.05)  # polling another process: the ready file is its way to say that it is ready
    raise RuntimeError(f"the server was not ready within {READY_DEADLINE_S:.0f} s:\n{_tail(log)}")


def _end(process: subprocess.Popen[bytes], log: Path) -> None:
    """Asks the server to end; killing it is the last resort, and a failure."""
    if process.poll() is not None:
        raise RuntimeError(f"the server ended with {process.returncode} while it was tested:\n{_tail(log)}")
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise RuntimeError(f"the server did not end within {STOP_DEADLINE_S:.0f} s of SIGTERM:\n{_tail(log)}") from None
    if code not in (0, -signal.SIGTERM):
        raise RuntimeError(f"the server ended with {code}:\n{_tail(log)}")


def _check_kernel(pid: int) -> None:
    """The server runs on the kernel that the environment asks for: native, or with TAILRACE_PURE=1 on its twins."""
    is_native = "/tailrace/kernel/_" in Path(f"/proc/{pid}/maps").read_text()
    if is_native == (os.environ.get("TAILRACE_PURE") == "1"):
        raise RuntimeError(f"the server runs on the {'native' if is_native else 'pure'} kernel")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The tests of the protocol itself, and some of a published client, run over both kinds of log."""
    if "log_kind" in metafunc.fixturenames:
        both = {"wire", "python"} & set(metafunc.definition.path.relative_to(Path(__file__).parent).parts)
        kinds = ["file", "object"] if both and "TAILRACE_COMPAT_CONTROLLER" not in os.environ else ["file"]
        metafunc.parametrize("log_kind", kinds, scope="session")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, log_kind: str) -> Iterator[CompatServer]:
    """Our standalone server on ephemeral ports over a temporary folder (or the one the environment names)."""
    if "TAILRACE_COMPAT_CONTROLLER" in os.environ:
        scale = json.loads(os.environ.get("TAILRACE_COMPAT_SCALE", "[]"))
        yield CompatServer(os.environ["TAILRACE_COMPAT_CONTROLLER"], os.environ.get("TAILRACE_COMPAT_STORE", ""), scale)
        return
    folder = tmp_path_factory.mktemp("standalone")
    ready, log = folder / "ready.json", folder / "log"
    ports = [word for port in ("controller", "rest", "store", "admin") for word in (f"--{port}-port", "0")]
    cli = [sys.executable, "-m", "tailrace.cli"]
    arguments = [
        *cli,
        "standalone",
        "--data",
        str(folder / "data"),
        "--log",
        log_kind,
        *ports,
        "--ready-file",
        str(ready),
        "--retention-period",
        "1s",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(arguments, stdout=output, stderr=subprocess.STDOUT)
    try:
        report = _wait_until_ready(process, ready, log)
        _check_kernel(process.pid)
        stores = report["stores"]
        assert isinstance(stores, list)
        scale = [*cli, "stream", "scale", "{scope}/{stream}", "--segments", "{segments}"]
        yield CompatServer(str(report["controller"]), str(stores[0]), scale)
        _end(process, log)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


RunChild = Callable[..., str]


@pytest.fixture
def run_child(server: CompatServer, test_profile: str, tmp_path: Path) -> RunChild:
    """Runs a command against the server in a process group of its own, which is killed after ``limit_s``.

    Returns its output; fails with its end when the exit code is not 0.
    """

    def run(arguments: list[str], limit_s: float = 180) -> str:
        output = tmp_path / f"output-{time.monotonic_ns()}"
        environment = {**server.environment(test_profile), "TMPDIR": str(tmp_path)}
        with output.open("wb") as sink:
            child = subprocess.Popen(
                arguments, env=environment, cwd=tmp_path, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            code: int | None = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # Whatever the child has started belongs to its group and must not outlive it.
            if child.poll() is None or _group_exists(child.pid):
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        text = output.read_text(errors="replace")
        if code is None:
            pytest.fail(f"{arguments} did not end within {limit_s} s:\n{text[-LOG_TAIL_CHARACTERS:]}", pytrace=False)
        if code != 0:
            pytest.fail(f"{arguments} ended with {code}:\n{text[-LOG_TAIL_CHARACTERS:]}", pytrace=False)
        return text

    return run


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
