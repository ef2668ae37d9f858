"""Name temporary reader groups by their process, and delete those whose process has ended.

A `read` that was killed could not delete its group. Only the same machine, process namespace and user can check whether
its process has ended. Any other group is taken for abandoned when its state has not changed for a day, by the server's
clock: a reader writes to it every few seconds.
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
"""Deadline for deleting abandoned groups of a scope, so that a `read` starts without a long wait."""
REMOVED_MAX: Final = 10
"""Groups that one `read` deletes; the next one continues."""
_NAME: Final = re.compile(r"cli-([0-9a-f]{16})-(\d{1,10})-(\d{1,20})-[0-9a-f]{32}")


class Maker(NamedTuple):
    """The process that created a group: its process namespace, its number and its start time."""

    place: str
    pid: int
    started: int


def this_process() -> Maker:
    """Return this process."""
    pid = os.getpid()
    return Maker(_place(), pid, _started(pid) or 0)


def group_name(maker: Maker) -> str:
    """Return a new name for a group of that process."""
    return f"cli-{maker.place}-{maker.pid}-{maker.started}-{uuid.uuid4().hex}"


def maker_of(group: str) -> Maker | None:
    """Return the process that created a temporary group; None for other groups."""
    match = _NAME.fullmatch(group)
    return Maker(match[1], int(match[2]), int(match[3])) if match else None


def surely_gone(maker: Maker, here: str) -> bool:
    """Return whether the process ran here and has ended."""
    return maker.place == here and _started(maker.pid) != maker.started


def _place() -> str:
    """Return the boot, process namespace and user: processes of others may be invisible."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        text = f"{boot} {os.readlink('/proc/self/ns/pid')} {os.getuid()}"
    except OSError:  # some sandboxes hide them: use a value that no other process has
        text = uuid.uuid4().hex
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _started(pid: int) -> int | None:
    """Return the start of a process in ticks since boot; None when it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


async def remove_groups_left_behind(
    client: ClientContext, scope: str, own: str, *, quiet_max_ms: int = QUIET_MAX_MS
) -> list[str]:
    """Delete a bounded number of abandoned temporary groups of the scope; return their names.

    `own` is a group that was just created: its state has the server's time.
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
            continue  # another client deleted it
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
    """Return the time of the last change of a group's state, by the server's clock."""
    state = StreamName(scope, names.READER_GROUP_PREFIX + group)
    return (await client.segments.segment_info(state.segment(0))).last_modified_ms
