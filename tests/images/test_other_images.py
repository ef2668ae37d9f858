"""The images of tests and trials hold what those need, with the same rights as the product's: none."""

from __future__ import annotations

import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.imageroot import ImageRoot, end
from harness.ports import free_ports

pytestmark = pytest.mark.timeout(600)  # the first one waits for the images

MINIO_DEADLINE_S = 120.0


@pytest.fixture
def unpacked(archives: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ImageRoot]:
    """The image that the test names."""
    yield ImageRoot(archives[request.param], tmp_path / "image")
    shutil.rmtree(tmp_path / "image")


@pytest.mark.parametrize("unpacked", ["tailrace-test"], indirect=True)
def test_the_python_client_loads_beside_the_product(unpacked: ImageRoot) -> None:
    assert unpacked.run("python3.11", "-c", "import pravega_client, tailrace.client; print('both')").stdout == "both\n"


@pytest.mark.parametrize("unpacked", ["tailrace-test-java"], indirect=True)
def test_the_java_client_and_python_start(unpacked: ImageRoot) -> None:
    program = ["java", "-Xmx64m", "io.tailrace.compat.Main"]
    done = subprocess.run(unpacked.command(*program), capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.startswith("usage: COMMAND URI")
    assert unpacked.run("python3.11", "-c", "print('here')").stdout == "here\n"


@pytest.mark.parametrize("unpacked", ["minio"], indirect=True)
def test_minio_serves(unpacked: ImageRoot) -> None:
    port, console = free_ports(2)
    (entry,) = unpacked.config["Entrypoint"]
    addresses = ("--address", f"127.0.0.1:{port}", "--console-address", f"127.0.0.1:{console}")
    command = unpacked.command(entry, "server", "/tmp/data", *addresses)
    with (unpacked.scratch / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            deadline = time.monotonic() + MINIO_DEADLINE_S
            while not _is_live(port):
                assert server.poll() is None, (unpacked.scratch / "log").read_text()
                assert time.monotonic() < deadline, (unpacked.scratch / "log").read_text()
                time.sleep(0.05)
        finally:
            end(server)


def _is_live(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/minio/health/live", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError):
        return False
