"""Checks spec/ObjectLog.tla with TLC (``make spec``): the good models hold, and every planted fault is found.

Prints states, depth and time for each model of spec/models.toml; exit 1 on anything unexpected. ``check_spec.py JAR
[NAME]``: only the models whose names contain NAME; with one model left, TLC's own output is printed, too.
``check_spec.py --cached JAR``: prints the result of the last check instead when neither spec/ nor TLC nor this program
has changed since. Results are kept in the user's cache, by the hash of all three.
"""

import argparse
import datetime
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

SPEC = Path(__file__).resolve().parent.parent / "spec"
MODULE = "ObjectLog"
INVARIANTS = (
    "TypeOK",
    "NoSplitBrain",
    "NoAcknowledgedFrameLost",
    "NothingUntieredDeleted",
    "PrefixesGrow",
    "RecoveryIdempotent",
    "NoFalseAlarm",
)
LIMIT_S = 1500
"""Of a model. It finds what hangs: a model takes less than a minute of processor, but gives way to all else in CI."""
HEAP_MIB = 1024

_STATES = re.compile(r"(\d+) states generated.*?, (\d+) distinct states found, (\d+) states left", re.DOTALL)
_DEPTH = re.compile(r"depth of the complete state graph search is (\d+)")
_VIOLATED = re.compile(r"Invariant (\w+) is violated")
_COMPLETE = "Model checking completed. No error has been found."


@dataclass(frozen=True)
class Model:
    """One model. A good one has the fault "none", violates "" and is held to all invariants; others to one."""

    name: str
    fault: str
    violates: str
    constants: dict[str, str]

    def configuration(self) -> str:
        """TLC's configuration file."""
        constants = "".join(f"    {name} = {value}\n" for name, value in self.constants.items())
        invariants = self.violates or " ".join(INVARIANTS)
        return f'SPECIFICATION Spec\nCONSTANTS\n{constants}    Fault = "{self.fault}"\nINVARIANTS {invariants}\n'


@dataclass(frozen=True)
class Outcome:
    """What TLC found. ``violated`` is "" when no state of all breaks an invariant, None when TLC failed."""

    violated: str | None
    states: str
    depth: str
    seconds: float
    output: str


def load() -> list[Model]:
    """The models of spec/models.toml. Raises SystemExit when a fault has no model, or an invariant no fault."""
    with (SPEC / "models.toml").open("rb") as file:
        tables = tomllib.load(file)
    models = [_model(entry, "none") for entry in tables["good"]]
    models += [_model(entry, entry["name"]) for entry in tables["fault"]]
    known = re.search(r"Faults == \{(.*?)\}", (SPEC / f"{MODULE}.tla").read_text(), re.DOTALL)
    planted = set(re.findall(r'"(\w+)"', known[1] if known else ""))
    if planted != {model.fault for model in models}:
        raise SystemExit(f"faults of the specification and of models.toml differ: {sorted(planted)}")
    if {"TypeOK", ""} | {model.violates for model in models} != {"", *INVARIANTS}:
        raise SystemExit("models.toml: an invariant without a fault that violates it")
    return models


def _model(entry: dict[str, object], fault: str) -> Model:
    def set_of(numbers: object) -> str:
        return "{" + ", ".join(map(str, numbers if isinstance(numbers, list) else [])) + "}"

    owners = entry["owners"]
    if not isinstance(owners, int):
        raise SystemExit(f"models.toml: owners of {entry['name']}")
    constants = {
        "Owners": set_of(list(range(1, owners + 1))),
        "MaxEpoch": str(entry["epochs"]),
        "MaxFrame": str(entry["frames"]),
        "MaxLosses": str(entry.get("losses", 0)),
        "MaxSkip": str(entry.get("skip", 0)),
        "Truncating": set_of(entry.get("truncating", [])),
    }
    return Model(str(entry["name"]), fault, str(entry.get("violates", "")), constants)


def check(jar: str, model: Model) -> Outcome:
    """Run TLC on one core, with everything that it writes in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(SPEC / f"{MODULE}.tla", folder)  # TLC looks for a configuration beside its module
        (Path(folder) / f"{MODULE}.cfg").write_text(model.configuration())
        tuning = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Xmx{HEAP_MIB}m"]  # most runs last a second
        java = ["java", *tuning, f"-Djava.io.tmpdir={folder}", "-cp", jar, "tlc2.TLC"]
        options = ["-nowarning", "-deadlock", "-workers", "1", "-fp", "0", "-metadir", folder]
        started = time.monotonic()
        try:
            done = subprocess.run(
                [*java, *options, f"{MODULE}.tla"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(None, "-", "-", time.monotonic() - started, f"not done within {LIMIT_S} s")
        return _outcome(done.returncode, done.stdout, time.monotonic() - started)


def _outcome(code: int, output: str, seconds: float) -> Outcome:
    counts = _STATES.findall(output)
    depth = _DEPTH.search(output)
    violated = _VIOLATED.search(output)
    found = violated[1] if violated else None
    if code == 0 and _COMPLETE in output and counts and counts[-1][2] == "0":
        found = ""
    return Outcome(found, counts[-1][1] if counts else "-", depth[1] if depth else "-", seconds, output)


def main() -> int:
    """Check the models; 1 when any does not end as it should."""
    parser = argparse.ArgumentParser(description="Checks the models of spec/ with TLC.")
    parser.add_argument("--cached", action="store_true", help="take the result of an earlier check of the same models")
    parser.add_argument("jar")
    parser.add_argument("name", nargs="?", default="", help="only models whose names contain this")
    options = parser.parse_args()
    kept = _kept(Path(options.jar))
    if options.cached and not options.name and kept.exists():
        print(kept.read_text(), end="")
        return 0
    models = [model for model in load() if options.name in model.name]
    if not models:
        raise SystemExit(f"no model is named {options.name}")
    status = 0
    table = [f"{'model':<28} {'states':>8} {'depth':>5} {'s':>6}"]
    print(table[0])
    for model in models:
        outcome = check(options.jar, model)
        as_expected = outcome.violated == model.violates
        said = outcome.violated or ("holds" if outcome.violated == "" else "TLC FAILED")
        verdict = said if as_expected else f"UNEXPECTED: {said}, not {model.violates or 'holds'}"
        table.append(f"{model.name:<28} {outcome.states:>8} {outcome.depth:>5} {outcome.seconds:>6.1f}  {verdict}")
        print(table[-1], flush=True)
        if not as_expected:
            status = 1
        if not as_expected or len(models) == 1:
            print(outcome.output)
    if status == 0 and not options.name:
        _keep(kept, table)
    return status


def _kept(jar: Path) -> Path:
    """Where the result of checking these models with this TLC and this program is kept."""
    digest = hashlib.sha256()
    for path in (jar, Path(__file__), *sorted(path for path in SPEC.rglob("*") if path.is_file())):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "tailrace" / "spec" / f"{digest.hexdigest()[:32]}.txt"


def _keep(kept: Path, table: list[str]) -> None:
    """Keep a result in which every model ended as it should."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    now = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"
    with tempfile.NamedTemporaryFile("w", dir=kept.parent, delete=False) as file:
        file.write(f"unchanged since {now} (cached)\n" + "\n".join(table) + "\n")
    Path(file.name).replace(kept)


if __name__ == "__main__":
    sys.exit(main())
