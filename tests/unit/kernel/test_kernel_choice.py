"""The choice between native modules and twins: by TAILRACE_PURE alone, never by what happens to be built."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace.kernel

KERNEL = Path(tailrace.kernel.__file__).parent


def run_python(code: str, pure: str, path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TAILRACE_PURE": pure, "PYTHONPATH": str(path)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=path, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def unbuilt(tmp_path: Path) -> Path:
    """A copy of the package without the built extensions."""
    copy = tmp_path / "tailrace"
    (copy / "kernel").mkdir(parents=True)
    (copy / "__init__.py").touch()
    for source in KERNEL.glob("*.py"):
        shutil.copy(source, copy / "kernel")
    return tmp_path


ORIGIN = """
import tailrace.kernel as kernel
print(kernel.PURE, kernel.crc32c.__module__, kernel.__file__, kernel.crc32c(b"123456789") == 0xE3069283)
"""


def test_the_variable_selects_the_twins() -> None:
    chosen = run_python(ORIGIN, "1", KERNEL.parents[1])
    assert chosen.stdout.split()[:2] == ["True", "tailrace.kernel._crc_py"], chosen.stderr
    native = run_python(ORIGIN, "", KERNEL.parents[1])
    assert native.stdout.split()[:2] == ["False", "tailrace.kernel._crc"], native.stderr
    assert native.stdout.split()[-1] == chosen.stdout.split()[-1] == "True"


def test_without_extensions_the_import_fails_and_says_what_to_do(unbuilt: Path) -> None:
    result = run_python(ORIGIN, "", unbuilt)
    assert result.returncode != 0
    assert "ImportError: the native kernel is not built" in result.stderr
    assert "make setup" in result.stderr


def test_the_twins_need_no_extension(unbuilt: Path) -> None:
    result = run_python(ORIGIN, "1", unbuilt)
    assert result.returncode == 0, result.stderr
    assert str(unbuilt) in result.stdout
