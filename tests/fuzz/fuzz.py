"""Fuzzes the decoders of durable formats and of the wire, guided by coverage (CONTRIBUTING.md#fuzzing).

    fuzz.py [--target NAME]... [--runs N | --seconds N] [--seed N] [--json]
    fuzz.py --target NAME --input FILE

``--runs``: inputs of each target; ``--seconds``: of all targets together. The same runs and seed give the same inputs.
``--input`` decodes one file, a finding perhaps. An input that ends a decoder in another exception than those that it
documents, takes a minute or needs 2 GiB is a finding: it is kept in build/fuzz/, and its bytes are printed for a test.

Exits with 1 after a finding, or when a target did not run; with 2 when a name is unknown; with 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import targets

BUILD = Path(__file__).resolve().parents[2] / "build/fuzz"
RUNS = 20_000
INPUT_BYTES_MAX = 1024
INPUT_SECONDS_MAX = 60
MEMORY_MIB_MAX = 2048
GRACE_SECONDS = 300.0
"""How much longer than asked for a target may take, on a slow machine, before it is ended."""
RUNS_SECONDS_MAX = 3600.0
INSTRUMENTED = (
    *("tailrace.wire", "tailrace.log", "tailrace.storage", "tailrace.controller.metadata"),
    *("tailrace.segmentstore.metadata", "tailrace.segmentstore.tier2"),
    *("tailrace.segmentstore.attributes", "tailrace.segmentstore.tables"),
)
"""The rooms whose coverage guides the fuzzer."""
UNKNOWN_NAME = 2
ENDED = 130
_EXECUTED = re.compile(r"^stat::number_of_executed_units:\s*(\d+)$", re.MULTILINE)
_EXCEPTION = re.compile(r"^ === Uncaught Python exception: ===\n(.*)$", re.MULTILINE)
_FUZZER_ERROR = re.compile(r"^==\d+== ?ERROR: libFuzzer: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """How the fuzzing of one target ended."""

    target: str
    inputs: int
    seconds: float
    problem: str
    """Empty: none."""
    finding: str
    """The input that led to it, in hex; empty without one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    names = options.target or list(targets.NAMES)
    if unknown := [name for name in names if name not in targets.NAMES]:
        print(f"there is no target {unknown[0]}; there are {', '.join(targets.NAMES)}", file=sys.stderr)
        return UNKNOWN_NAME
    if options.worker:
        _fuzz(names[0], options.worker)
        return 0
    if options.input:
        decoded = targets.check(targets.load(names[0]), options.input.read_bytes())
        print("decoded" if decoded else "refused with a documented exception")
        return 0
    try:
        return _run_all(names, options)
    except KeyboardInterrupt:
        return ENDED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", help="this target alone; may be repeated")
    bound = parser.add_mutually_exclusive_group()
    bound.add_argument("--runs", type=int, default=RUNS, help="inputs of each target")
    bound.add_argument("--seconds", type=int, help="time of all targets together")
    bound.add_argument("--input", type=Path, help="decode this file")
    bound.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)  # libFuzzer's arguments in a process of ours
    parser.add_argument("--seed", type=int, default=1, help="of the mutations")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _run_all(names: Sequence[str], options: argparse.Namespace) -> int:
    outcomes = []
    for name in names:
        if options.seconds is None:
            bound, limit_s = f"runs={options.runs}", RUNS_SECONDS_MAX
        else:
            seconds = max(1, options.seconds // len(names))
            bound, limit_s = f"max_total_time={seconds}", seconds + GRACE_SECONDS
        outcome = _run(name, bound, limit_s, options.seed % 2**32 or 1)
        outcomes.append(outcome)
        if not options.json:
            print(f"{name}: {outcome.problem or 'ok'}, {outcome.inputs} inputs in {outcome.seconds:.1f} s", flush=True)
            if outcome.finding:
                print(f'  input: bytes.fromhex("{outcome.finding}")', flush=True)
    passed = not any(outcome.problem for outcome in outcomes)
    if options.json:
        print(json.dumps({"passed": passed, "targets": [asdict(outcome) for outcome in outcomes]}))
    return 0 if passed else 1


def _run(name: str, bound: str, limit_s: float, seed: int) -> Outcome:
    """Fuzz one target in a process of its own: libFuzzer ends its process."""
    kept = BUILD / name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as corpus:
        for number, data in enumerate(targets.load(name).seeds()):
            Path(corpus, f"{number:03d}").write_bytes(data)
        options = [
            bound,
            f"seed={seed}",
            f"artifact_prefix={kept}/",
            f"timeout={INPUT_SECONDS_MAX}",
            f"rss_limit_mb={MEMORY_MIB_MAX}",
            f"max_len={INPUT_BYTES_MAX}",
            "print_final_stats=1",
            "detect_leaks=0",
        ]
        command = [sys.executable, __file__, "--target", name, "--worker", corpus, *options]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            return Outcome(name, 0, time.monotonic() - began, f"not done within {limit_s:.0f} s", "")
    seconds = time.monotonic() - began
    (kept / "output").write_text(done.stdout + done.stderr)
    return _outcome(name, seconds, done, sorted(path for path in kept.iterdir() if path.name != "output"))


def _outcome(name: str, seconds: float, done: subprocess.CompletedProcess[str], found: Sequence[Path]) -> Outcome:
    executed = _EXECUTED.search(done.stderr)
    inputs = int(executed[1]) if executed else 0
    text = done.stdout + done.stderr
    problem = ""
    if found or done.returncode:
        reason = _EXCEPTION.search(text) or _FUZZER_ERROR.search(text)
        problem = f"FAILED ({reason[1] if reason else f'exit code {done.returncode}, see build/fuzz/{name}/output'})"
    elif inputs == 0:
        problem = "FAILED (no input was tried)"
    return Outcome(name, inputs, seconds, problem, found[0].read_bytes().hex() if found else "")


def _fuzz(name: str, arguments: Sequence[str]) -> None:
    """Fuzz until libFuzzer ends this process; `arguments`: the corpus' folder and libFuzzer's options."""
    import atheris  # here: only processes that fuzz need it

    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        target = targets.load(name)
    corpus, *options = arguments
    command = [sys.argv[0], *(f"-{option}" for option in options), corpus]
    atheris.Setup(command, lambda data: targets.check(target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
