"""Reads the headers and footers of an object's sections, without their data (docs/formats/chunks.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.common.errors import CorruptionError, FormatVersionError, NotFoundError
from tailrace.storage import chunks

if TYPE_CHECKING:
    from tailrace.segmentstore.metadata.fields import ChunkRef
    from tailrace.storage.port import ObjectStore

_HEADER_READ_BYTES: Final = 4096
"""Holds a footer and the header behind it: names are at most ``limits.SEGMENT_NAME_MAX_BYTES`` long."""


class StructureError(Exception):
    """A section is damaged at ``position`` of its object; the sections behind it cannot be found."""

    def __init__(self, position: int, reason: object) -> None:
        super().__init__(reason.reason if isinstance(reason, CorruptionError) else str(reason))
        self.position = position


class SectionReader:
    """Reads the sections of objects of one cluster."""

    def __init__(self, store: ObjectStore, cluster_id: bytes) -> None:
        self._store = store
        self._cluster_id = cluster_id

    async def sections(self, key: str, size: int) -> dict[int, chunks.SectionHeader]:
        """Return the header of each section of an object of ``size`` bytes, by the position of its data.

        Raises:
            StructureError: a section is damaged, cut off, or another cluster's.
        """
        sections: dict[int, chunks.SectionHeader] = {}
        place = f"object {key}"
        position = 0
        raw = memoryview(await self._read(key, 0, size))
        while True:
            try:
                header, header_bytes = chunks.decode_header(raw, place)
            except (CorruptionError, FormatVersionError) as error:
                raise StructureError(position, error) from error
            if header.cluster_id != self._cluster_id:
                raise StructureError(position, f"written by another cluster, {header.cluster_id.hex()}")
            data = position + header_bytes
            sections[data] = header
            footer = data + chunks.stored_length(header.length)
            end = footer + chunks.FOOTER_BYTES
            if end > size:
                raise StructureError(size, f"the object ends {end - size} bytes early")
            header_crc = int.from_bytes(raw[header_bytes - 4 : header_bytes], "big")
            raw = memoryview(await self._read(key, footer, size))
            try:
                chunks.decode_footer(raw, header_crc, header.length, place)
            except CorruptionError as error:
                raise StructureError(footer, error) from error
            if end == size:
                return sections
            raw, position = raw[chunks.FOOTER_BYTES :], end

    async def _read(self, key: str, position: int, size: int) -> bytes:
        try:
            return await self._store.get_range(key, position, min(_HEADER_READ_BYTES, size - position))
        except (NotFoundError, CorruptionError) as error:
            raise StructureError(position, error) from error


def section_problem(ref: ChunkRef, section: chunks.SectionHeader | None) -> str:
    """Return what is wrong with the section at a reference's position; empty: nothing. None: there is no section."""
    if section is None:
        return "no section begins there"
    if section.length != ref.length:
        return f"the section there has {section.length} bytes, not {ref.length}"
    return ""
