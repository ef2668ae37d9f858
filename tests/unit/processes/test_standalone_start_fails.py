"""A start that fails gives its reason also when a signal comes while what it has opened is closed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tailrace.common.errors import StartError
from tailrace.processes import standalone
from tailrace.processes.standalone import Standalone, StandaloneOptions, run


async def test_a_signal_while_a_failed_start_is_closed_hides_no_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, closed = asyncio.Event(), asyncio.Event()

    class Closing(Standalone):
        """Gets the signal while it closes, which takes a while."""

        def __init__(self, options: StandaloneOptions) -> None:
            super().__init__(options)
            self._stack.push_async_callback(self._close_slowly)

        async def _close_slowly(self) -> None:
            stop.set()
            for _ in range(100):  # what the signal wakes has run then
                await asyncio.sleep(0)
            closed.set()

    monkeypatch.setattr(standalone, "Standalone", Closing)
    monkeypatch.setattr(standalone, "stop_on_signals", lambda: stop)
    with pytest.raises(StartError, match="is every address"):
        await run(StandaloneOptions(tmp_path, bind="0.0.0.0"))
    assert closed.is_set(), "the close was cut short"
