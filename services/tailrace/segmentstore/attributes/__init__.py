"""Attribute index: a B+Tree on append-only storage with progressive compaction (docs/design.md#attributes).

Pure: pages are read through the `PageReader` port and written by the caller, who appends ``IndexUpdate.data``.
"""

from tailrace.segmentstore.attributes.index import DEFAULT_KEY_LENGTH, IndexState, PageReader, get_many, iterate, reach
from tailrace.segmentstore.attributes.update import IndexUpdate, update

__all__ = ["DEFAULT_KEY_LENGTH", "IndexState", "IndexUpdate", "PageReader", "get_many", "iterate", "reach", "update"]
