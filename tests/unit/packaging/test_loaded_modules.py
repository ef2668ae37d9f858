"""What a process loads at its start: not more than it uses, because loading modules is most of the time of a start."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("kopf", "kubernetes", "matplotlib", "numpy", "pandas", "pyarrow", "pyspark")
DEADLINE_S = 120.0


def loaded(code: str) -> set[str]:
    """The names of all modules after that code, in a process of its own."""
    command = [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=DEADLINE_S)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("module", "others"),
    [
        ("tailrace.processes.standalone", ("tailrace.cli",)),
        ("tailrace.processes.segment_store_pod", ("grpc", "tailrace.client", "tailrace.controller")),
        ("tailrace.segmentstore.worker.process", ("grpc", "tailrace.client", "tailrace.controller")),
    ],
)
def test_servers_load_what_they_use(module: str, others: tuple[str, ...]) -> None:
    found = loaded(f"import {module}")
    assert module in found
    assert not found & {*HEAVY, *others}


def test_a_command_loads_its_own_modules_only() -> None:
    found = loaded("from tailrace.cli.main import application; application(['inspect'])")
    commands = {name.rpartition(".")[2] for name in found if name.startswith("tailrace.cli.commands.")}
    assert "inspect" in commands
    assert not commands & {"bench", "pipeline", "pods", "read", "restore", "scope", "server", "stream", "write"}
    assert not found & {*HEAVY, "grpc", "tailrace.client", "tailrace.processes", "tailrace.segmentstore"}
