"""Attributes of replayed appends: gathered by segment, and applied together (docs/performance.md#recovery). Pure.

A log of table updates sets a hundred attributes with each append, many of them again and again. The scan gathers their
last values natively; what a segment's maps need is done once for many appends.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.kernel import LastAttributes
    from tailrace.segmentstore.metadata.segment import Segment


class ReplayedAttributes:
    """Last values of attributes that are not applied yet. Apply them before anything else touches attributes.

    ``by_segment`` is what `kernel.scan_appends` fills, by segment id.
    """

    __slots__ = ("_bytes", "by_segment")

    def __init__(self) -> None:
        self.by_segment: dict[int, LastAttributes] = {}
        self._bytes = 0

    def scanned(self, length_bytes: int, segments: Mapping[int, Segment]) -> None:
        """Apply them when they are many, after a frame of so many bytes was scanned.

        Then what is gathered would take much memory, and its application long in one turn of the event loop.
        """
        self._bytes += length_bytes
        if self._bytes >= limits.REPLAYED_BYTES_PER_COUNT:
            self._bytes = 0
            if sum(map(len, self.by_segment.values())) > limits.REPLAYED_ATTRIBUTES_MAX:
                self.apply(segments)

    def apply(self, segments: Mapping[int, Segment]) -> None:
        """Apply all of them. Raises KeyError when a segment does not exist."""
        gathered = list(self.by_segment.items())
        self.by_segment.clear()  # not another one: a scan may be in the middle of a frame
        for segment_id, last in gathered:
            values, sequences = last.take()
            if values:
                in_order = dict(sorted(sequences.items(), key=itemgetter(1)))
                segments[segment_id].set_last_attributes({key: values[key] for key in in_order}, in_order)
