"""The publication of a group's last checkpoint: each stream has its own, whatever comes of the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from tailrace.client.group import publisher
from tailrace.client.model import ReaderGroupConfig, StreamName
from tailrace.common.errors import (
    BadRequestError,
    NoSuchReaderGroupError,
    NoSuchStreamError,
    TailraceError,
    UnavailableError,
)
from tailrace.common.stream_cut import StreamCut
from tailrace.common.stream_policies import StreamDataRetention

FIRST, SECOND, THIRD = (StreamName("s", name) for name in ("a", "b", "c"))


class Group:
    """A group with a checkpoint in three streams, and a controller that refuses the cuts of some of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused: dict[StreamName, Exception] = {}
        self.published: list[StreamName] = []
        self.updates: list[Any] = []
        checkpoint = {stream.segment(0): 5 for stream in (FIRST, SECOND, THIRD)}
        config = ReaderGroupConfig(retention=StreamDataRetention.AUTOMATIC_AT_LAST_CHECKPOINT)
        self.state = SimpleNamespace(config=config, published=False, last_checkpoint=checkpoint)

        async def whole_cuts(_: Any, __: Any) -> Any:
            return {str(stream): StreamCut(stream.scope, stream.stream, {0: 5}) for stream in (FIRST, SECOND, THIRD)}

        monkeypatch.setattr(publisher, "complete_cuts", whole_cuts)

    @property
    def controller(self) -> Any:
        """This object: it takes the calls of the publisher, too."""
        return self

    async def update_subscriber_cut(self, stream: StreamName, *_: Any) -> None:
        """Store a cut, or refuse it."""
        if stream in self.refused:
            raise self.refused[stream]
        self.published.append(stream)

    async def update_unconditionally(self, updates: Any) -> None:
        """Change the group's state."""
        self.updates += updates

    async def publish(self) -> list[Any]:
        """Publish the checkpoint; what was logged."""
        made: Any = publisher.Publisher
        structlog.configure()  # an application that has its own logs
        with structlog.testing.capture_logs() as logs:
            publishing = made(self, self, "s/g")
            publishing.begin()
            await publishing.stop()
        return logs


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    return Group(monkeypatch)


async def test_all_streams_are_published(group: Group) -> None:
    group.refused[SECOND] = NoSuchStreamError("stream s/b does not exist")
    assert await group.publish() == []
    assert group.published == [FIRST, THIRD]
    assert len(group.updates) == 1


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (BadRequestError("the cut lies before the start"), "info"),
        (NoSuchReaderGroupError("subscriber s/g of stream s/a does not exist"), "warning"),
        (UnavailableError("the controller is away"), "info"),
        (TailraceError("the stream is odd"), "warning"),
        (ValueError("a defect"), "warning"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_stream_that_is_refused_stops_no_other(group: Group, error: Exception, level: str) -> None:
    group.refused = {FIRST: error, SECOND: BadRequestError("another one")}
    (log,) = await group.publish()
    assert group.published == [THIRD]
    assert (log["event"], log["log_level"], log["group"]) == ("position_not_published", level, "s/g")
    assert str(error) in log["reason"]
    assert group.updates == [], "the next checkpoint is published again"
