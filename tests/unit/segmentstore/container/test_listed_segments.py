"""The list of a container's segments, in pages (docs/controller.md#segments-that-no-record-names)."""

from __future__ import annotations

import pytest

from tailrace.common import limits
from tailrace.common.errors import ContainerStoppedError

from ..conftest import World


async def test_committed_segments_are_listed_in_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEGMENTS_PER_REPLY_MAX", 2)
    container = await world.open()
    names = [f"scope/stream/{number}.#epoch.0" for number in range(6)]
    for name in names:
        await container.create_segment(name)
    await container.seal(names[1])
    await container.delete(names[2])
    await container.merge(names[0], names[3])
    found: list[str] = []
    after, has_more, pages = -1, True, 0
    while has_more:
        page, has_more = container.list_segments(after)
        found += [name for _, name in page]
        after, pages = page[-1][0], pages + 1
    assert sorted(found) == [names[0], names[1], names[4], names[5]]
    assert pages == 2
    assert container.list_segments(after) == ([], False)
    await container.close()
    with pytest.raises(ContainerStoppedError):
        container.list_segments(-1)
