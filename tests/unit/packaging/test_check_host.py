"""`make setup` names what a machine lacks in one line, and the package that brings it."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "check-host.sh"

FAKE_PYTHON = """#!/bin/bash
case "$2" in
    *python_version*) echo "{version}" ;;
    *version_info*) exit {too_old} ;;
    *ensurepip*) exit {no_venv} ;;
    *sysconfig*) echo "{headers}" ;;
esac
"""


def check(python: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, python],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def fake_python(
    folder: Path, *, version: str = "3.12.1", too_old: int = 0, no_venv: int = 0, headers: bool = True
) -> str:
    include = folder / "include"
    include.mkdir()
    if headers:
        (include / "Python.h").touch()
    python = folder / "python"
    python.write_text(FAKE_PYTHON.format(version=version, too_old=too_old, no_venv=no_venv, headers=include))
    python.chmod(0o755)
    return str(python)


def refusal(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


def test_this_machine_has_everything() -> None:
    result = check(sys.executable)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_missing_python() -> None:
    line = refusal(check("/nowhere/python3"))
    assert "Python 3.11 or later" in line
    assert "package python3" in line


def test_old_python(tmp_path: Path) -> None:
    line = refusal(check(fake_python(tmp_path, version="3.9.2", too_old=1)))
    assert "is 3.9.2" in line
    assert "package python3.11" in line


def test_missing_venv(tmp_path: Path) -> None:
    assert "package python3.12-venv" in refusal(check(fake_python(tmp_path, no_venv=1)))


def test_missing_headers(tmp_path: Path) -> None:
    line = refusal(check(fake_python(tmp_path, headers=False)))
    assert "Python.h" in line
    assert "package python3.12-dev" in line


@pytest.mark.parametrize(("compiler", "package"), [("no-such-compiler", "gcc"), ("false", "libc6-dev")])
def test_missing_or_useless_compiler(tmp_path: Path, compiler: str, package: str) -> None:
    line = refusal(check(fake_python(tmp_path), CC=compiler))
    assert compiler in line
    assert f"package {package}" in line
