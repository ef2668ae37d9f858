"""The published Java client against the server: the program in src/ does one thing per process."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

LIMIT_S, SLOW_LIMIT_S = 360, 600
SCENARIOS = [
    *("events", "two-readers", "transaction", "scale", "checkpoint", "truncation", "life-of-a-stream"),
    "retention",
]
READ_DEADLINE_S = 180.0
QUICK_BENCHES = ["single-100b"]
ALL_BENCHES = ["ingest-100b-1", "ingest-100b-4", "single-100b", "single-10kb", "catchup-100b-1", "tail-100b-4-1000"]


@pytest.fixture
def java(java_class_path: str, server: Any) -> Any:
    """Builds the command line: ``java("create", "scope", …)``."""

    def command(name: str, *arguments: str) -> list[str]:
        options = ["-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", java_class_path]
        return ["java", *options, "io.tailrace.compat.Main", name, server.controller, *arguments]

    return command


@pytest.mark.timeout(SLOW_LIMIT_S + 20)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_java_client(scenario: str, java: Any, run_child: Any) -> None:
    if scenario == "retention" and "TAILRACE_COMPAT_CONTROLLER" in os.environ:
        pytest.skip("needs a server that applies retention policies each second")
    limit_s = SLOW_LIMIT_S if scenario == "retention" else LIMIT_S  # it waits for rounds of the server
    assert f"ok {scenario}" in run_child(java("scenario", scenario), limit_s)


@pytest.mark.timeout(LIMIT_S + 20)
def test_verifiable_writers_and_reader(java: Any, run_child: Any, tmp_path: Path, test_profile: str) -> None:
    """What the crash tests stand on: every acknowledged event and committed transaction is read once, in order."""
    scope = f"verifiable-{time.time_ns()}"
    rounds, transactions = (200, 50) if test_profile == "full" else (50, 10)
    run_child(java("create", scope, "stream", "3"))
    commands = {
        "reader": java("verifiable-reader", scope, "stream", "group", "2", "3000"),
        "writer": java("verifiable-writer", scope, "stream", "writer", "20", "100", str(rounds)),
        "transactions": java("verifiable-txn-writer", scope, "stream", "txn", "100", str(transactions)),
    }
    outputs = {name: tmp_path / name for name in commands}
    children = {}
    for name, arguments in commands.items():
        with outputs[name].open("wb") as sink:
            children[name] = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=sink, stderr=subprocess.PIPE)
    try:
        assert children["writer"].wait(90) == 0
        assert children["transactions"].wait(90) == 0
        _until_read(outputs)
        children["reader"].communicate(timeout=90)  # closes its standard input: it ends when nothing more comes
        assert children["reader"].returncode == 0
    finally:
        for child in children.values():
            child.kill()
            child.communicate()
    acknowledged = outputs["writer"].read_text().splitlines()
    assert acknowledged.pop() == f"end {rounds}"
    outcomes = outputs["transactions"].read_text().splitlines()
    assert outcomes.pop() == f"end {transactions}"
    read = outputs["reader"].read_text().splitlines()
    assert read.pop() == f"end {len(read)}"
    expected = {f"writer-{key}:{sequence}" for key in range(20) for sequence in range(rounds)}
    assert set(acknowledged) == expected
    committed = [line.split() for line in outcomes if line.startswith("committed")]
    assert len(committed) == transactions - transactions // 5
    expected |= {f"txn:{i}" for _, first, last in committed for i in range(int(first), int(last) + 1)}
    assert len(read) == len(set(read))
    assert set(read) == expected
    _check_order(read)


def _until_read(outputs: dict[str, Path]) -> None:
    """Wait until as many events were read as the writers have stored: a reader may be late, or pause for long."""
    outcomes = [line.split() for line in outputs["transactions"].read_text().splitlines()]
    stored = len(outputs["writer"].read_text().splitlines()) - 1  # the last line has its number of rounds
    stored += sum(int(line[2]) - int(line[1]) + 1 for line in outcomes if line[0] == "committed")
    deadline_s = time.monotonic() + READ_DEADLINE_S
    while (count := outputs["reader"].read_text().count("\n")) < stored:
        assert time.monotonic() < deadline_s, f"{count} of {stored} events were read"
        time.sleep(0.1)  # polling another process: its output is its way to say so


def _check_order(read: list[str]) -> None:
    by_key: dict[str, list[int]] = defaultdict(list)
    for event in read:
        key, sequence = event.split(":")
        by_key[key].append(int(sequence))
    for key, sequences in by_key.items():
        assert sequences == sorted(sequences), key


@pytest.mark.timeout(600)
def test_bench_cases(java: Any, run_child: Any, test_profile: str) -> None:
    for case in ALL_BENCHES if test_profile == "full" else QUICK_BENCHES:
        result = json.loads(run_child(java("bench", case), 120).splitlines()[-1])
        print(result)
        assert result["case"] == case
        assert result["events"] > 0
        assert result["events_per_s"] > 0
