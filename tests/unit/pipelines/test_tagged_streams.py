"""The streams of a tag: which ones a query reads next, and when it looks again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace.client.control.history import StreamHistory
from tailrace.client.model import StreamName
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, NoSuchStreamError
from tailrace.pipelines.source.options import Tag, parse_options
from tailrace.pipelines.source.plan import Slice, slices
from tailrace.pipelines.source.tagged import Division, TaggedStreams, divide

A, B, C, D = (StreamName("s", name) for name in "abcd")


def test_streams_are_read_kept_forgotten_or_joined() -> None:
    positions = {A: {0: 1}, B: {0: 2}, C: {0: 3}}
    found = divide(positions, tagged=[A, D], deleted=[C])
    assert found == Division(read={A: {0: 1}}, idle={B: {0: 2}}, joined=[D])


def test_nothing_of_a_stream_is_read_in_the_batch_that_finds_it() -> None:
    start, end = {A: {0: 1}, B: {0: 2}}, {A: {0: 5}, B: {0: 2}, D: {0: 7}}
    assert slices(start, end) == [Slice(A, 0, 1, 5)]
    assert slices({**start, D: {0: 7}}, {D: {0: 9}}) == [Slice(D, 0, 7, 9)]


class Controller:
    def __init__(self) -> None:
        self.tagged: list[StreamName] = []
        self.looks = 0

    async def list_streams(self, scope: str, *, tag: str) -> AsyncIterator[StreamName]:
        assert (scope, tag) == ("s", "red")
        self.looks += 1
        for stream in self.tagged:
            yield stream

    async def stream_exists(self, stream: StreamName) -> bool:
        return stream != C

    async def stream_history(self, stream: StreamName) -> StreamHistory:
        if stream == C:
            raise NoSuchStreamError("deleted after it was listed")
        return StreamHistory("deleting" if stream == D else "sealed", (), {}, {}, {}, None)


async def test_the_tag_is_looked_up_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller()
    tagged = TaggedStreams(cast("Any", SimpleNamespace(controller=controller)), Tag("s", "red"))
    with pytest.raises(NoSuchStreamError, match="no stream of scope s has the tag red"):
        await tagged.some()
    controller.tagged = [B, A]
    assert await tagged.some() == (A, B)
    controller.tagged = [A]
    assert await tagged.now() == (A, B)
    assert controller.looks == 2
    assert await tagged.now(fresh=True) == (A,)
    controller.tagged = [B]
    now_s = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s + limits.SPARK_TAG_LOOK_S + 1)
    assert await tagged.now() == (B,)
    assert await tagged.divide({A: {}, C: {}}, [B]) == Division(idle={A: {}}, joined=[B])


async def test_a_fresh_look_leaves_out_what_is_being_deleted() -> None:
    controller = Controller()
    tagged = TaggedStreams(cast("Any", SimpleNamespace(controller=controller)), Tag("s", "red"))
    controller.tagged = [A, C, D]
    assert await tagged.now() == (A, C, D), "what listed it knows no states"
    assert await tagged.now(fresh=True) == (A,)
    assert await tagged.now() == (A,), "until the next look"
    assert await tagged.divide({A: {}, C: {}, D: {}}, [A]) == Division(read={A: {}}, idle={D: {}})


def test_a_tag_may_have_slashes() -> None:
    assert parse_options({"controller": "tcp://h:1", "tag": "s/a/b"}, streaming=True).tag == Tag("s", "a/b")
    for text in ("s", "s/", "/t", ""):
        with pytest.raises(BadRequestError, match="is not of the form SCOPE/TAG"):
            parse_options({"controller": "tcp://h:1", "tag": text}, streaming=True)
