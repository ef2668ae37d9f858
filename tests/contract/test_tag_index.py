"""The index of tags finds the same streams in table segments of a real store as in memory."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tailrace.common.real_ports import SystemClock, SystemEntropy
from tailrace.controller.metadata.metadata_store import (
    SCOPES_TABLE,
    MemoryMetadataStore,
    TableMetadataStore,
    scope_table,
    tag_table,
)
from tailrace.controller.metadata.ports import UNCONDITIONAL, MetadataStore, Put
from tailrace.controller.metadata.records import ScopeStreamEntry, encode
from tailrace.controller.metadata.scope_store import ScopeStore
from tailrace.controller.metadata.tag_index import TagIndex

from .test_metadata import real_segments


@pytest.fixture(params=["memory", "table segments"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    """A store with the table of scopes."""
    async with contextlib.AsyncExitStack() as stack:
        made: MetadataStore
        if request.param == "memory":
            made = MemoryMetadataStore()
        else:
            made = TableMetadataStore(await stack.enter_async_context(real_segments(tmp_path)))
        await made.create_table(SCOPES_TABLE)
        yield made


async def test_pages_of_a_tag_have_its_streams_once_and_drop_stale_entries(store: MetadataStore) -> None:
    scopes = ScopeStore(store, SystemClock(), SystemEntropy())
    tags = TagIndex(store, scopes, SystemEntropy())
    assert await scopes.create("s")
    owner = await scopes.require_existing("s")
    streams = {f"x{number}": ("all", "even") if number % 2 == 0 else ("all",) for number in range(120)}
    for start in range(0, 120, 60):
        part = list(streams.items())[start : start + 60]
        entries = [Put(f"s/{name}".encode(), encode(ScopeStreamEntry(each)), UNCONDITIONAL) for name, each in part]
        await store.put(scope_table("s", owner.nonce), entries)
    pairs = [(tag, name) for name, each in streams.items() for tag in each]
    assert await tags.missing("s", owner, pairs) == pairs
    await tags.put("s", owner, [*pairs, ("even", "x1"), ("even", "gone")])
    assert await tags.missing("s", owner, pairs) == []

    for tag, expected in (
        ("all", set(streams)),
        ("even", {n for n, e in streams.items() if "even" in e}),
        ("no", set()),
    ):
        found: list[str] = []
        token = ""
        while True:
            page, token = await tags.page("s", owner, tag, 7, token)
            if not page:
                break
            found += page
        assert token
        assert (len(found), set(found)) == (len(expected), expected)
    assert await tags.missing("s", owner, [("even", "x1"), ("even", "gone"), ("even", "x0")]) == [
        ("even", "x1"),
        ("even", "gone"),
    ]
    await store.remove(scope_table("s", owner.nonce), [(f"s/{name}".encode(), UNCONDITIONAL) for name in streams])
    await tags.drop("s", owner, pairs)
    assert await tags.missing("s", owner, pairs) == pairs
    await scopes.mark_deleting("s", owner.nonce, recursive=False)
    await scopes.delete("s", owner.nonce)
    await store.create_table(tag_table("s", owner.nonce), 32)
    assert await store.span(tag_table("s", owner.nonce), bytes(32), b"\xff" * 32, 10) == []
