"""The published Python client against the server: each script below runs in the client's own environment.

Every script is a process of its own, killed after 180 s: the client holds the interpreter's lock while it blocks, so
nothing inside it could end a call that never returns.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parent / "scripts"
LIMIT_S = 360
SLOW_CHECKS = ("check_stream_without_segments", "check_empty_scope_name", "check_unknown_transaction")
"""Of slow_errors.py: the client tries each for about a minute, doing nothing in between."""


@pytest.fixture(scope="module", autouse=True)
def slow_checks(
    server: Any, python_client: str, test_profile: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[subprocess.Popen[bytes], Path]]]:
    """The slow checks, begun before the others and running beside them."""
    folder = tmp_path_factory.mktemp("slow")
    started = {}
    for check in SLOW_CHECKS:
        output = folder / check
        with output.open("wb") as sink:
            child = subprocess.Popen(
                [python_client, SCRIPTS / "slow_errors.py", check],
                env=server.environment(test_profile),
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started[check] = (child, output)
    yield started
    for child, _ in started.values():
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


@pytest.mark.timeout(LIMIT_S + 20)
@pytest.mark.parametrize(
    "script",
    [
        *("scopes_and_streams", "errors", "events", "transactions", "byte_streams", "reader_groups", "scaling"),
        "rolling",
    ],
)
def test_python_client(script: str, python_client: str, run_child: Any) -> None:
    output = run_child([python_client, str(SCRIPTS / f"{script}.py")], LIMIT_S)
    print(output)
    assert "ok     check_" in output


@pytest.mark.timeout(LIMIT_S + 20)
@pytest.mark.parametrize("check", SLOW_CHECKS)
def test_python_client_after_its_retries(check: str, slow_checks: Any) -> None:
    child, output = slow_checks[check]
    code = child.wait(LIMIT_S)
    text = output.read_text(errors="replace")
    assert code == 0, text
    assert f"ok     {check}" in text
