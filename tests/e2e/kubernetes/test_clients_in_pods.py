"""The published Python and Java clients, from pods of their own; our own client is in every other test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.kubeload import JAVA_CLASS_PATH, Images, Programs
from harness.kubesystem import StreamSystem

CHECKS = Path(__file__).resolve().parents[2] / "compat/python/scripts"
CONFIG_MAP = "client-checks"
PYTHON_CHECKS = ("events", "reader_groups", "transactions", "byte_streams")
JAVA_CHECKS = ("events", "two-readers", "transaction", "scale", "checkpoint", "truncation", "life-of-a-stream")
LIMIT_S = 400.0


@pytest.mark.parametrize("check", PYTHON_CHECKS)
def test_python_client(check: str, healthy: StreamSystem, programs: Programs, images: Images) -> None:
    files = {file.name: file.read_text() for file in CHECKS.glob("*.py")}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP}, "data": files}
    healthy.kube("apply", "--server-side", "--filename", "-", stdin=json.dumps(config))
    output = programs.run(
        f"python-{check}".replace("_", "-"),
        images.python,
        ["python3.11", f"/programs/{check}.py"],
        environment={"TAILRACE_COMPAT_CONTROLLER": healthy.controller_uri, "RUST_BACKTRACE": "0", "TMPDIR": "/tmp"},
        config_map=CONFIG_MAP,
        deadline_s=LIMIT_S,
    )
    assert "ok     check_" in output


@pytest.mark.parametrize("check", JAVA_CHECKS)
def test_java_client(check: str, healthy: StreamSystem, programs: Programs, images: Images) -> None:
    options = ("-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", JAVA_CLASS_PATH)
    command = ["java", *options, "io.tailrace.compat.Main", "scenario", healthy.controller_uri, check]
    assert f"ok {check}" in programs.run(f"java-{check}", images.java, command, deadline_s=LIMIT_S)
