"""Driver processes of a copying query, one after the other, which tests kill; and how far the query is."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from harness import copyingquery
from harness.copyingquery import Copy
from tailrace.client import StreamName
from tailrace.common.stream_cut import StreamCut

GONE_DEADLINE_S = 120.0
PROGRESS_DEADLINE_S = 240.0
POLL_S = 0.02
TASKS, PLANNER = "pyspark.worker", "pyspark.sql.streaming.python_streaming_source_runner"
"""Modules of the processes that run tasks, and of the one that plans batches."""
LOG_TAIL_CHARACTERS = 6000
OUR_ERRORS = "tailrace.common.errors."


class EndedError(AssertionError):
    """A driver ended by itself where nothing excuses it."""


@dataclass
class Drivers:
    """A query over its checkpoint. Every start is a process of its own, of its own session.

    ``excused`` says whether the present driver may end by itself, because of what was done to it or to the server.
    """

    copy: Copy
    excused: bool = False
    starts: int = 0
    ends: list[str] = field(default_factory=list)
    """Why drivers ended by themselves."""
    process: asyncio.subprocess.Process | None = None
    _seen: dict[int, psutil.Process] = field(default_factory=dict)

    # -- the process -----------------------------------------------------------------------------------------------

    @property
    def _log(self) -> Path:
        return Path(self.copy.folder) / f"driver-{self.starts}.log"

    async def start(self) -> None:
        """Start a driver; the query begins where its checkpoint is."""
        assert self.process is None
        self.starts += 1
        self.excused = False
        self.copy.faults.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, copyingquery.__file__, json.dumps(dataclasses.asdict(self.copy))),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def is_running(self) -> bool:
        """Whether the present driver has started its query."""
        return copyingquery.RUNNING in self._log.read_text(errors="replace").splitlines()

    async def kill(self) -> None:
        """SIGKILL for the driver: Python and the JVM. Its Python workers notice by themselves."""
        assert self.process is not None
        self._look()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        self.process = None

    async def revive(self) -> None:
        """Start the query again if its driver has ended by itself. Raises EndedError: nothing excuses that."""
        if self.process is not None and self.process.returncode is None:
            self._look()
            return
        if self.process is not None:
            self.process, text = None, self._log.read_text(errors="replace")
            self.ends.append(reason_of(text))
            planted = copyingquery.FAULT in text and not self.copy.repeats
            if not (self.excused or planted) or not is_harmless(text):
                raise EndedError(f"driver {self.starts} ended: {text[-LOG_TAIL_CHARACTERS:]}")
        await self.start()

    def python_processes(self, module: str) -> list[psutil.Process]:
        """The Python processes of a module of PySpark below the driver that have no children: no daemon that forks."""
        found = []
        for each in self._look():
            with contextlib.suppress(psutil.NoSuchProcess):
                if each.cmdline()[-1:] == [module] and not each.children():
                    found.append(each)
        return found

    def _look(self) -> list[psutil.Process]:
        """Return the processes below the driver, and remember them."""
        assert self.process is not None
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.process.pid).children(recursive=True)
        self._seen.update((each.pid, each) for each in found)
        return found

    async def close(self) -> None:
        """Kill the driver, and wait until no process of any driver is left."""
        if self.process is not None:
            await self.kill()
        _, left = await asyncio.to_thread(psutil.wait_procs, list(self._seen.values()), GONE_DEADLINE_S)
        for each in left:
            each.kill()
        assert not left, f"processes of drivers did not end: {left}"

    # -- how far the query is --------------------------------------------------------------------------------------

    def completed(self) -> int:
        """The last batch that Spark knows as complete; -1 before the first."""
        return max((int(each.name) for each in (self.copy.checkpoint / "commits").glob("[0-9]*")), default=-1)

    def position(self) -> StreamCut | None:
        """Where the last complete batch ends in the source; None before the first."""
        batch = self.completed()
        if batch < 0:
            return None
        line = (self.copy.checkpoint / "offsets" / str(batch)).read_text().splitlines()[2]
        positions: dict[str, Any] = json.loads(line)[self.copy.source]
        name = StreamName.parse(self.copy.source)
        return StreamCut(name.scope, name.stream, {int(each): offset for each, offset in positions.items()})

    def query_id(self) -> str | None:
        """The query's id; None before its first start."""
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            found: str = json.loads((self.copy.checkpoint / "metadata").read_text())["id"]
            return found
        return None

    async def progress(self, batches: int = 1) -> None:
        """Wait until so many further batches are complete; start the query where it has ended."""
        wanted = self.completed() + batches
        async with asyncio.timeout(PROGRESS_DEADLINE_S):
            while self.completed() < wanted:
                await self.revive()
                await asyncio.sleep(POLL_S)


def reason_of(text: str) -> str:
    """The reason in what a driver printed: our own last error, or another one's line, or its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(OUR_ERRORS)]
    others = [line for line in lines if "Exception:" in line or "Error:" in line]
    return (ours or others or lines or ["no output"])[-1][:300]


def is_harmless(text: str) -> bool:
    """Whether what a driver printed is of a peer that was away, and of nothing that was lost, doubled or mixed up."""
    bad = ("IllegalStateError", "DataLossError", "CorruptionError", "BadRequestError", "AssertionError")
    return not any(f"{name}:" in text for name in bad)
