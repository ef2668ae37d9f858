"""Schema of a ReaderGroup: its streams, where it begins to read, its lag threshold (docs/design.md#resources)."""

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
    f"checkpointIntervalMs must be at least {grammar.CHECKPOINT_INTERVAL_MIN_MS}, or "
    f"{grammar.CHECKPOINT_INTERVAL_OFF} for no automatic checkpoints",
)
RUST_PUBLISHES_NOTHING: Final = Rule(
    "self.flavour != 'Rust' || self.retentionType == 'None'",
    "reader groups of the Rust flavour publish no cuts: retentionType must be None",
)
LAG_NEEDS_ONE: Final = Rule("has(self.bytes) || has(self.seconds)", "lagThreshold needs bytes, seconds or both")


def _lag_threshold() -> Schema:
    return struct(
        "The group is lagging when its lag exceeds one of these.",
        {
            "bytes": string(
                "Unread bytes, for example 1Gi.",
                max_length=grammar.QUANTITY_MAX_LENGTH,
                pattern=grammar.SIZE,
                rules=[rules.SIZE_BOUNDED],
            ),
            "seconds": integer("Age of the oldest unread data.", minimum=1, maximum=grammar.LAG_SECONDS_MAX),
        },
        rules=[LAG_NEEDS_ONE],
    )


def spec() -> Schema:
    """Return the schema of ``spec``."""
    return struct(
        "Desired state of the reader group.",
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
                "Name of the group; default: the name of the resource. Immutable.",
                min_length=1,
                max_length=limits.STREAM_NAME_MAX_LENGTH,
                pattern=grammar.USER_NAME,
            ),
            "streams": string_set(
                "Streams that the group reads: STREAM in the group's scope, or SCOPE/STREAM.",
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
                "Where a new group begins to read: at the head or at the tail of its streams.",
                grammar.STARTS,
                default="Head",
                rules=[immutable("start")],
            ),
            "flavour": choice(
                "Format of the group's state. Java: of the Java client and of Tailrace's own client; the operator "
                "creates the group. Rust: of the Rust, Python and Node clients; the operator only observes the group.",
                grammar.FLAVOURS,
                default="Java",
                rules=[immutable("flavour")],
            ),
            "retentionType": choice(
                "Whether the streams keep data that the group has not read. The cut is the last checkpoint "
                "(AutomaticAtLastCheckpoint), or set by the application (ManualStreamCut).",
                grammar.GROUP_RETENTIONS,
                default="None",
            ),
            "checkpointIntervalMs": integer(
                f"Milliseconds between automatic checkpoints; {grammar.CHECKPOINT_INTERVAL_OFF}: no such checkpoints.",
                minimum=grammar.CHECKPOINT_INTERVAL_OFF,
                maximum=grammar.INTERVAL_MAX_MS,
                default=grammar.CHECKPOINT_INTERVAL_DEFAULT_MS,
                rules=[CHECKPOINT_INTERVAL],
            ),
            "maxOutstandingCheckpoints": integer(
                "Maximum number of checkpoints in progress.",
                minimum=1,
                maximum=grammar.CHECKPOINTS_OUTSTANDING_MAX,
                default=grammar.CHECKPOINTS_OUTSTANDING_DEFAULT,
            ),
            "groupRefreshMs": integer(
                "Milliseconds after which a reader reads the state of the group again.",
                minimum=grammar.REFRESH_MIN_MS,
                maximum=grammar.INTERVAL_MAX_MS,
                default=grammar.REFRESH_DEFAULT_MS,
            ),
            "lagThreshold": _lag_threshold(),
            "deletionPolicy": choice(
                "What happens to the group and its positions when the resource is deleted.",
                grammar.DELETION_POLICIES,
                default="Retain",
            ),
        },
        required=("cluster", "scope", "streams"),
        rules=[RUST_PUBLISHES_NOTHING],
    )


def status() -> Schema:
    """Return the schema of ``status``."""
    return struct(
        "Observed state of the reader group.",
        {
            "observedGeneration": observed_generation(),
            "conditions": conditions(),
            "configurationDigest": string(
                "Digest of the group's configuration in the specification that was last carried out. An edit that "
                "changes it resets the group.",
                max_length=grammar.DIGEST_MAX_LENGTH,
            ),
            "uid": string("uid of the resource that owns the group.", max_length=grammar.UUID_LENGTH),
            "onlineReaders": integer("Online readers."),
            "unassignedSegments": integer("Segments that no reader is assigned to."),
            "lagBytes": integer("Unread bytes."),
            "lagSeconds": integer("Age of the oldest unread data."),
            "lastPublishedCut": keyed_list(
                "Last cut that the group published to the controller, by stream.",
                "stream",
                struct(
                    "The cut of a stream.",
                    {
                        "stream": string("SCOPE/STREAM.", min_length=1, max_length=grammar.STREAM_REFERENCE_MAX_LENGTH),
                        "cut": string(
                            "The cut in the text format of the Java client.", max_length=grammar.CUT_MAX_LENGTH
                        ),
                    },
                    required=("stream", "cut"),
                ),
                max_items=limits.STREAMS_PER_READER_GROUP_MAX,
            ),
        },
    )


def root_rules() -> list[Rule]:
    """Return the rules over the whole resource."""
    return [
        rules.same_name("groupName", "reader group"),
        rules.name_fits("groupName", limits.STREAM_NAME_MAX_LENGTH),
    ]
