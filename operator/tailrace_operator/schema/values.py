"""Convert sizes, CPU amounts and durations to numbers. Pure. The texts match the patterns of the schema."""

from __future__ import annotations

import re
from typing import Final

from tailrace_operator.schema import grammar

_SIZE_UNITS: Final = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_DURATION_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_NUMBER: Final = re.compile(r"(\d+)(?:\.(\d+))?([A-Za-z]*)")


def matches(pattern: str, text: str) -> bool:
    """Return whether the whole text matches a pattern of the schema, which begins with ^ and ends with $."""
    return re.fullmatch(pattern.removeprefix("^").removesuffix("$"), text) is not None


def is_size(text: str) -> bool:
    """Return whether the text is a size such as ``10Gi``."""
    return matches(grammar.SIZE, text)


def is_duration(text: str) -> bool:
    """Return whether the text is a duration such as ``7d``."""
    return matches(grammar.DURATION, text)


def size_bytes(given: str | int) -> int:
    """Return the bytes of ``1536Mi``, ``1.5G`` or ``4096``, rounded up as Kubernetes does.

    Raises:
        ValueError: the text is not a size.
    """
    text = str(given)
    if not is_size(text):
        raise ValueError(f"{text[:40]!r} is not a size such as 1536Mi")
    whole, fraction, unit = _parts(text)
    return _rounded_up(whole, fraction, _SIZE_UNITS[unit])


def cpu_millis(given: str | int) -> int:
    """Return the thousandths of a CPU of ``500m``, ``2`` or ``1.5``.

    Raises:
        ValueError: the text is not an amount of CPU.
    """
    text = str(given)
    if not matches(grammar.CPU, text):
        raise ValueError(f"{text[:40]!r} is not an amount of CPU such as 500m")
    whole, fraction, unit = _parts(text)
    return _rounded_up(whole, fraction, 1 if unit == "m" else 1000)


def duration_ms(text: str) -> int:
    """Return the milliseconds of ``90s``, ``15m``, ``2h`` or ``7d``.

    Raises:
        ValueError: the text is not a duration.
    """
    if not is_duration(text):
        raise ValueError(f"{text[:40]!r} is not a duration such as 7d")
    whole, _, unit = _parts(text)
    return int(whole) * _DURATION_UNITS_MS[unit]


def _parts(text: str) -> tuple[str, str, str]:
    match = _NUMBER.fullmatch(text)
    assert match is not None, text
    return match[1], match[2] or "", match[3]


def _rounded_up(whole: str, fraction: str, factor: int) -> int:
    scale: int = 10 ** len(fraction)
    return -(-int(whole + fraction) * factor // scale)
