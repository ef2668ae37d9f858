"""What every suite shares: test profiles, seeds, leak checks, the published clients and a real MinIO server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import psutil
import pytest
import structlog

from harness.ports import free_ports

REPOSITORY = Path(__file__).resolve().parent.parent
PROFILE = os.environ.get("TAILRACE_TEST_PROFILE", "ci")
SEED = int(os.environ.get("TAILRACE_TEST_SEED", "0")) or secrets.randbelow(2**32)
os.environ["TAILRACE_TEST_SEED"] = str(SEED)  # workers of pytest-xdist draw from the seed that the header names
MINIO_READY_DEADLINE_S = 60.0

hypothesis.settings.register_profile("ci", deadline=None, max_examples=100, print_blob=True)
hypothesis.settings.register_profile("full", deadline=None, max_examples=1000, print_blob=True)
if PROFILE not in ("ci", "full"):
    raise pytest.UsageError(f"TAILRACE_TEST_PROFILE is {PROFILE!r}: ci or full")
hypothesis.settings.load_profile(PROFILE)


def pytest_configure() -> None:
    """Programs that are tested hear of interrupts, also where the tests themselves run in the background of a shell."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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


@dataclass(frozen=True)
class MinioServer:
    """A running MinIO server."""

    endpoint: str
    """``http://127.0.0.1:PORT``."""
    access_key: str
    secret_key: str

    def new_bucket(self) -> str:
        """Creates an empty bucket and returns its name."""
        from minio import Minio  # here, not above: its native parts do not load under the sanitizers

        name = f"test-{secrets.token_hex(8)}"
        admin = Minio(self.endpoint.removeprefix("http://"), self.access_key, self.secret_key, secure=False)
        admin.make_bucket(name)
        return name


def _wait_until_ready(server: subprocess.Popen[bytes], endpoint: str, log: Path) -> None:
    deadline = time.monotonic() + MINIO_READY_DEADLINE_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"MinIO ended with {server.returncode}: {log.read_text()[-2000:]}")
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError),
            urllib.request.urlopen(f"{endpoint}/minio/health/ready", timeout=1) as reply,
        ):
            if reply.status == 200:
                return
        time.sleep(0.05)  # polling another process: it has no other way to say that it is ready
    raise RuntimeError(f"MinIO was not ready within {MINIO_READY_DEADLINE_S} s: {log.read_text()[-2000:]}")


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
def minio_server(minio_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    """A real MinIO server on loopback over a temporary folder; ``new_bucket()`` gives each test its own."""
    folder = tmp_path_factory.mktemp("minio")
    log = folder / "log"
    access_key, secret_key = "tailrace-tests", secrets.token_hex(16)
    endpoint = f"http://127.0.0.1:{free_ports(1)[0]}"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "MINIO_ROOT_USER": access_key,
        "MINIO_ROOT_PASSWORD": secret_key,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
    }
    arguments = [str(minio_binary), "server", "--address", endpoint.removeprefix("http://"), str(folder / "data")]
    with log.open("wb") as output:
        server = subprocess.Popen(arguments, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_until_ready(server, endpoint, log)
        yield MinioServer(endpoint, access_key, secret_key)
    finally:
        server.terminate()
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
