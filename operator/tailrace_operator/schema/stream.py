"""Schema of a Stream: its scope, scaling and retention (docs/design.md#resources)."""

from __future__ import annotations

from typing import Final

from tailrace.common import limits
from tailrace_operator.schema import grammar, rules
from tailrace_operator.schema.build import (
    Rule,
    Schema,
    choice,
    conditions,
    immutable,
    integer,
    keyed_list,
    observed_generation,
    string,
    string_set,
    struct,
    timestamp,
)

FIXED_TAKES_NO_RATE: Final = Rule(
    "self.type != 'Fixed' || (!has(self.target) && !has(self.scaleFactor))",
    "Fixed scaling allows neither target nor scaleFactor",
)
RATES_NEED_TARGET: Final = Rule(
    "self.type == 'Fixed' || has(self.target)", "EventRate and ByteRate scaling need a target"
)


_SIZES: Final = f"({rules.is_size('self.min')} && (!has(self.max) || {rules.is_size('self.max')}))"
_DURATIONS: Final = f"({rules.is_duration('self.min')} && (!has(self.max) || {rules.is_duration('self.max')}))"

SIZE_RETENTION_KEEPS_SIZES: Final = Rule(
    f"self.type != 'Size' || {_SIZES}", "min and max of Size retention must be sizes, for example 10Gi"
)
TIME_RETENTION_KEEPS_DURATIONS: Final = Rule(
    f"self.type != 'Time' || {_DURATIONS}", "min and max of Time retention must be durations, for example 7d"
)
RETENTION_SIZES_BOUNDED: Final = Rule(
    f"self.type != 'Size' || !{_SIZES} || ("
    f"quantity(self.min).compareTo(quantity('{grammar.SIZE_MAX}')) <= 0 && "
    f"(!has(self.max) || quantity(self.max).compareTo(quantity('{grammar.SIZE_MAX}')) <= 0))",
    f"min and max of Size retention must be at most {grammar.SIZE_MAX}",
)
# 0 is an unset field in the controller's messages: there it would mean that there is no maximum.
RETENTION_MAX_POSITIVE: Final = Rule(
    "self.matches('[1-9]')", "max must be more than 0; without it, unread data is kept"
)
RETENTION_MIN_MAX: Final = Rule(
    f"!has(self.max) || (self.type == 'Size' ? "
    f"(!{_SIZES} || quantity(self.min).compareTo(quantity(self.max)) <= 0) : "
    f"(!{_DURATIONS} || {rules.duration_s('self.min')} <= {rules.duration_s('self.max')}))",
    "min must not be above max",
)


def _scaling() -> Schema:
    return struct(
        "Number of segments of the stream.",
        {
            "type": choice(
                "Fixed: minSegments segments. EventRate, ByteRate: more segments while one receives more than target.",
                grammar.SCALING_TYPES,
                default="Fixed",
            ),
            "target": integer(
                "Target rate of a segment: events per second (EventRate) or kilobytes of 1024 bytes per second "
                "(ByteRate).",
                minimum=1,
                maximum=grammar.INT32_MAX,
            ),
            "scaleFactor": integer(
                f"Segments that a hot one is split into at most; {grammar.SCALE_FACTOR_DEFAULT} when it is not given.",
                minimum=1,
                maximum=grammar.INT32_MAX,
            ),
            "minSegments": integer(
                "Segments: as many (Fixed), at least so many (others). `kubectl scale` sets it.",
                minimum=1,
                maximum=limits.STREAM_SEGMENTS_MAX,
                default=1,
            ),
        },
        defaulted=True,
        rules=[FIXED_TAKES_NO_RATE, RATES_NEED_TARGET],
    )


def _bound(description: str, *more: Rule) -> Schema:
    return string(description, max_length=grammar.QUANTITY_MAX_LENGTH, pattern=grammar.SIZE_OR_DURATION, rules=more)


def _retention() -> Schema:
    return struct(
        "When the oldest data of the stream is deleted. Without retention, all data is kept.",
        {
            "type": choice("Whether size or age decides.", grammar.RETENTION_TYPES),
            "min": _bound(
                "Minimum that is kept: a size such as 10Gi (Size) or a duration such as 7d (Time). With 0 only what "
                "reader groups that count for retention have not read is kept, and nothing without one."
            ),
            "max": _bound(
                "Maximum that is kept, even if a reader group has not read it yet; more than 0. Without it, unread "
                "data is kept.",
                RETENTION_MAX_POSITIVE,
            ),
        },
        required=("type", "min"),
        rules=[SIZE_RETENTION_KEEPS_SIZES, TIME_RETENTION_KEEPS_DURATIONS, RETENTION_SIZES_BOUNDED, RETENTION_MIN_MAX],
    )


def spec() -> Schema:
    """Return the schema of ``spec``."""
    return struct(
        "Desired state of the stream.",
        {
            "cluster": string(
                "StreamCluster of the same namespace.",
                min_length=1,
                max_length=grammar.CLUSTER_NAME_MAX_LENGTH,
                pattern=grammar.CLUSTER_NAME,
                rules=[immutable("cluster")],
            ),
            "scope": string(
                "Scope of the stream. The operator creates a missing scope and never deletes one.",
                min_length=1,
                max_length=limits.SCOPE_NAME_MAX_LENGTH,
                pattern=grammar.USER_NAME,
                rules=[immutable("scope")],
            ),
            "streamName": string(
                "Name of the stream; default: the name of the resource. Immutable.",
                min_length=1,
                max_length=limits.STREAM_NAME_MAX_LENGTH,
                pattern=grammar.USER_NAME,
            ),
            "scaling": _scaling(),
            "retention": _retention(),
            "tags": string_set(
                "Tags to find the stream by.",
                string("A tag.", min_length=1, max_length=limits.TAG_MAX_LENGTH),
                max_items=limits.TAGS_PER_STREAM_MAX,
            ),
            "rolloverSize": string(
                "Maximum size of a chunk in the object store, from 1Mi to 8Mi (the default); for new segments.",
                max_length=grammar.QUANTITY_MAX_LENGTH,
                pattern=grammar.SIZE,
                rules=[rules.SIZE_BOUNDED],
            ),
            "deletionPolicy": choice(
                "What happens to the stream and its data when the resource is deleted.",
                grammar.DELETION_POLICIES,
                default="Retain",
            ),
        },
        required=("cluster", "scope"),
    )


