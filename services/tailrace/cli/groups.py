"""Reader groups on the command line: reset them, and see who holds segments without reading them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from tailrace.cli.values import HEAD
from tailrace.client.group.reader_group import existing_streams
from tailrace.client.group.state import policy
from tailrace.client.stream_manager import StreamManager
from tailrace.common.errors import BadRequestError
from tailrace.common.stream_cut import StreamCut

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace.client.context import ClientContext
    from tailrace.client.group.reader_group import ReaderGroup
    from tailrace.client.group.report import ReaderReport

LOOK_EVERY_S: Final = 3.0
STILL_AFTER_S: Final = 10.0
"""Without progress; then a reader that holds unread segments is reported. Readers report their positions less often
when there are more of them: a second is added for each."""
REPEAT_AFTER_S: Final = 60.0


async def reset_group(client: ClientContext, group: ReaderGroup, places: Sequence[str | StreamCut]) -> None:
    """Reset a group to head, tail or cuts; without `places` to its last checkpoint.

    It leaves streams that were deleted. Raises BadRequestError for a stream that the group does not read, and for a
    stream without a cut.
    """
    if not places:
        await group.reset()
        return
    config = (await group.state()).config
    streams = await existing_streams(client, config)
    starting: dict[str, StreamCut | None] = {}
    for place in places:
        if isinstance(place, StreamCut):
            starting[place.scoped_name] = place
        elif len(places) > 1:
            raise BadRequestError(f"--to {place} is for all streams of the group: give it alone")
        elif place == HEAD:
            starting = {str(stream): None for stream in streams}
        else:
            starting = {str(stream): await StreamManager(client).tail(stream) for stream in streams}
    if unknown := sorted(starting.keys() - config.starting.keys()):
        raise BadRequestError(f"reader group {group.scope}/{group.group} does not read {unknown[0]}")
    if missing := sorted({str(stream) for stream in streams} - starting.keys()):
        raise BadRequestError(f"reader group {group.scope}/{group.group} reads {missing[0]}, too: give a cut of it")
    ending = {scoped: cut for scoped, cut in config.ending.items() if scoped in starting}
    await group.reset(dataclasses.replace(config, starting=starting, ending=ending))


class Holders:
    """The other readers of a group: which of them hold segments with unread data, and since when without progress."""

    def __init__(self, client: ClientContext, group: ReaderGroup, own: str, report: Callable[[str], None]) -> None:
        self._client = client
        self._group = group
        self._own = own
        self._report = report
        self._still: dict[str, tuple[ReaderReport, float]] = {}
        self._reported_s: dict[str, float] = {}
        self._next_look_s = 0.0

    async def look(self, now_s: float) -> None:
        """Report each reader without progress, once a minute; looks every few seconds. Raises UnavailableError."""
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_EVERY_S
        holding = await self._others()
        self._still = {
            reader: (held, self._since(held, now_s)) for reader, held in holding.items() if held.unread_bytes > 0
        }
        still_after_s = STILL_AFTER_S + len(holding) * policy.TIME_UNIT_S
        for reader, (held, since_s) in self._still.items():
            still_s = now_s - since_s
            if still_s >= still_after_s and now_s - self._reported_s.get(reader, -REPEAT_AFTER_S) >= REPEAT_AFTER_S:
                self._reported_s[reader] = now_s
                text = f"{_count(held)} for {still_s:.0f} s without progress"
                self._report(f"reader {reader} has held {text}{self._remedy(held)}")

    async def at_end(self) -> None:
        """Report each reader that holds what this one therefore did not read. Raises UnavailableError."""
        for reader, held in (await self._others()).items():
            if held.unread_bytes > 0:
                text = f"{_count(held)} with {held.unread_bytes:,} unread bytes"
                self._report(f"reader {reader} holds {text}{self._remedy(held)}")

    async def _others(self) -> dict[str, ReaderReport]:
        from tailrace.client.group.report import reader_reports
        from tailrace.client.group.view import view_of

        found = await reader_reports(self._client, view_of(await self._group.state()))
        return {held.reader: held for held in found if held.reader != self._own}

    def _since(self, held: ReaderReport, now_s: float) -> float:
        known = self._still.get(held.reader)
        return known[1] if known is not None and known[0].segments == held.segments else now_s

    def _remedy(self, held: ReaderReport) -> str:
        if held.dead_after_s is not None:
            return f"; if it has ended, others take over after {held.dead_after_s:g} s"
        command = f"tailrace group offline {self._group.scope} {self._group.group} {held.reader}"
        return f"; if it has ended, let others go on: {command}"


def _count(held: ReaderReport) -> str:
    count = len(held.segments)
    return f"{count} segment{'' if count == 1 else 's'}"
