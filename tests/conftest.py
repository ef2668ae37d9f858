"""What every suite shares: test profiles, seeds, leak checks, the published clients and a real MinIO server."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import psutil
import pytest
import structlog

if TYPE_CHECKING:
    from harness.minio import MinioProcess

# Else each logged traceback is drawn with frames and local variables, which takes longer than most tests.
structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback

REPOSITORY = Path(__file__).resolve().parent.parent
PROFILE = os.environ.get("TAILRACE_TEST_PROFILE", "ci")
SEED = int(os.environ.get("TAILRACE_TEST_SEED", "0")) or secrets.randbelow(2**32)
os.environ["TAILRACE_TEST_SEED"] = str(SEED)  # workers of pytest-xdist draw from the seed that the header names

hypothesis.settings.register_profile("ci", deadline=None, max_examples=100, print_blob=True)
hypothesis.settings.register_profile("full", deadline=None, max_examples=1000, print_blob=True)
if PROFILE not in ("ci", "full"):
    raise pytest.UsageError(f"TAILRACE_TEST_PROFILE is {PROFILE!r}: ci or full")
hypothesis.settings.load_profile(PROFILE)


def pytest_configure() -> None:
    """Programs that are tested hear of interrupts, also where the tests themselves run in the background of a shell."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if longest_s := os.environ.get("TAILRACE_TEST_SLOWNESS"):
        from harness import slowness  # where pytest's path has it

        slowness.install(SEED, float(longest_s))


def pytest_report_header() -> str:
    """The line that makes a run repeatable."""
    return f"tailrace: profile {PROFILE}, seed {SEED} (TAILRACE_TEST_SEED={SEED} repeats it)"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how long clients waited in each try of each fault, also of tests that passed."""
    from harness.pace import REPORT  # where pytest's path has it

    if REPORT:
        terminalreporter.section("waits of clients")
        for line in REPORT:
            terminalreporter.write_line(line)


@pytest.fixture
def peer() -> Iterator[socket.socket]:
    """A socket of a client that is not connected yet, and does not block."""
    with socket.socket() as peer:
        peer.setblocking(False)
        yield peer


@pytest.fixture(scope="session")
def test_profile() -> str:
    """``ci`` (short forms) or ``full``."""
    return PROFILE


@pytest.fixture
def test_seed(request: pytest.FixtureRequest) -> Iterator[int]:
    """Return the seed of this run, for tests that draw their own random cases. The report of a failure repeats it."""
    yield SEED
    request.node.add_report_section("call", "seed", f"TAILRACE_TEST_SEED={SEED}")


@pytest.fixture(autouse=True)
def own_log_settings() -> Iterator[None]:
    """A test that runs a command in this process configures logs for a stream that ends with the test."""
    yield
    structlog.reset_defaults()


@pytest.fixture
async def no_leaks() -> AsyncIterator[None]:
    """Fails the test when it leaves tasks, file descriptors or child processes behind.

    Ask for it before the fixtures whose resources it is to judge: fixtures end in the opposite order.
    """
    process = psutil.Process()
    descriptors = process.num_fds()
    children = {child.pid for child in process.children()}
    yield
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not tasks, f"tasks left running: {tasks}"
    assert process.num_fds() <= descriptors, f"left open: {process.open_files()} {process.net_connections()}"
    left = {child.pid for child in process.children()} - children
    assert not left, f"child processes left: {left}"


def _prepared(script: str) -> str:
    """What a script of tests/support has made ready in the user's cache, built there on first use.

    That may take minutes, more than a test may: ``make test`` does it beforehand.
    """
    made = subprocess.run(
        [REPOSITORY / "tests/support" / script],
        env={**os.environ, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise RuntimeError(f"tests/support/{script} failed; its line on standard error says why")
    return made.stdout.strip()


@pytest.fixture(scope="session")
def minio_binary() -> Path:
    """The MinIO server binary."""
    return Path(_prepared("minio.sh"))


@pytest.fixture(scope="session")
def python_client() -> str:
    """The interpreter of an environment that holds the published Python client."""
    return _prepared("python-client.sh")


@pytest.fixture(scope="session")
def java_class_path() -> str:
    """The class path of the Java program of tests/compat/java, with the published Java client."""
    return _prepared("java-client.sh")


@pytest.fixture(scope="session")
def minio_server(minio_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioProcess]:
    """A real MinIO server on loopback over a temporary folder; ``new_bucket()`` gives each test its own."""
    from harness.minio import MinioProcess  # here, not above: its native parts do not load under the sanitizers

    server = MinioProcess(minio_binary, tmp_path_factory.mktemp("minio"))
    server.start_blocking()
    try:
        yield server
    finally:
        if server.process is not None:
            server.stop_blocking()


@pytest.fixture
async def minio(minio_server: MinioProcess) -> MinioProcess:
    """The MinIO server, for tests that stop it; it serves when a test begins."""
    if not minio_server.is_running:
        await minio_server.start()
    return minio_server
