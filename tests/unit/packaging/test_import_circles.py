"""The check for import circles finds planted ones, those of TYPE_CHECKING imports included."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "check_import_circles.py"

TYPING_ONLY = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from planted.{name} import value\n"


def check(root: Path, modules: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the check on a package `planted` of these modules."""
    package = root / "planted"
    package.mkdir()
    for name, text in {"__init__": "", **modules}.items():
        (package / f"{name}.py").write_text(text)
    program = f"import sys, runpy; sys.path.insert(0, {str(root)!r}); sys.argv[1:] = ['planted']; "
    program += f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)


def test_modules_without_a_circle_pass(tmp_path: Path) -> None:
    result = check(
        tmp_path, {"a": "from planted.b import value\n", "b": TYPING_ONLY.format(name="c"), "c": "value = 1\n"}
    )
    assert result.stdout == "import circles: 0\n"
    assert result.returncode == 0


@pytest.mark.parametrize("last", ["from planted.a import value\n", TYPING_ONLY.format(name="a")])
def test_a_circle_is_found(tmp_path: Path, last: str) -> None:
    modules = {
        "a": "from planted.b import value\n",
        "b": TYPING_ONLY.format(name="c"),
        "c": last,
        "d": "import planted.a\n",
    }
    result = check(tmp_path, modules)
    assert result.stdout.splitlines() == [
        "import circle of 3 modules: planted.a -> planted.b -> planted.c -> planted.a",
        "import circles: 1",
    ]
    assert result.returncode == 1


def test_two_circles_are_two(tmp_path: Path) -> None:
    modules = {
        "a": "import planted.b\n",
        "b": "import planted.a\nimport planted.c\n",
        "c": "import planted.d\n",
        "d": TYPING_ONLY.format(name="c"),
    }
    result = check(tmp_path, modules)
    assert result.stdout.splitlines() == [
        "import circle of 2 modules: planted.a -> planted.b -> planted.a",
        "import circle of 2 modules: planted.c -> planted.d -> planted.c",
        "import circles: 2",
    ]
