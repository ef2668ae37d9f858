"""What a ReaderGroup asks for, against what there is (design §11). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tailrace.client.group.reader_group import group_config
from tailrace.client.model import ReaderGroupConfig, StreamName
from tailrace.common.stream_policies import StreamDataRetention
from tailrace_operator.kube.manifests import generation_of
from tailrace_operator.readergroup.conditions import ACCEPTED
from tailrace_operator.reconcile.outcome import Truth, condition_of

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
    """The configuration asked for; reading begins at `start`, by ``scope/stream``, None or nothing is the head."""
    interval_ms = spec.checkpoint_interval_ms
    return group_config(
        {StreamName.parse(stream): start.get(stream) for stream in spec.streams},
        automatic_checkpoint_ms=_CHECKPOINTS_OFF_MS if interval_ms is None else interval_ms,
        group_refresh_ms=spec.group_refresh_ms,
        max_outstanding_checkpoints=spec.max_outstanding_checkpoints,
        retention=_RETENTIONS[spec.retention_type],
    )


def publishes(spec: ReaderGroupSpec) -> bool:
    """Whether the group tells the controller how far it has read."""
    return spec.retention_type != "None"


def differences(spec: ReaderGroupSpec, stored: ReaderGroupConfig) -> list[str]:
    """Fields of the spec that the stored configuration does not follow.

    Where reading began is not among them: a reset by an application changes it, and a group begins once.
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
    """Whether the spec was changed since it was carried out last; a new resource is not edited."""
    observed = (manifest.get("status") or {}).get("observedGeneration")
    generation = generation_of(manifest)
    if observed is None or generation is None:
        return False
    refused_since = generation > 1 and condition_of(manifest, ACCEPTED) is Truth.FALSE
    return bool(observed < generation) or refused_since


def eldest(manifests: Sequence[Mapping[str, Any]]) -> str:
    """uid of the resource that was made first; of those of one second, the one of the lowest name."""
    first = min(manifests, key=lambda one: (one["metadata"].get("creationTimestamp") or "", one["metadata"]["name"]))
    return str(first["metadata"]["uid"])
