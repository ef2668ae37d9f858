"""What the demo prints: figures on standard output, and nothing else there."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
import typer

from tailrace.cli.demo import __main__ as demo
from tailrace.common.errors import StartError


def test_warnings_of_the_client_go_to_standard_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> Path:
        structlog.get_logger("tailrace.client").warning("controller_call_waits", call="getURI")
        raise StartError("no flights")

    monkeypatch.setattr(demo, "cache_folder", fails)
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    try:
        with pytest.raises(typer.Exit):
            demo.demo(data=tmp_path, ends=True, as_json=True, limit=1)
    finally:
        structlog.reset_defaults()
        if before is not None:
            structlog.configure(**before)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "tailrace: controller call waits: call=getURI" in printed.err
