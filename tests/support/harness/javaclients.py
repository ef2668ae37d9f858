"""Writers of the published Java client as child processes, and the check of what they printed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from harness.history import Event, History, Outcome, encode
from harness.server import Server
from harness.workload import create_stream, read_from_head
from tailrace.client import Client, StreamName

STREAM = StreamName("crash", "java")
KEYS = 5
TRANSACTION_EVENTS = 10
EVENT_BYTES = 500
START_DEADLINE_S = 120.0
END_DEADLINE_S = 120.0
RUN_S, PAUSE_S = 0.2, 0.3
"""A writer runs for a part of the time: it would write hundreds of megabytes otherwise."""
WRITER, TRANSACTIONS = "java", "javatxn"


class JavaClients:
    """A pipelining writer and a writer of transactions, over a stream of their own."""

    def __init__(self, class_path: str, folder: Path) -> None:
        self._class_path = class_path
        self._folder = folder
        self._history = History()

    @contextlib.asynccontextmanager
    async def running(self, server: Server) -> AsyncIterator[None]:
        """They write while the block runs, and end with everything acknowledged or decided."""
        async with Client(server.controller) as client:
            await create_stream(client, STREAM, 4)
        words = (server.controller, STREAM.scope, STREAM.stream)
        async with (
            self._child("verifiable-writer", *words, WRITER, str(KEYS), str(EVENT_BYTES), "0") as writer,
            self._child("verifiable-txn-writer", *words, TRANSACTIONS, str(EVENT_BYTES), "0") as transactions,
        ):
            slowing = asyncio.create_task(_slow_down(writer))
            try:
                await self._started("verifiable-writer")
                await self._started("verifiable-txn-writer")
                yield
            finally:
                slowing.cancel()
                await asyncio.gather(slowing, return_exceptions=True)
            for child in (writer, transactions):
                assert child.stdin is not None
                child.stdin.close()
                async with asyncio.timeout(END_DEADLINE_S):
                    code = await child.wait()
                assert code == 0, self._errors()
        self._learn()

    @contextlib.asynccontextmanager
    async def _child(self, command: str, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
        with (self._folder / command).open("wb") as output, (self._folder / f"{command}.errors").open("wb") as errors:
            child = await asyncio.create_subprocess_exec(
                *("java", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", self._class_path),
                *("io.tailrace.compat.Main", command, *words),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=errors,
            )
        try:
            yield child
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()

    async def _started(self, command: str) -> None:
        async with asyncio.timeout(START_DEADLINE_S):
            while not (self._folder / command).stat().st_size:  # noqa: ASYNC110  # a file is its way to say so
                await asyncio.sleep(0.05)

    def _lines(self, command: str) -> Iterator[list[str]]:
        for line in (self._folder / command).read_text().splitlines():
            yield line.split(" ")

    def _errors(self) -> str:
        return "".join(file.read_text()[-4000:] for file in self._folder.glob("verifiable-*.errors"))

    # -- acknowledged events -----------------------------------------------------------------------------------

    def _learn(self) -> None:
        history = self._history
        acknowledged: list[str] = []
        for words in self._lines("verifiable-writer"):
            if words[0] == "end":
                for routing_key in range(KEYS):
                    history.write(f"{WRITER}-{routing_key}", int(words[1]))
            elif words[0] != "failed":
                acknowledged.append(words[0])
        for identity in acknowledged:
            key, number = identity.split(":")
            history.acknowledge(key, [int(number)])
        for words in self._lines("verifiable-txn-writer"):
            if words[0] != "end":
                record = history.begin(f"{TRANSACTIONS}.{words[1]}")
                record.events[TRANSACTIONS] = TRANSACTION_EVENTS
                record.outcome = Outcome(words[0])
        outcomes = [record.outcome.value for record in history.transactions.values()]
        print(f"Java: {history.acknowledged} events acknowledged, {outcomes.count('committed')} commits")
        assert history.acknowledged
        assert "committed" in outcomes

    async def check(self, client: Client) -> None:
        """A full read from the head agrees."""
        segments = await read_from_head(client, STREAM)
        violations = self._history.check([[_translated(event) for event in events] for events in segments])
        assert not violations, f"Java: {len(violations)} violations, the first ones: {violations[:20]}"


async def _slow_down(child: asyncio.subprocess.Process) -> None:
    """Let a child run for a part of the time; it always ends running."""
    try:
        while True:
            child.send_signal(signal.SIGSTOP)
            await asyncio.sleep(PAUSE_S)
            child.send_signal(signal.SIGCONT)
            await asyncio.sleep(RUN_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGCONT)


def _translated(data: bytes) -> bytes:
    """A Java event ``key:number:~~~`` as one of ours, so that one checker does; unchanged when it is damaged."""
    key, _, rest = data.decode(errors="replace").partition(":")
    number, _, filling = rest.partition(":")
    if not number.isdigit() or len(data) != EVENT_BYTES or filling.strip("~"):
        return data
    if key != TRANSACTIONS:
        return encode(Event(key, int(number), ""), 0)
    inside = int(number) % TRANSACTION_EVENTS
    return encode(Event(key, inside, f"{TRANSACTIONS}.{int(number) - inside}"), 0)
