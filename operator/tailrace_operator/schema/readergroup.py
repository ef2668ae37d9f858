"""ReaderGroup: readers that share streams, where they begin, and what counts as lagging (design §11)."""

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
)

CHECKPOINT_INTERVAL: Final = Rule(
    f"self == {grammar.CHECKPOINT_INTERVAL_OFF} || self >= {grammar.CHECKPOINT_INTERVAL_MIN_MS}",
    f"checkpointIntervalMs is at least {grammar.CHECKPOINT_INTERVAL_MIN_MS}, or {grammar.CHECKPOINT_INTERVAL_OFF} for "
    "no checkpoints by themselves",
)
RUST_PUBLISHES_NOTHING: Final = Rule(
    "self.flavour != 'Rust' || self.retentionType == 'None'",
    "reader groups of the Rust flavour publish no cuts: retentionType must be None",
)
LAG_NEEDS_ONE: Final = Rule("has(self.bytes) || has(self.seconds)", "lagThreshold needs bytes, seconds or both")


def _lag_threshold() -> Schema:
    return struct(
        "The group counts as lagging when it is further behind than one of these.",
        {
            "bytes": string(
                "Unread bytes, as 1Gi.",
                max_length=grammar.QUANTITY_MAX_LENGTH,
                pattern=grammar.SIZE,
                rules=[rules.SIZE_BOUNDED],
            ),
            "seconds": integer("Age of the oldest unread data.", minimum=1, maximum=grammar.LAG_SECONDS_MAX),
        },
        rules=[LAG_NEEDS_ONE],
    )


def spec() -> Schema:
    """``spec`` of a ReaderGroup."""
    return struct(
        "What the reader group is to be.",
        {
            "cluster": string(
                "StreamCluster of the same namespace.",
                min_length=1,
                max_length=grammar.CLUSTER_NAME_MAX_LENGTH,
                pattern=grammar.CLUSTER_NAME,
                rules=[immutable("cluster")],
            ),
            "scope": string(
                "Scope of the group.",
                min_length=1,
                max_length=limits.SCOPE_NAME_MAX_LENGTH,
                pattern=grammar.USER_NAME,
                rules=[immutable("scope")],
            ),
            "groupName": string(
                "The group's name; the resource's own when it is not given. Immutable.",
                min_length=1,
                max_length=limits.STREAM_NAME_MAX_LENGTH,
                pattern=grammar.USER_NAME,
            ),
            "streams": string_set(
                "Streams that the group reads: of its own scope, or with theirs as SCOPE/STREAM.",
                string(
                    "A stream.",
                    min_length=1,
                    max_length=grammar.STREAM_REFERENCE_MAX_LENGTH,
                    pattern=grammar.STREAM_REFERENCE,
                ),
                min_items=1,
                max_items=limits.STREAMS_PER_READER_GROUP_MAX,
            ),
            "start": choice(
                "Where reading begins when the group is made: at the streams' beginnings or ends.",
                grammar.STARTS,
                default="Head",
                rules=[immutable("start")],
            ),
            "flavour": choice(
                "Whose state the group keeps. Java: that of the Java client and of our own; the operator makes the "
                "group. Rust: that of the Rust, Python and Node clients; the operator only watches it.",
                grammar.FLAVOURS,
                default="Java",
                rules=[immutable("flavour")],
            ),
            "retentionType": choice(
                "Whether the streams keep what the group has not read: the cut that counts is the last checkpoint, or "
                "what the application tells.",
                grammar.GROUP_RETENTIONS,
                default="None",
            ),
            "checkpointIntervalMs": integer(
                f"Between checkpoints that readers make by themselves, in milliseconds; "
                f"{grammar.CHECKPOINT_INTERVAL_OFF}: none.",
                minimum=grammar.CHECKPOINT_INTERVAL_OFF,
                maximum=grammar.INTERVAL_MAX_MS,
                default=grammar.CHECKPOINT_INTERVAL_DEFAULT_MS,
                rules=[CHECKPOINT_INTERVAL],
            ),
            "maxOutstandingCheckpoints": integer(
                "Checkpoints that may be under way.",
                minimum=1,
                maximum=grammar.CHECKPOINTS_OUTSTANDING_MAX,
                default=grammar.CHECKPOINTS_OUTSTANDING_DEFAULT,
            ),
            "groupRefreshMs": integer(
                "Between a reader's looks at the state of the group, in milliseconds.",
                minimum=grammar.REFRESH_MIN_MS,
                maximum=grammar.INTERVAL_MAX_MS,
                default=grammar.REFRESH_DEFAULT_MS,
            ),
            "lagThreshold": _lag_threshold(),
            "deletionPolicy": choice(
                "What becomes of the group and its positions when the resource is deleted.",
                grammar.DELETION_POLICIES,
                default="Retain",
            ),
        },
        required=("cluster", "scope", "streams"),
        rules=[RUST_PUBLISHES_NOTHING],
    )


def status() -> Schema:
    """``status`` of a ReaderGroup."""
    return struct(
        "What the reader group is.",
        {
            "observedGeneration": observed_generation(),
            "conditions": conditions(),
            "uid": string("uid of the resource that the group belongs to.", max_length=grammar.UUID_LENGTH),
            "onlineReaders": integer("Readers that are there."),
            "unassignedSegments": integer("Segments that no reader reads at present."),
            "lagBytes": integer("Unread bytes."),
            "lagSeconds": integer("Age of the oldest unread data."),
            "lastPublishedCut": keyed_list(
                "What the group told the controller that it has read, by stream.",
                "stream",
                struct(
                    "A stream's cut.",
                    {
                        "stream": string("SCOPE/STREAM.", min_length=1, max_length=grammar.STREAM_REFERENCE_MAX_LENGTH),
                        "cut": string("The cut in the Java client's text form.", max_length=grammar.CUT_MAX_LENGTH),
                    },
                    required=("stream", "cut"),
                ),
                max_items=limits.STREAMS_PER_READER_GROUP_MAX,
            ),
        },
    )


def root_rules() -> list[Rule]:
    """Rules over the whole resource."""
    return [
        rules.same_name("groupName", "reader group"),
        rules.name_fits("groupName", limits.STREAM_NAME_MAX_LENGTH),
    ]
