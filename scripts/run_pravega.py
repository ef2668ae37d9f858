#!/usr/bin/env python3
"""Runs the published Pravega 0.13 in one process with everything in memory, to measure it beside Tailrace.

Downloads its jars on first use, into the user's cache. Prints one line when it serves, and runs until Ctrl-C or
SIGTERM. Needs Java 17 and Maven. How it is used: docs/performance.md#pravega.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

POM = Path(__file__).resolve().parent.parent / "tests/compat/pravega/pom.xml"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace"
DOWNLOAD_LIMIT_S, START_LIMIT_S, END_LIMIT_S = 900, 120, 30
MAIN = "io.pravega.local.LocalPravegaEmulator"
READY = "running locally"
SETTINGS_CLASS = "io/pravega/local/InProcPravegaCluster.class"
FIXED_CACHE_BYTES = 128 << 20
LONG_CONSTANT = 5
"""Tag of a long in the pool of constants of a class file."""
OPENED = ("java.nio", "sun.nio.ch", "java.lang", "java.util", "java.lang.reflect", "jdk.internal.misc")
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}


class PeerError(Exception):
    """It cannot be run; the message says why."""


def main() -> int:
    """The command line."""
    options = _parser().parse_args()
    try:
        jars = downloaded()
        if options.jars:
            print(jars)
            return 0
        with tempfile.TemporaryDirectory(prefix="tailrace-pravega-") as name:
            return serve(jars, Path(name), options.port, options.cache, options.heap)
    except PeerError as error:
        print(f"run_pravega: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port of its controller on 127.0.0.1 (a free one)")
    parser.add_argument(
        "--cache",
        type=_size,
        default=FIXED_CACHE_BYTES,
        metavar="SIZE",
        help="its block cache (128MiB, which it fixes; large events overrun that)",
    )
    parser.add_argument("--jars", action="store_true", help="print the folder of its jars, and do not run it")
    parser.add_argument("--heap", type=_size, default=6 << 30, metavar="SIZE", help="heap, with log and Tier 2 (6GiB)")
    return parser


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+)(MiB|GiB)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text} is no size such as 2GiB or 512MiB")
    return int(match[1]) * UNITS[match[2]]


_size.__name__ = "size"  # argparse calls it so


def downloaded() -> Path:
    """The folder of the jars. Raises PeerError."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise PeerError(f"needs {tool} (packages openjdk-17-jdk-headless and maven)")
    final = CACHE / f"pravega-{hashlib.sha256(POM.read_bytes()).hexdigest()[:16]}"
    if final.exists():
        return final
    CACHE.mkdir(parents=True, exist_ok=True)
    print("downloading Pravega, some 370 jars", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="pravega-", dir=CACHE) as staging:
        # A copy: Maven writes beside the file that it is given.
        shutil.copy(POM, staging)
        jars = Path(staging) / "jars"
        goal = ("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}")
        command = ("mvn", "--batch-mode", "--quiet", "--file", f"{staging}/pom.xml", *goal)
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            raise PeerError(f"the download did not end within {DOWNLOAD_LIMIT_S} s") from None
        if ended.returncode != 0:
            error = next((line for line in ended.stdout.splitlines() if "ERROR" in line), ended.stdout[-200:])
            raise PeerError(f"the download failed: {error}")
        with contextlib.suppress(OSError):  # another process was faster
            jars.rename(final)
    return final


def resized(jars: Path, folder: Path, cache_bytes: int) -> None:
    """Write the class that fixes the size of the cache with another size into a folder. Raises PeerError."""
    (jar,) = jars.glob("pravega-standalone-*.jar")
    with zipfile.ZipFile(jar) as archive:
        content = archive.read(SETTINGS_CLASS)
    fixed = struct.pack(">Bq", LONG_CONSTANT, FIXED_CACHE_BYTES)
    if content.count(fixed) != 1:
        raise PeerError(f"{jar.name} does not fix the size of its cache where it is expected; omit --cache")
    target = folder / SETTINGS_CLASS
    target.parent.mkdir(parents=True)
    target.write_bytes(content.replace(fixed, struct.pack(">Bq", LONG_CONSTANT, cache_bytes)))


def serve(jars: Path, folder: Path, port: int, cache_bytes: int, heap_bytes: int) -> int:
    """Run it until a signal; returns the exit code. Raises PeerError when it does not start."""
    class_path = [str(jars / "*")]
    if cache_bytes != FIXED_CACHE_BYTES:
        resized(jars, folder / "classes", cache_bytes)
        class_path.insert(0, str(folder / "classes"))
    empty = folder / "empty.properties"
    empty.touch()
    zookeeper, store, rest, free = _free_ports(4)
    port = port or free
    settings = {
        "io.netty.tryReflectionSetAccessible": "true",
        "singlenode.configurationFile": empty,
        "singlenode.zk.port": zookeeper,
        "singlenode.segmentStore.port": store,
        "singlenode.controller.rpc.port": port,
        "singlenode.controller.rest.enable": "false",
        "singlenode.controller.rest.port": rest,
        "java.io.tmpdir": folder,
    }
    command = [
        *("java", f"-Xmx{heap_bytes >> 20}m", f"-XX:MaxDirectMemorySize={(cache_bytes >> 20) + 1024}m"),
        *(word for package in OPENED for word in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")),
        *(f"-D{name}={value}" for name, value in settings.items()),
        *("-cp", ":".join(class_path), MAIN),
    ]
    log = folder / "log"
    with log.open("ab") as output:
        # Its controller writes a log of its own below the folder where it runs.
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: process.terminate())
    try:
        _wait_until_ready(process, log)
        print(f"Pravega serves at tcp://127.0.0.1:{port}", flush=True)
        _keep_short(process, log)
        return 0
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    """Ports of which each was free just now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    ends_at_s = time.monotonic() + START_LIMIT_S
    while READY not in (text := log.read_text(errors="replace")):
        if process.poll() is not None:
            last = (text.strip().splitlines() or ["it wrote nothing"])[-1]
            raise PeerError(f"Pravega ended with {process.returncode}: {last}")
        if time.monotonic() > ends_at_s:
            raise PeerError(f"Pravega did not serve within {START_LIMIT_S} s")
        time.sleep(0.2)


def _keep_short(process: subprocess.Popen[bytes], log: Path) -> None:
    """Empty the log now and then until the process ends: it writes several lines for each segment."""
    while process.poll() is None:
        time.sleep(1.0)
        if log.stat().st_size > UNITS["GiB"]:
            os.truncate(log, 0)


if __name__ == "__main__":
    sys.exit(main())
