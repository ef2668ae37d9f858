"""A program of the user in the driver of a Pipeline: it runs as Python would run it, and its end is said in a line."""

import sys
from pathlib import Path

import pytest

from tailrace.pipelines.jobs.application import run_program


@pytest.fixture(autouse=True)
def own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["application.py"])
    monkeypatch.setattr("sys.path", [*sys.path])


def program(folder: Path, text: str) -> Path:
    file = folder / "main.py"
    file.write_text(text)
    return file


def test_it_has_its_arguments_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "beside_the_program.py").write_text("LIMIT = 7\n")
    text = (
        "import sys, pathlib, beside_the_program\n"
        "if __name__ == '__main__':\n"
        "    pathlib.Path(sys.argv[1]).write_text(f'{sys.argv[2:]} {beside_the_program.LIMIT}')\n"
    )
    out = tmp_path / "out"
    assert run_program(program(tmp_path, text), [str(out), "a", "b c"]) == (0, "")
    assert out.read_text() == "['a', 'b c'] 7"


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("raise SystemExit", 0, ""),
        ("import sys; sys.exit(0)", 0, ""),
        ("import sys; sys.exit(4)", 4, "the program ended with exit code 4"),
        ("raise SystemExit('no such day')", 1, "no such day"),
        ("raise ValueError('of two\\nlines')", 1, "ValueError: of two"),
        ("raise KeyError", 1, "KeyError: no reason given"),
        ("import argparse; argparse.ArgumentParser().parse_args(['--x'])", 2, "the program ended with exit code 2"),
        ("this is no Python", 1, "SyntaxError: invalid syntax (main.py, line 1)"),
    ],
)
def test_its_end_is_said_in_a_line(tmp_path: Path, text: str, code: int, message: str) -> None:
    assert run_program(program(tmp_path, text), []) == (code, message)


def test_what_spark_says_is_what_our_task_said(tmp_path: Path) -> None:
    text = (
        "from pyspark.errors import PythonException\n"
        "raise PythonException(message='''\n"
        "Traceback (most recent call last):\n"
        "tailrace.common.errors.NotFoundError: stream a/b does not exist\n"
        "''')\n"
    )
    assert run_program(program(tmp_path, text), []) == (1, "PythonException: stream a/b does not exist")
