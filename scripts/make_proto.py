"""Generates the stubs of services/tailrace/rpc/*.proto beside them (``make proto``).

``--check`` writes nothing and exits 1, naming the files, when a committed stub differs from a fresh one.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

SERVICES = Path(__file__).resolve().parent.parent / "services"
RPC = SERVICES / "tailrace" / "rpc"
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


def generate(target: Path) -> list[Path]:
    """Writes the stubs of every .proto under ``target``, as paths below ``tailrace/rpc``, and returns them."""
    sources = sorted(RPC.glob("*.proto"))
    if not sources:
        raise SystemExit(f"no .proto files in {RPC}")
    # protoc finds the plugins of mypy-protobuf beside this interpreter
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    arguments = [
        "protoc",
        f"--proto_path={SERVICES}",
        f"--proto_path={well_known}",
        f"--python_out={target}",
        f"--mypy_out=quiet:{target}",
        f"--grpc_python_out={target}",
        f"--mypy_grpc_out=quiet:{target}",
        *(str(source.relative_to(SERVICES)) for source in sources),
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed")
    return sorted(path for path in (target / "tailrace" / "rpc").iterdir() if path.name.endswith(SUFFIXES))


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def main() -> int:
    """Runs the generator or the check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check: bool = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        fresh = generate(Path(folder))
        names = {path.name for path in fresh}
        committed = {path.name for path in RPC.iterdir() if path.name.endswith(SUFFIXES)}
        if check:
            changed = {path.name for path in fresh if _read(path) != _read(RPC / path.name)}
            differing = sorted((committed - names) | changed)
            if differing:
                print(f"stubs out of step with their .proto (run make proto): {', '.join(differing)}", file=sys.stderr)
                return 1
            return 0
        for path in fresh:
            shutil.copyfile(path, RPC / path.name)
        for name in committed - names:
            (RPC / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
