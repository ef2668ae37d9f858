"""Parse and format sizes, durations, retention bounds and positions (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

from tailrace.common.errors import BadRequestError
from tailrace.common.stream_cut import StreamCut, parse_stream_cut

_SIZE_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_DURATION_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_DIGITS_MAX: Final = 100
INT64_MAX: Final = 2**63 - 1


def parse_size(text: str) -> int:
    """Return the bytes of ``1000``, ``64KiB``, ``1.5GB`` (KB is 1000, KiB 1024). Raises BadRequestError."""
    return _parse_number(text, _SIZE_UNITS, "a size such as 256MiB")


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of ``500ms``, ``90s``, ``2h``, ``7d``, ``1w``; with a unit. Raises BadRequestError."""
    return _parse_number(text, _DURATION_UNITS_MS, "a duration such as 90s, 2h or 7d")


def _parse_number(text: str, units: dict[str, int], what: str) -> int:
    match = _NUMBER.fullmatch(text.strip())
    factor = units.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise BadRequestError(f"{text[:80]!r} is not {what}")
    if len(match[1]) > _DIGITS_MAX:
        raise BadRequestError(f"{text[:80]!r} has too many digits")
    whole, _, fraction = match[1].partition(".")
    value = int(whole) * factor + (int(fraction) * factor // 10 ** len(fraction) if fraction else 0)
    if value > INT64_MAX:
        raise BadRequestError(f"{text[:80]!r} is too large")
    return value


class _Parse(Protocol):
    def __call__(self, text: str) -> int: ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """A minimum and an optional maximum."""

    minimum: int
    maximum: int | None = None


def parse_bounds(text: str, parse: _Parse) -> Bounds:
    """``MIN`` or ``MIN:MAX`` of sizes or durations. Raises BadRequestError when MAX is 0, or below MIN."""
    low, separator, high = text.partition(":")
    bounds = Bounds(parse(low), parse(high) if separator else None)
    if bounds.maximum == 0:  # an unset field in the controller's messages: there it means that there is no maximum
        raise BadRequestError(f"{text[:80]!r}: the maximum must be more than 0; without it, unread data is kept")
    if bounds.maximum is not None and bounds.maximum < bounds.minimum:
        raise BadRequestError(f"{text[:80]!r}: the maximum is below the minimum")
    return bounds


HEAD: Final = "head"
TAIL: Final = "tail"


def parse_position(text: str) -> str | StreamCut:
    """``head``, ``tail``, or a stream cut in the Java client's text form. Raises BadRequestError."""
    if text.lower() in (HEAD, TAIL):
        return text.lower()
    try:
        cut = parse_stream_cut(text)
    except BadRequestError as error:
        raise BadRequestError(f"{text[:40]!r} is not head, tail or a stream cut: {error}") from error
    return HEAD if cut is None else cut


def count_text(count: int, noun: str) -> str:
    """Format a count: ``1 event``, ``5,000 events``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration_text(duration_ms: int) -> str:
    """Format a duration in the largest unit that divides it: ``7d``, ``90s``."""
    for unit in ("w", "d", "h", "m", "s"):
        if duration_ms and duration_ms % _DURATION_UNITS_MS[unit] == 0:
            return f"{duration_ms // _DURATION_UNITS_MS[unit]}{unit}"
    return f"{duration_ms}ms"
