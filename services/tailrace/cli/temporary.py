"""Temporary reader groups: names that say which process made them, and which of them nobody reads any more.

A `read` that was killed could not delete its group. Whether its process is gone is certain only on its own machine, in
its own process namespace, and for its own user; of any other group it is taken for granted once its state has not
changed for a day, by the server's clock: a reader writes into it every few seconds.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.client.group.reader_group import ReaderGroupManager
from tailrace.client.model import StreamName
from tailrace.common import names
from tailrace.common.errors import NotFoundError

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext

QUIET_MAX_MS: Final = 86_400_000
STREAMS_LOOKED_AT_MAX: Final = 2000
"""Of a scope, for groups left behind: a `read` does not wait long for the remains of others."""
REMOVED_MAX: Final = 10
"""Groups removed by one `read`; the next one goes on."""
_NAME: Final = re.compile(r"cli-([0-9a-f]{16})-(\d{1,10})-(\d{1,20})-[0-9a-f]{32}")


class Maker(NamedTuple):
    """The process that made a group: where process numbers mean something, its number, and when it began."""

    place: str
    pid: int
    started: int


def this_process() -> Maker:
    """This process."""
    pid = os.getpid()
    return Maker(_place(), pid, _started(pid) or 0)


def group_name(maker: Maker) -> str:
    """A new name for a group of that process."""
    return f"cli-{maker.place}-{maker.pid}-{maker.started}-{uuid.uuid4().hex}"


def maker_of(group: str) -> Maker | None:
    """Who made a temporary group; None for a group that is none."""
    match = _NAME.fullmatch(group)
    return Maker(match[1], int(match[2]), int(match[3])) if match else None


def surely_gone(maker: Maker, here: str) -> bool:
    """Whether the process ran here and does not any more."""
    return maker.place == here and _started(maker.pid) != maker.started


def _place() -> str:
    """This boot of this machine, this process namespace, this user: others' processes may be hidden from us."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        text = f"{boot} {os.readlink('/proc/self/ns/pid')} {os.getuid()}"
    except OSError:  # some sandboxes do not tell: a place that no other process is at
        text = uuid.uuid4().hex
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _started(pid: int) -> int | None:
    """When a process began, in ticks since boot; None when there is none, or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


async def remove_groups_left_behind(
    client: ClientContext, scope: str, own: str, *, quiet_max_ms: int = QUIET_MAX_MS
) -> list[str]:
    """Delete temporary groups of the scope whose reader is gone, a bounded number; returns their names.

    `own` is a group that has just been made: it tells the server's time.
    """
    here = this_process().place
    candidates = {group: maker for group in await _groups(client, scope) if (maker := maker_of(group)) is not None}
    candidates.pop(own, None)
    now_ms = None
    removed: list[str] = []
    manager = ReaderGroupManager(client, scope)
    for group, maker in candidates.items():
        if len(removed) == REMOVED_MAX:
            break
        try:
            if not surely_gone(maker, here):
                now_ms = now_ms if now_ms is not None else await _changed_ms(client, scope, own)
                if maker.place == here or now_ms - await _changed_ms(client, scope, group) < quiet_max_ms:
                    continue
            await manager.delete(group)
        except NotFoundError:
            continue  # somebody else removed it meanwhile
        removed.append(group)
    return removed


async def _groups(client: ClientContext, scope: str) -> list[str]:
    found = []
    looked_at = 0
    async for stream in client.controller.list_streams(scope):
        if stream.stream.startswith(names.READER_GROUP_PREFIX):
            found.append(stream.stream.removeprefix(names.READER_GROUP_PREFIX))
        looked_at += 1
        if looked_at == STREAMS_LOOKED_AT_MAX:
            break
    return found


async def _changed_ms(client: ClientContext, scope: str, group: str) -> int:
    """When the state of a group last changed, by the server's clock."""
    state = StreamName(scope, names.READER_GROUP_PREFIX + group)
    return (await client.segments.segment_info(state.segment(0))).last_modified_ms
