"""The product runs in its image: read-only root, numeric user without rights, no shell, every library there."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from harness.imageroot import ImageRoot, end

pytestmark = pytest.mark.timeout(600)  # the first one waits for the images

SERVER_DEADLINE_S = 120.0
FORBIDDEN = re.compile(
    r"((^|/)(sh|bash|dash|busybox|perl|apt|apt-get|pip3?|su|mount|gcc|ensurepip|tests?|SelfTest)|bin/dpkg.*)$"
)
SMALLER_THAN_MB = 300

IMPORT_ALL = """
import importlib, pkgutil
import tailrace, tailrace_operator

def only_of_spark(name):
    assert name.startswith("tailrace.pipelines"), name

for package in (tailrace, tailrace_operator):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=only_of_spark):
        of_spark = module.name.startswith("tailrace.pipelines")  # the extra `spark` is not in this image
        if not module.name.endswith("__main__") and not of_spark:
            importlib.import_module(module.name)
import aiohttp, kopf, kubernetes.client, kubernetes.config, kubernetes.watch, minio, obstore.store, yaml
print("all")
"""

LOAD_ALL = """
import ctypes, pathlib
for top in ("/usr/lib", "/opt/tailrace"):
    for path in sorted(pathlib.Path(top).rglob("*.so")):
        ctypes.CDLL(str(path))
        print(path)
"""

RIGHTS = """
import json, os, pathlib, ssl, sys, zoneinfo
status = dict(line.split(":\\t", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
try:
    pathlib.Path("/opt/tailrace/mine").touch()
    written = None
except OSError as error:
    written = error.errno
print(json.dumps({
    "ids": [os.getuid(), os.getgid(), os.getgroups()], "rights": status["CapEff"], "written": written,
    "prefix": sys.prefix, "encoding": sys.stdout.encoding, "zone": zoneinfo.ZoneInfo("Europe/Berlin").key,
    "authorities": ssl.create_default_context().cert_store_stats()["x509_ca"],
}))
"""


def test_both_programs_start(image: ImageRoot) -> None:
    (entry,) = image.config["Entrypoint"]
    version = image.name.rpartition(":")[2]
    assert image.run(entry, "--version").stdout == f"tailrace {version}\n"
    assert image.run("tailrace", "--version").stdout == f"tailrace {version}\n"
    assert "--namespace" in image.run("tailrace-operator", "--help").stdout
    assert "--pod" in image.run("tailrace", "segmentstore", "--help").stdout
    assert "--cluster" in image.run("tailrace", "controller", "--help").stdout


def test_programs_have_no_rights_and_cannot_write(image: ImageRoot) -> None:
    seen: dict[str, Any] = json.loads(image.run("python", "-c", RIGHTS).stdout)
    assert seen.pop("authorities") > 100
    assert seen == {
        "ids": [65532, 65532, []],
        "rights": "0" * 16,
        "written": 30,  # EROFS
        "prefix": "/opt/tailrace",
        "encoding": "utf-8",
        "zone": "Europe/Berlin",
    }


def test_there_is_nothing_to_log_in_with_and_nothing_of_developers(image: ImageRoot) -> None:
    paths = {str(path) for path in image.files()}
    paths |= {str(path.relative_to(image.root)) for path in image.root.rglob("*") if path.is_dir()}
    assert sorted(path for path in paths if FORBIDDEN.search(path)) == []
    privileged = [path for path in image.root.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o6000]
    assert privileged == []
    assert "usr/share/doc/libc6/copyright" in paths, "licences come along"


def test_every_module_of_ours_is_there_and_finds_what_it_imports(image: ImageRoot) -> None:
    assert image.run("python", "-c", IMPORT_ALL).stdout == "all\n"


def test_every_library_finds_the_libraries_it_needs(image: ImageRoot) -> None:
    loaded = image.run("python", "-c", LOAD_ALL).stdout.split()
    assert {"_ssl", "_ctypes", "_uuid", "_lzma", "_bz2", "cygrpc", "_obstore", "_crc"} <= {
        Path(name).name.partition(".")[0] for name in loaded
    }


def test_everything_is_compiled_and_not_checked_against_its_source(image: ImageRoot) -> None:
    sources = [path for path in image.files() if path.suffix == ".py"]
    assert len(sources) > 2000
    for source in sources:
        compiled = image.root / source.parent / "__pycache__" / f"{source.stem}.cpython-311.pyc"
        assert compiled.read_bytes()[4:8] == bytes([1, 0, 0, 0]), source


def test_the_size_is_that_of_a_server(image: ImageRoot, archives: dict[str, Path]) -> None:
    assert archives["tailrace"].stat().st_size / 1e6 < SMALLER_THAN_MB
    assert len(image.layers) == 3, "base, dependencies, application: only the last changes with our code"


def test_a_standalone_server_serves_events(image: ImageRoot) -> None:
    (image.scratch / "data").mkdir()
    (image.scratch / "data").chmod(0o777)
    ports = [f"--{name}-port=0" for name in ("controller", "rest", "store", "admin")]
    command = image.command("tailrace", "standalone", "--data=/tmp/data", "--ready-file=/tmp/ready.json", *ports)
    with (image.scratch / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            address = _until_ready(image, server)
            client = ("tailrace", "--controller", address)
            image.run(*client, "scope", "create", "demo")
            image.run(*client, "stream", "create", "demo/sensors", "--segments", "1")
            image.run(*client, "write", "demo/sensors", text="one\ntwo\nthree\n")
            assert image.run(*client, "read", "demo/sensors").stdout == "one\ntwo\nthree\n"
        finally:
            end(server)


def _until_ready(image: ImageRoot, server: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + SERVER_DEADLINE_S
    ready = image.scratch / "ready.json"
    while not ready.exists():
        if server.poll() is not None or time.monotonic() > deadline:
            pytest.fail((image.scratch / "log").read_text())
        time.sleep(0.05)
    address: str = json.loads(ready.read_text())["controller"]
    return address
