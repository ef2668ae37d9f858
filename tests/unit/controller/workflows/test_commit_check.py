"""What a commit pass asks of the segments before it takes its batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.controller.workflows.commit_batches import _uncommittable

TRANSACTIONS, SEGMENTS = 20, 100


class Name(str):
    """A segment's name that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class Segments:
    """All segments are there, whole and open, but for the one named."""

    def __init__(self, odd: str = "", **changes: Any) -> None:
        self.odd, self.changes = odd, changes

    async def infos(self, names: list[str]) -> list[Any]:
        whole = {"sealed": False, "start_offset": 0}
        return [SimpleNamespace(**(whole | (self.changes if name == self.odd else {}))) for name in names]


def names() -> dict[bytes, list[tuple[str, str]]]:
    """The pairs of target and source of each transaction."""
    return {
        bytes([number]): [(Name(f"to/{each}"), Name(f"from/{number}/{each}")) for each in range(SEGMENTS)]
        for number in range(TRANSACTIONS)
    }


async def check(segments: Segments) -> dict[bytes, str]:
    context: Any = SimpleNamespace(segments=segments)
    return await _uncommittable(context, names(), rolls=False)


async def test_the_check_costs_each_segment_the_same_however_many_there_are() -> None:
    Name.compared = 0
    assert await check(Segments()) == {}
    # One comparison in the segments above, and few when names meet in a table.
    assert Name.compared <= 5 * TRANSACTIONS * SEGMENTS


@pytest.mark.parametrize(
    ("odd", "changes", "refused"),
    [
        ("to/3", {"sealed": True}, {bytes([number]): "to/3 is sealed" for number in range(TRANSACTIONS)}),
        ("from/7/3", {"start_offset": 1}, {bytes([7]): "from/7/3 was truncated"}),
        ("from/7/3", {"sealed": True}, {}),
        ("to/3", {"start_offset": 1}, {}),
    ],
)
async def test_what_can_never_be_merged_is_refused(
    odd: str, changes: dict[str, Any], refused: dict[bytes, str]
) -> None:
    assert await check(Segments(odd, **changes)) == refused
