"""Programs of other languages that the tests of real processes use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def _prepared(script: str) -> str:
    """What a script of tests/support has made ready; on first use it takes a while, `make test` does it beforehand."""
    made = subprocess.run(
        [REPOSITORY / "tests/support" / script],
        env={**os.environ, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise RuntimeError(f"tests/support/{script} failed; its line on standard error says why")
    return made.stdout.strip()


@pytest.fixture(scope="session")
def java_class_path() -> str:
    """The class path of the Java program of tests/compat/java."""
    return _prepared("java-client.sh")


@pytest.fixture(scope="session")
def python_client() -> str:
    """The interpreter of an environment that holds the published Python client."""
    return _prepared("python-client.sh")


@pytest.fixture(scope="session")
def python_scripts() -> Path:
    """The checks of the published Python client."""
    return REPOSITORY / "tests/compat/python/scripts"
