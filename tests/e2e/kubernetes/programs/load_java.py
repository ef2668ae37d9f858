"""Run the program around the published Java client, and report what it prints in the words of the other programs.

usage: load_java.py writer CLASS_PATH CONTROLLER SCOPE/STREAM NAME KEYS EVENTS_PER_SECOND EVENT_BYTES
       load_java.py reader CLASS_PATH CONTROLLER SCOPE/STREAM GROUP READERS [join]
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sequences import Pauses, Sequences
from telling import report_for_ever, stop_on_sigterm, tell

JAVA = (
    "java",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)
IDLE_MS = 1000
LINE_MAX_BYTES = 1 << 20
END_DEADLINE_S = 240.0


@dataclass
class Written:
    """Lines of the writer: ``KEY:NUMBER``, ``failed …``, ``end ROUNDS``."""

    keys: int
    name: str
    acknowledged: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    pauses: Pauses = field(default_factory=Pauses)
    first_s: float = 0.0
    rounds: int = 0

    def line(self, text: str) -> None:
        """One of them."""
        if text.startswith("failed "):
            self.failed.append(text[:200])
        elif text.startswith("end "):
            self.rounds = int(text[4:])
        else:
            now_s = time.time()
            self.first_s = self.first_s or now_s
            key = text.partition(":")[0]
            self.acknowledged[key] += 1
            self.pauses.acknowledged(key, now_s)

    def progress(self) -> dict[str, Any]:
        """For the line of every second."""
        total = self.acknowledged.total()
        failed = {"failed": len(self.failed)} if self.failed else {}
        return {"written": total, "acknowledged": total, "failed": failed, "first": round(self.first_s, 3)}

    def end(self) -> dict[str, Any]:
        """For the last line."""
        keys = {f"{self.name}-{number}": self.rounds for number in range(self.keys)}
        return {
            **self.progress(),
            "keys": keys,
            "acknowledged_of": dict(self.acknowledged),
            "pauses": self.pauses.report(),
            "examples": self.failed[:20],
        }


@dataclass
class Read:
    """Lines of the reader: ``KEY:NUMBER``, ``truncated``, ``end EVENTS``."""

    sequences: Sequences = field(default_factory=Sequences)

    def line(self, text: str) -> None:
        """One of them."""
        key, _, number = text.partition(":")
        if number:
            self.sequences.see(key, int(number))
        elif not text.startswith("end "):
            self.sequences.violate("gap", text)

    def progress(self) -> dict[str, Any]:
        """For the line of every second."""
        return {"events": self.sequences.events, "violations": dict(self.sequences.violations), "errors": {}}

    def end(self) -> dict[str, Any]:
        """For the last line."""
        return {**self.sequences.report(), "errors": {}}


async def run(words: list[str], take: Callable[[str], None], progress: Callable[[], dict[str, Any]]) -> None:
    """Run it until SIGTERM, which closes its standard input: the sign for it to finish."""
    stopping = stop_on_sigterm()
    child = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LINE_MAX_BYTES
    )
    assert child.stdin is not None
    assert child.stdout is not None
    reporting = asyncio.create_task(report_for_ever(progress))
    closing = asyncio.create_task(_close_when(stopping, child.stdin))
    try:
        async for line in child.stdout:
            take(line.decode().rstrip("\n"))
        async with asyncio.timeout(END_DEADLINE_S):
            code = await child.wait()
    finally:
        reporting.cancel()
        closing.cancel()
        if child.returncode is None:
            child.kill()
            await child.wait()
    if code:
        raise SystemExit(f"the Java program ended with {code}")


async def _close_when(stopping: asyncio.Event, standard_input: asyncio.StreamWriter) -> None:
    await stopping.wait()
    standard_input.close()


async def main() -> None:
    """Run the one or the other, tell."""
    role, class_path, controller, stream, *rest = sys.argv[1:]
    program = [*JAVA, "-cp", class_path, "io.tailrace.compat.Main"]
    if role == "writer":
        name, keys, rate, length = rest
        counts: Written | Read = Written(int(keys), name)
        words = ["verifiable-writer", controller, *stream.split("/"), name, keys, length, "0", rate]
    else:
        group, readers, *join = rest
        counts = Read()
        words = ["verifiable-reader", controller, *stream.split("/"), group, readers, str(IDLE_MS), *join]
    await run([*program, *words], counts.line, counts.progress)
    tell("end", **counts.end())


if __name__ == "__main__":
    asyncio.run(main())
