"""Read records without which others can go on: one that is damaged or of a newer version is logged and left alone.

Lists that clients ask for read such records again and again, so the lines of the log are bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tailrace.common.errors import CorruptionError, FormatVersionError
from tailrace.common.logs import LimitedLog
from tailrace.controller.metadata.records import R, decode

if TYPE_CHECKING:
    from tailrace.controller.metadata.ports import Stored

_LOG = LimitedLog(structlog.get_logger(__name__))


def readable(kind: type[R], table: str, entry: Stored) -> R | None:
    """Return the record of an entry; None when it cannot be read."""
    place = f"{table}[{entry.key!r}]"
    try:
        return decode(kind, entry.value, place)
    except (CorruptionError, FormatVersionError) as error:
        _LOG.error("record left alone", place=place, reason=str(error))
        return None