def _rates() -> Schema:
    segments = keyed_list(
        "Active segments whose rates are known, in the order of their ids: those with the highest rates.",
        "segment",
        struct(
            "An active segment.",
            {
                "segment": integer("Its id, as `tailrace stream info` shows it."),
                "perSecond": integer("Its rate, as a mean over two minutes."),
            },
            required=("segment", "perSecond"),
        ),
        max_items=grammar.SEGMENT_RATES_LISTED_MAX,
    )
    return struct(
        "How fast segments of a stream that scales by rates are written; as it was, while no controller knows it.",
        {
            "type": choice(
                "EventRate: in events per second; ByteRate: in kilobytes of 1024 bytes per second.",
                grammar.RATE_SCALING_TYPES,
            ),
            "time": timestamp("When a controller got these rates."),
            "segments": segments,
        },
        required=("type", "time", "segments"),
    )


def _last_scale() -> Schema:
    return struct(
        "Last time that the number of segments changed, by spec.scaling or by a call.",
        {
            "time": timestamp("When."),
            "splits": integer("Segments that were split."),
            "merges": integer("Segments that were made of several."),
            "reason": string(
                "Rate: the rates of its segments called for it, by spec.scaling; Policy: spec.scaling was edited; "
                "Manual: a call, by the operator or another client; absent: a controller of an earlier version "
                "scaled it.",
                max_length=grammar.REASON_MAX_LENGTH,
            ),
        },
        required=("time", "splits", "merges"),
    )


def _last_truncation() -> Schema:
    return struct(
        "Last time that data was deleted by spec.retention.",
        {
            "time": timestamp("When."),
            "reason": string(
                "MinLimit: beyond the minimum; Consumption: read by all subscribers; MaxLimit: beyond the maximum, "
                "although a subscriber has not read it.",
                max_length=grammar.REASON_MAX_LENGTH,
            ),
            "freedBytes": integer("Bytes deleted."),
        },
        required=("time", "reason", "freedBytes"),
    )


def _retained() -> Schema:
    return struct(
        "What spec.retention keeps, and why; absent without spec.retention.",
        {
            "retainedBytes": integer("Bytes stored."),
            "oldestTime": timestamp("When the oldest of them was written, at the earliest."),
            "lastRun": timestamp("When the controllers applied spec.retention last without an error."),
            "lastTruncation": _last_truncation(),
            "heldBy": struct(
                "Reader group that holds back most, while more than the minimum of spec.retention is kept for it.",
                {
                    "subscriber": string("SCOPE/GROUP.", max_length=grammar.SUBSCRIBER_MAX_LENGTH),
                    "resource": string(
                        "ReaderGroup of the same namespace; absent when no resource describes the group.",
                        max_length=grammar.OBJECT_NAME_MAX_LENGTH,
                    ),
                    "cutTime": timestamp("When it published its position."),
                    "heldBytes": integer("Bytes after its position."),
                },
                required=("subscriber", "heldBytes"),
            ),
        },
        required=("retainedBytes",),
    )


def _subscribers() -> Schema:
    return keyed_list(
        "Reader groups whose positions count for retention, those with most unread bytes first.",
        "name",
        struct(
            "A reader group.",
            {
                "name": string("SCOPE/GROUP.", min_length=1, max_length=grammar.SUBSCRIBER_MAX_LENGTH),
                "unreadBytes": integer("Bytes after its position; absent before it has one."),
            },
            required=("name",),
        ),
        max_items=grammar.SUBSCRIBERS_LISTED_MAX,
    )


def status() -> Schema:
    """Return the schema of ``status``."""
    return struct(
        "Observed state of the stream.",
        {
            "observedGeneration": observed_generation(),
            "conditions": conditions(),
            "uid": string("uid of the resource that owns the stream.", max_length=grammar.UUID_LENGTH),
            "epoch": integer("Number of times that the stream was scaled."),
            "segments": integer("Active segments."),
            "headBytes": integer("Bytes truncated from the head of the stream."),
            "tailBytes": integer("Bytes written to the stream since its creation."),
            "bytes": integer("Bytes stored: tailBytes minus headBytes."),
            "tier2Bytes": integer(
                "Bytes of objects that the stream holds in the object store, minutes ago; absent while unknown."
            ),
            "measuredTime": timestamp("When headBytes, tailBytes, bytes, retention and subscribers were measured."),
            "rates": _rates(),
            "lastScale": _last_scale(),
            "retention": _retained(),
            "subscribers": _subscribers(),
        },
    )


def root_rules() -> list[Rule]:
    """Return the rules over the whole resource."""
    return [
        rules.same_name("streamName", "stream"),
        rules.name_fits("streamName", limits.STREAM_NAME_MAX_LENGTH),
    ]
