"""Blocking management of scopes, streams and reader groups."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.client.blocking.portal import Portal
    from tailrace.client.group.reader_group import ReaderGroup, ReaderGroupManager
    from tailrace.client.group.state.records import Checkpoint, Position
    from tailrace.client.group.state.state import GroupState
    from tailrace.client.model import ReaderGroupConfig, StreamName
    from tailrace.client.stream_manager import StreamInfo, StreamManager
    from tailrace.common.stream_cut import StreamCut
    from tailrace.common.stream_policies import StreamConfig


class BlockingStreamManager:
    """The blocking form of `StreamManager`."""

    def __init__(self, portal: Portal, manager: StreamManager) -> None:
        self._run = portal.run
        self._manager = manager

    def create_scope(self, scope: str) -> bool:
        """Create a scope; return False when it exists."""
        return self._run(self._manager.create_scope(scope))

    def delete_scope(self, scope: str, *, recursive: bool = False) -> bool:
        """Delete a scope; return False when it does not exist."""
        return self._run(self._manager.delete_scope(scope, recursive=recursive))

    def list_scopes(self) -> list[str]:
        """Return all scopes."""
        return self._run(self._manager.list_scopes())

    def create_stream(self, stream: str | StreamName, config: StreamConfig | None = None) -> bool:
        """Create a stream; return False when it exists."""
        return self._run(self._manager.create_stream(stream, config))

    def update_stream(self, stream: str | StreamName, config: StreamConfig) -> None:
        """Replace the configuration."""
        self._run(self._manager.update_stream(stream, config))

    def list_streams(self, scope: str, *, tag: str | None = None, internal: bool = False) -> list[StreamName]:
        """Return the streams of a scope."""
        return self._run(self._manager.list_streams(scope, tag=tag, internal=internal))

    def tags(self, stream: str | StreamName) -> tuple[str, ...]:
        """Return the tags of a stream."""
        return self._run(self._manager.tags(stream))

    def info(self, stream: str | StreamName) -> StreamInfo:
        """Return configuration, active segments, head and tail."""
        return self._run(self._manager.info(stream))

    def head(self, stream: str | StreamName) -> StreamCut:
        """Return the cut at the first event."""
        return self._run(self._manager.head(stream))

    def tail(self, stream: str | StreamName) -> StreamCut:
        """Return a cut after everything acknowledged before this call."""
        return self._run(self._manager.tail(stream))

    def seal_stream(self, stream: str | StreamName) -> None:
        """Seal."""
        self._run(self._manager.seal_stream(stream))

    def truncate_stream(self, stream: str | StreamName, cut: StreamCut) -> None:
        """Truncate a stream at a cut."""
        self._run(self._manager.truncate_stream(stream, cut))

    def delete_stream(self, stream: str | StreamName) -> bool:
        """Delete a sealed stream; return False when it does not exist."""
        return self._run(self._manager.delete_stream(stream))

    def scale_to(self, stream: str | StreamName, count: int, *, deadline_s: float = limits.SCALE_DEADLINE_S) -> None:
        """Replace segments until there are `count` equal ones."""
        self._run(self._manager.scale_to(stream, count, deadline_s=deadline_s))

    def split_segment(
        self, stream: str | StreamName, identifier: int, parts: int, *, deadline_s: float = limits.SCALE_DEADLINE_S
    ) -> None:
        """Replace a segment by equal parts."""
        self._run(self._manager.split_segment(stream, identifier, parts, deadline_s=deadline_s))

    def merge_segments(
        self, stream: str | StreamName, identifiers: Sequence[int], *, deadline_s: float = limits.SCALE_DEADLINE_S
    ) -> None:
        """Replace neighbouring segments by one."""
        self._run(self._manager.merge_segments(stream, identifiers, deadline_s=deadline_s))


class BlockingReaderGroupManager:
    """The blocking form of `ReaderGroupManager`."""

    def __init__(self, portal: Portal, manager: ReaderGroupManager) -> None:
        self.scope = manager.scope
        self._portal = portal
        self._manager = manager

    def create(self, group: str, config: ReaderGroupConfig) -> bool:
        """Create a group; return False when it exists with the same settings."""
        return self._portal.run(self._manager.create(group, config))

    def open(self, group: str) -> BlockingReaderGroup:
        """Return a handle of an existing group."""
        return BlockingReaderGroup(self._portal, self._portal.run(self._manager.open(group)))

    def delete(self, group: str) -> None:
        """Delete a group."""
        self._portal.run(self._manager.delete(group))

    def list(self) -> list[str]:
        """Return the names of the scope's groups."""
        return self._portal.run(self._manager.list())


class BlockingReaderGroup:
    """The blocking form of `ReaderGroup`."""

    def __init__(self, portal: Portal, group: ReaderGroup) -> None:
        self.scope = group.scope
        self.group = group.group
        self._run = portal.run
        self._group = group

    def state(self) -> GroupState:
        """Fetch and return a copy of the present state."""

        async def work() -> GroupState:
            return copy.deepcopy(await self._group.state())  # the next call, of any thread, changes the group's own

        return self._run(work())

    def online_readers(self) -> list[str]:
        """Return the readers that are online."""
        return self._run(self._group.online_readers())

    def positions(self) -> dict[str, StreamCut]:
        """Return the group's position by stream."""
        return self._run(self._group.positions())

    def reader_offline(self, reader: str, position: Position | None = None) -> None:
        """Declare a reader offline."""
        self._run(self._group.reader_offline(reader, position))

    def compact(self) -> bool:
        """Compact the state's records into one; return False when a reader wrote first. Readers compact too."""
        return self._run(self._group.compact())

    def checkpoint(self, name: str, *, deadline_s: float) -> Checkpoint:
        """Create a named checkpoint; the group's readers must read in other threads."""
        return self._run(self._group.checkpoint(name, deadline_s=deadline_s))

    def stream_cuts(self, *, deadline_s: float) -> dict[str, StreamCut]:
        """Return a consistent cut; the group's readers must read in other threads."""
        return self._run(self._group.stream_cuts(deadline_s=deadline_s))

    def cancel_outstanding_checkpoints(self) -> None:
        """Cancel checkpoints that are not complete, and the cut that `stream_cuts` waits for."""
        self._run(self._group.cancel_outstanding_checkpoints())

    def publish_cuts(self, cuts: Mapping[StreamName, StreamCut]) -> None:
        """Publish the cut up to which the group has consumed."""
        self._run(self._group.publish_cuts(cuts))

    def reset(self, config: ReaderGroupConfig | None = None) -> None:
        """Reset the group."""
        self._run(self._group.reset(config))

    def finish_reset(self) -> int:
        """Finish a reset that another client left; return the generation of the state."""
        return self._run(self._group.finish_reset())
