"""Remember since when a controller has seen that no record names a segment, on its own clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


class Sightings:
    """Segments that no record named in each look since the first one."""

    def __init__(self, most: int) -> None:
        self._first_s: dict[str, float] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._first_s)

    def see(self, segment: str, now_s: float) -> float | None:
        """Note that no record names the segment now; return for how long so, None for the first time.

        A segment for which there is no room is not noted.
        """
        first_s = self._first_s.get(segment)
        if first_s is not None:
            return now_s - first_s
        if len(self._first_s) < self._most:
            self._first_s[segment] = now_s
        return None

    def forget(self, segment: str) -> None:
        """Forget a segment that is named, or gone."""
        self._first_s.pop(segment, None)

    def keep(self, segments: Collection[str]) -> None:
        """Forget all others."""
        self._first_s = {each: first_s for each, first_s in self._first_s.items() if each in segments}
