"""Programs of other languages that the crash tests use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def java_class_path() -> str:
    """The class path of the Java program of tests/compat/java; built on first use, by `make test` beforehand."""
    built = subprocess.run(
        [REPOSITORY / "tests/support/java-client.sh"],
        env={**os.environ, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        raise RuntimeError("tests/support/java-client.sh failed; its line on standard error says why")
    return built.stdout.strip()
