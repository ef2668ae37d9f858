"""Quantities as text for people (pure)."""

from __future__ import annotations


def size_text(size_bytes: float) -> str:
    """A size for people: ``364 B``, ``1.5 MiB``."""
    value, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
