"""Cuts that a program gives to a group: each belongs to the stream that it is given for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.client.group.reader_group import ReaderGroup, group_config
from tailrace.client.model import ReaderGroupConfig, StreamName
from tailrace.common.errors import BadRequestError
from tailrace.common.stream_cut import StreamCut

FIRST, SECOND = StreamName("s", "a"), StreamName("s", "b")


def cut_of(stream: StreamName, offset: int) -> StreamCut:
    return StreamCut(stream.scope, stream.stream, {0: offset})


class Published:
    """A controller that takes any cut; a group's state beside it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cuts: dict[StreamName, dict[int, int]] = {}
        made: Any = object.__new__(ReaderGroup)
        made.scope, made.group = "s", "g"
        made._context = SimpleNamespace(controller=self)

        async def state() -> Any:
            return SimpleNamespace(config=ReaderGroupConfig())

        monkeypatch.setattr(made, "state", state)
        self.group: ReaderGroup = made

    async def update_subscriber_cut(self, stream: StreamName, *fields: Any) -> None:
        """Store a cut."""
        self.cuts[stream] = dict(fields[-1])


async def test_each_cut_is_published_under_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    published = Published(monkeypatch)
    await published.group.publish_cuts({FIRST: cut_of(FIRST, 5), SECOND: cut_of(SECOND, 7)})
    assert published.cuts == {FIRST: {0: 5}, SECOND: {0: 7}}


@pytest.mark.parametrize("other", [SECOND, StreamName("t", "a")])
async def test_a_cut_of_another_stream_is_refused_before_any_is_published(
    monkeypatch: pytest.MonkeyPatch, other: StreamName
) -> None:
    """Streams of equal numbers of segments have segments of the same ids: the controller cannot see it."""
    published = Published(monkeypatch)
    third = StreamName("s", "c")
    with pytest.raises(BadRequestError, match=f"the cut belongs to {other}, not to s/a"):
        await published.group.publish_cuts({third: cut_of(third, 3), FIRST: cut_of(other, 5)})
    assert published.cuts == {}


@pytest.mark.parametrize("where", ["start", "end"])
def test_a_group_does_not_begin_or_end_at_a_cut_of_another_stream(where: str) -> None:
    start: Any = {FIRST: cut_of(SECOND if where == "start" else FIRST, 0), SECOND: None}
    end: Any = {FIRST: cut_of(SECOND if where == "end" else FIRST, 9)}
    with pytest.raises(BadRequestError, match="the cut belongs to s/b, not to s/a"):
        group_config(start, end=end)
