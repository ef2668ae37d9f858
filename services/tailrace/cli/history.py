"""A stream's segments over time, from its epochs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.client.control.history import StreamHistory


class SegmentSpan(NamedTuple):
    """A segment from its creation to its sealing, or to the present. ``length_bytes`` None: not known."""

    identifier: int
    low: float
    high: float
    from_ms: int
    to_ms: int
    is_sealed: bool
    length_bytes: int | None


def segment_spans(found: StreamHistory, active_lengths: Mapping[int, int], now_ms: int) -> list[SegmentSpan]:
    """Return all segments in the order of their creation."""
    begun: dict[int, tuple[float, float, int]] = {}
    ended: dict[int, int] = {}
    for epoch in found.epochs:
        for identifier in begun.keys() - ended.keys() - epoch.segments.keys():
            ended[identifier] = epoch.created_ms
        for identifier, keys in epoch.segments.items():
            begun.setdefault(identifier, (keys.low, keys.high, epoch.created_ms))
    last_ms = now_ms if found.sealed_ms is None else found.sealed_ms
    lengths = {**active_lengths, **found.sealed_sizes}
    return [
        SegmentSpan(
            identifier,
            low,
            high,
            from_ms,
            max(from_ms, ended.get(identifier, last_ms)),
            identifier in ended or found.sealed_ms is not None,
            lengths.get(identifier),
        )
        for identifier, (low, high, from_ms) in begun.items()
    ]


def time_of(span: SegmentSpan, offset: int) -> float:
    """Return when about an offset was written, in milliseconds: as if the segment had been written at an even rate."""
    if not span.length_bytes:
        return float(span.from_ms)
    part = min(1.0, max(0.0, offset / span.length_bytes))
    return span.from_ms + part * (span.to_ms - span.from_ms)


def cut_lines(spans: Sequence[SegmentSpan], cut: Mapping[int, int]) -> list[tuple[float, float, float]]:
    """Return the line of a cut: from which key to which, and about when it was written. A cut has each key once."""
    found = {span.identifier: span for span in spans}
    return sorted(
        (found[identifier].low, found[identifier].high, time_of(found[identifier], offset))
        for identifier, offset in cut.items()
        if identifier in found
    )


def as_json(stream: str, found: StreamHistory, spans: Sequence[SegmentSpan]) -> dict[str, Any]:
    """Return a history as one JSON value."""
    scope, _, name = stream.partition("/")
    return {
        "scope": scope,
        "stream": name,
        "state": found.state,
        "epochs": [
            {
                "epoch": epoch.epoch,
                "created_ms": epoch.created_ms,
                "reference": epoch.reference,
                "splits": epoch.splits,
                "merges": epoch.merges,
                "segments": list(epoch.segments),
            }
            for epoch in found.epochs
        ],
        "segments": [
            {
                "id": span.identifier,
                "low": span.low,
                "high": span.high,
                "created_ms": span.from_ms,
                "sealed_ms": span.to_ms if span.is_sealed else None,
                "length_bytes": span.length_bytes,
            }
            for span in spans
        ],
        "head": {str(identifier): offset for identifier, offset in found.head.items()},
        "subscribers": [
            {"subscriber": name, "cut": {str(identifier): offset for identifier, offset in cut.items()}}
            for name, cut in found.subscribers.items()
        ],
    }
