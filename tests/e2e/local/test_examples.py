"""The examples and the code of docs/client.md run as they stand, against a real server."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))
EXAMPLE_DEADLINE_S = 300.0


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(example: Path, controller: str) -> None:
    environment = {**os.environ, "TAILRACE_CONTROLLER": controller, "EVENTS": "100000"}
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=EXAMPLE_DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()


def test_every_example_is_listed() -> None:
    listed = re.findall(r"`(\d\d_\w+\.py)`", (REPOSITORY / "examples" / "README.md").read_text())
    assert listed == [example.name for example in EXAMPLES]


async def test_the_documentation_runs(controller: str) -> None:
    """All Python blocks of docs/client.md, one after the other, as one program."""
    text = (REPOSITORY / "docs" / "client.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 8
    values: dict[str, Any] = {}
    for block in blocks:
        code = compile(
            block.replace("tcp://localhost:9090", controller), "docs/client.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        )
        result = eval(code, values)
        if inspect.isawaitable(result):
            await result
