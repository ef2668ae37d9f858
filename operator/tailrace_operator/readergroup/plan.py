"""Compare the specification of a ReaderGroup with its group (docs/design.md#resources). Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tailrace.client.group.reader_group import group_config
from tailrace.client.model import ReaderGroupConfig, StreamName
from tailrace.common.stream_policies import StreamDataRetention

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
DIGEST: Final = "configurationDigest"


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
    wanted, found = _compared(wanted_config(spec, {})), _compared(stored)
    return [name for name, value in wanted.items() if value != found[name]]


def _compared(config: ReaderGroupConfig) -> dict[str, Any]:
    """Return the fields of a configuration that are compared, by their names in the spec."""
    return {
        "streams": sorted(config.starting),
        "retentionType": int(config.retention),
        "checkpointIntervalMs": config.automatic_checkpoint_ms,
        "maxOutstandingCheckpoints": config.max_outstanding_checkpoints,
        "groupRefreshMs": config.group_refresh_ms,
    }


def digest_field(spec: ReaderGroupSpec) -> dict[str, str]:
    """Return the field of the status that remembers which configuration was carried out."""
    text = json.dumps(_compared(wanted_config(spec, {})), sort_keys=True)
    return {DIGEST: hashlib.sha256(text.encode()).hexdigest()}


def is_edited(spec: ReaderGroupSpec, manifest: Manifest) -> bool:
    """Return whether the configuration in the spec was edited since it was last carried out.

    A new resource is not edited. Nor is one whose status is of an operator that did not remember what it carried out:
    the edit may have been one of other fields, and a reset cannot be taken back.
    """
    before = (manifest.get("status") or {}).get(DIGEST)
    return before is not None and before != digest_field(spec)[DIGEST]


def oldest_resource(manifests: Sequence[Mapping[str, Any]]) -> str:
    """Return the uid of the resource that was created first; within one second, the one with the lowest name."""
    first = min(manifests, key=lambda one: (one["metadata"].get("creationTimestamp") or "", one["metadata"]["name"]))
    return str(first["metadata"]["uid"])
