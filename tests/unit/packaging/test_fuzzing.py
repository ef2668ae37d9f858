"""The fuzzing of decoders: its targets reach them, and an exception that is not documented is a finding."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import targets

RUN = Path(__file__).resolve().parents[2] / "fuzz/fuzz.py"


def test_every_target_is_named() -> None:
    files = {path.stem for path in (RUN.parent / "targets").glob("*.py")} - {"__init__"}
    assert files == set(targets.NAMES)


@pytest.mark.parametrize("name", targets.NAMES)
def test_seeds_are_decoded(name: str) -> None:
    target = targets.load(name)
    seeds = list(target.seeds())
    assert seeds
    assert all(targets.check(target, data) for data in seeds)


@pytest.mark.parametrize("name", targets.NAMES)
def test_damaged_seeds_are_refused_with_documented_exceptions(name: str) -> None:
    target = targets.load(name)
    refused = 0
    for data in target.seeds():
        for position in range(0, len(data), 1 + len(data) // 50):
            damaged = bytearray(data)
            damaged[position] ^= 0xFF
            refused += not targets.check(target, bytes(damaged))
        refused += not targets.check(target, data[: len(data) // 2])
    assert refused


PLACES = {
    "wire": "tailrace.wire.fields.TextField.decode",
    "frames": "tailrace.log.frames.judge_frame",
    "claims": "tailrace.log.claims.Claim.decode",
    "operations": "tailrace.segmentstore.metadata.fields.Reader._decoded",
    "checkpoints": "tailrace.segmentstore.metadata.checkpoint.load",
    "snapshots": "tailrace.segmentstore.tier2.snapshot.Snapshot.load",
    "chunks": "tailrace.storage.chunks.decode_header",
    "attributes": "tailrace.segmentstore.attributes.page.decode_page",
    "tables": "targets.tables.decode_record",
    "records": "tailrace.controller.metadata.records.decode",
}
"""A part of each target's decoder."""


@pytest.mark.parametrize("name", targets.NAMES)
def test_a_decoder_that_raises_a_bare_value_error_is_a_finding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(*values: object) -> object:
        raise ValueError("planted")

    target = targets.load(name)
    seeds = list(target.seeds())
    monkeypatch.setattr(PLACES[name], planted)
    with pytest.raises((ValueError, AssertionError)) as raised:
        _ = [targets.check(target, data) for data in seeds]
    assert "planted" in f"{raised.value} {raised.value.__cause__}"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUN), *arguments], capture_output=True, text=True, timeout=300, check=False
    )


def test_a_target_runs_as_many_inputs_as_asked_for() -> None:
    done = run("--target", "claims", "--runs", "500", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (outcome,) = json.loads(done.stdout)["targets"]
    assert (outcome["inputs"], outcome["problem"], outcome["finding"]) == (500, "", "")


def test_an_unknown_target_is_named() -> None:
    done = run("--target", "nonsense")
    assert (done.returncode, "there is no target nonsense; there are wire" in done.stderr) == (2, True)
