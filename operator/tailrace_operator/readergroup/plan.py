"""Compare the specification of a ReaderGroup with its group (docs/design.md#resources). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tailrace.client.group.reader_group import group_config
from tailrace.client.model import ReaderGroupConfig, StreamName
from tailrace.common.stream_policies import StreamDataRetention
from tailrace_operator.kube.manifests import generation_of, written_condition
from tailrace_operator.readergroup.conditions import ACCEPTED, WAITING
from tailrace_operator.reconcile.outcome import Status, condition_of

if TYPE_CHECKING:
    from tailrace.cluster.kubernetes import Manifest
    from tailrace.common.stream_cut import StreamCut
    from tailrace_operator.schema.specs import ReaderGroupSpec

_RETENTIONS: Final[Mapping[str, StreamDataRetention]] = {
    "None": StreamDataRetention.NONE,
    "ManualStreamCut": StreamDataRetention.MANUAL,
    "AutomaticAtLastCheckpoint": StreamDataRetention.AUTOMATIC_AT_LAST_CHECKPOINT,
}
_CHECKPOINTS_OFF_MS: Final = -1


def wanted_config(spec: ReaderGroupSpec, start: Mapping[str, StreamCut | None]) -> ReaderGroupConfig:
    """Return the specified configuration; `start`: cuts by ``scope/stream`` at which reading begins, else the head."""
    interval_ms = spec.checkpoint_interval_ms
    return group_config(
        {StreamName.parse(stream): start.get(stream) for stream in spec.streams},
        automatic_checkpoint_ms=_CHECKPOINTS_OFF_MS if interval_ms is None else interval_ms,
        group_refresh_ms=spec.group_refresh_ms,
        max_outstanding_checkpoints=spec.max_outstanding_checkpoints,
        retention=_RETENTIONS[spec.retention_type],
    )


def publishes(spec: ReaderGroupSpec) -> bool:
    """Return whether the group publishes stream cuts to the controller."""
    return spec.retention_type != "None"


def differences(spec: ReaderGroupSpec, stored: ReaderGroupConfig) -> list[str]:
    """Return the fields of the spec that differ from the stored configuration.

    `start` is not compared, because it applies only when the group is created, and an application's reset changes it.
    """
    wanted = wanted_config(spec, {})
    pairs = {
        "streams": (set(wanted.starting), set(stored.starting)),
        "retentionType": (wanted.retention, stored.retention),
        "checkpointIntervalMs": (wanted.automatic_checkpoint_ms, stored.automatic_checkpoint_ms),
        "maxOutstandingCheckpoints": (wanted.max_outstanding_checkpoints, stored.max_outstanding_checkpoints),
        "groupRefreshMs": (wanted.group_refresh_ms, stored.group_refresh_ms),
    }
    return [name for name, (asked, found) in pairs.items() if asked != found]


def is_edited(manifest: Manifest) -> bool:
    """Return whether the spec was edited since it was last carried out; a new resource is not edited."""
    observed = (manifest.get("status") or {}).get("observedGeneration")
    generation = generation_of(manifest)
    if observed is None or generation is None:
        return False
    refused_since = generation > 1 and condition_of(manifest, ACCEPTED) is Status.FALSE
    # What waits for a cluster or a stream keeps the generation that was carried out: nothing was refused.
    waits = written_condition(manifest, ACCEPTED).get("reason") in WAITING
    return bool(observed < generation) or (refused_since and not waits)


def oldest_resource(manifests: Sequence[Mapping[str, Any]]) -> str:
    """Return the uid of the resource that was created first; within one second, the one with the lowest name."""
    first = min(manifests, key=lambda one: (one["metadata"].get("creationTimestamp") or "", one["metadata"]["name"]))
    return str(first["metadata"]["uid"])
