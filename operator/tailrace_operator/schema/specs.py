"""Parse the specifications of resources into values (docs/design.md#resources). Pure.

The API server has validated a resource already. It is validated again here, because an older definition may be
installed. Defaults come from the schema, and the rules are those in CEL; `tailrace_operator.schema` has both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tailrace.common import limits
from tailrace.common.errors import InvalidSpecError
from tailrace_operator.schema import grammar, readergroup, rules, stream, streamcluster, values
from tailrace_operator.schema.apply import applied

if TYPE_CHECKING:
    from tailrace_operator.schema.build import Rule

_STREAM_CLUSTER: Final = streamcluster.spec()
_STREAM: Final = stream.spec()
_READER_GROUP: Final = readergroup.spec()


@dataclass(frozen=True, slots=True)
class SegmentStoreSpec:
    """Pods of the data plane; memory is a pod's limit."""

    replicas: int = grammar.STORE_REPLICAS_DEFAULT
    workers: int = grammar.STORE_WORKERS_DEFAULT
    memory_bytes: int = values.size_bytes(grammar.STORE_MEMORY_DEFAULT)
    cpu_millis: int | None = None


@dataclass(frozen=True, slots=True)
class ControllerSpec:
    """Pods of the control plane; memory is a pod's limit."""

    replicas: int = grammar.CONTROLLER_REPLICAS_DEFAULT
    memory_bytes: int = values.size_bytes(grammar.CONTROLLER_MEMORY_DEFAULT)
    cpu_millis: int | None = None


def bucket_url(bucket: str, prefix: str) -> str:
    """Return ``s3://BUCKET/PREFIX``."""
    return f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"


@dataclass(frozen=True, slots=True)
class Tier2Spec:
    """The object store. ``credentials_secret`` has the keys accessKey and secretKey."""

    bucket: str
    endpoint: str
    credentials_secret: str
    prefix: str = ""
    region: str | None = None

    @property
    def url(self) -> str:
        """Return ``s3://BUCKET/PREFIX``."""
        return bucket_url(self.bucket, self.prefix)


@dataclass(frozen=True, slots=True)
class StreamClusterSpec:
    """A cluster. ``image`` None: the operator's own."""

    tier2: Tier2Spec
    containers: int = grammar.CONTAINERS_DEFAULT
    segment_store: SegmentStoreSpec = field(default_factory=SegmentStoreSpec)
    controller: ControllerSpec = field(default_factory=ControllerSpec)
    retention_period_ms: int = values.duration_ms(grammar.RETENTION_PERIOD_DEFAULT)
    adopt_cluster_id: str | None = None
    image: str | None = None
    image_pull_policy: str | None = None

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> StreamClusterSpec:
        """Parse a StreamCluster. Raises InvalidSpecError, which names the field."""
        name = _name(manifest)
        hold(streamcluster.CLUSTER_NAME, "metadata.name", cluster_name_fits(name))
        spec = applied(_STREAM_CLUSTER, manifest.get("spec"), "spec")
        tier2, store = spec["tier2"], spec["segmentStore"]
        workers = store["replicas"] * store["workers"]
        hold(streamcluster.WORKERS_AT_MOST, "spec.segmentStore", workers <= grammar.WORKERS_ALL_MAX)
        return cls(
            tier2=Tier2Spec(
                bucket=tier2["bucket"],
                endpoint=tier2["endpoint"],
                credentials_secret=tier2["credentialsSecret"],
                prefix=tier2["prefix"],
                region=tier2.get("region"),
            ),
            containers=spec["containers"],
            segment_store=SegmentStoreSpec(
                store["replicas"],
                store["workers"],
                *resources_of(store, "spec.segmentStore", rules.MEMORY_AT_LEAST, grammar.MEMORY_MIN_MIB),
            ),
            controller=ControllerSpec(
                spec["controller"]["replicas"],
                *resources_of(
                    spec["controller"],
                    "spec.controller",
                    rules.CONTROLLER_MEMORY_AT_LEAST,
                    grammar.CONTROLLER_MEMORY_MIN_MIB,
                ),
            ),
            retention_period_ms=values.duration_ms(spec["retention"]["period"]),
            adopt_cluster_id=spec.get("adoptClusterId"),
            image=spec.get("image"),
            image_pull_policy=spec.get("imagePullPolicy"),
        )

    def cluster_id(self, uid: str) -> str:
        """Return the id of the cluster in the bucket, for a resource of that uid (ADR 0013)."""
        return self.adopt_cluster_id or uid


@dataclass(frozen=True, slots=True)
class ScalingSpec:
    """``kind``: Fixed, EventRate or ByteRate. ``target``: events or KiB a second of a segment; 0 for Fixed."""

    kind: str = "Fixed"
    min_segments: int = 1
    target: int = 0
    scale_factor: int = 0


@dataclass(frozen=True, slots=True)
class RetentionSpec:
    """``kind``: Size or Time; the bounds in bytes or milliseconds."""

    kind: str
    minimum: int
    maximum: int | None = None


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream. ``deletion_policy``: Retain or Delete."""

    cluster: str
    scope: str
    stream_name: str
    scaling: ScalingSpec = field(default_factory=ScalingSpec)
    retention: RetentionSpec | None = None
    tags: tuple[str, ...] = ()
    rollover_size_bytes: int = 0
    deletion_policy: str = "Retain"

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> StreamSpec:
        """Parse a Stream. Raises InvalidSpecError, which names the field."""
        spec = applied(_STREAM, manifest.get("spec"), "spec")
        return cls(
            cluster=spec["cluster"],
            scope=spec["scope"],
            stream_name=_own_name(manifest, spec, "streamName", _STREAM),
            scaling=_scaling(spec["scaling"], "spec.scaling"),
            retention=_retention(spec["retention"], "spec.retention") if "retention" in spec else None,
            tags=tuple(spec.get("tags", ())),
            rollover_size_bytes=_size(spec["rolloverSize"], "spec.rolloverSize") if "rolloverSize" in spec else 0,
            deletion_policy=spec["deletionPolicy"],
        )


@dataclass(frozen=True, slots=True)
class LagThreshold:
    """The lag threshold: the group is lagging when one of these is exceeded."""

    bytes: int | None = None
    seconds: int | None = None


@dataclass(frozen=True, slots=True)
class ReaderGroupSpec:
    """A reader group. ``streams`` are written SCOPE/STREAM, in the order given.

    ``start``: Head or Tail. ``flavour``: Java or Rust. ``retention_type``: None, AutomaticAtLastCheckpoint or
    ManualStreamCut. ``checkpoint_interval_ms``: None is off.
    """

    cluster: str
    scope: str
    group_name: str
    streams: tuple[str, ...]
    start: str = "Head"
    flavour: str = "Java"
    retention_type: str = "None"
    checkpoint_interval_ms: int | None = grammar.CHECKPOINT_INTERVAL_DEFAULT_MS
    max_outstanding_checkpoints: int = grammar.CHECKPOINTS_OUTSTANDING_DEFAULT
    group_refresh_ms: int = grammar.REFRESH_DEFAULT_MS
    lag_threshold: LagThreshold | None = None
    deletion_policy: str = "Retain"

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> ReaderGroupSpec:
        """Parse a ReaderGroup. Raises InvalidSpecError, which names the field."""
        spec = applied(_READER_GROUP, manifest.get("spec"), "spec")
        rust_publishes = spec["flavour"] == "Rust" and spec["retentionType"] != "None"
        hold(readergroup.RUST_PUBLISHES_NOTHING, "spec", not rust_publishes)
        interval_ms = spec["checkpointIntervalMs"]
        off = interval_ms == grammar.CHECKPOINT_INTERVAL_OFF
        long_enough = off or interval_ms >= grammar.CHECKPOINT_INTERVAL_MIN_MS
        hold(readergroup.CHECKPOINT_INTERVAL, "spec.checkpointIntervalMs", long_enough)
        return cls(
            cluster=spec["cluster"],
            scope=spec["scope"],
            group_name=_own_name(manifest, spec, "groupName", _READER_GROUP),
            streams=_streams(spec),
            start=spec["start"],
            flavour=spec["flavour"],
            retention_type=spec["retentionType"],
            checkpoint_interval_ms=None if off else interval_ms,
            max_outstanding_checkpoints=spec["maxOutstandingCheckpoints"],
            group_refresh_ms=spec["groupRefreshMs"],
            lag_threshold=_lag(spec["lagThreshold"]) if "lagThreshold" in spec else None,
            deletion_policy=spec["deletionPolicy"],
        )


def names_group(manifest: Mapping[str, Any], cluster: str, scope: str, group: str) -> bool:
    """Return whether a ReaderGroup names this group and its specification is valid."""
    spec, own = manifest.get("spec") or {}, manifest["metadata"]["name"]
    # Before it is parsed, which is costly for each of thousands of resources.
    if (spec.get("cluster"), spec.get("scope"), spec.get("groupName", own)) != (cluster, scope, group):
        return False
    try:
        ReaderGroupSpec.parse(manifest)
    except InvalidSpecError:
        return False
    return True


def cluster_name_fits(name: str) -> bool:
    """Return whether this is a valid name of a StreamCluster."""
    return len(name) <= grammar.CLUSTER_NAME_MAX_LENGTH and values.matches(grammar.CLUSTER_NAME, name)


def hold(rule: Rule, path: str, holds: bool) -> None:
    """Raise InvalidSpecError with the message of a rule that does not hold."""
    if not holds:
        raise InvalidSpecError(path, rule.message)


def _name(manifest: Mapping[str, Any]) -> str:
    return str(manifest["metadata"]["name"])


def _own_name(manifest: Mapping[str, Any], spec: dict[str, Any], name: str, schema: dict[str, Any]) -> str:
    """Return the name in the specification, by default that of the resource."""
    if name in spec:
        return str(spec[name])
    own, longest = _name(manifest), schema["properties"][name]["maxLength"]
    hold(rules.name_fits(name, longest), f"spec.{name}", len(own) <= longest)
    return own


def _size(text: str, path: str) -> int:
    found = values.size_bytes(text)
    hold(rules.SIZE_BOUNDED, path, found <= grammar.SIZE_MAX_BYTES)
    return found


def resources_of(spec: dict[str, Any], path: str, at_least: Rule, smallest_mib: int) -> tuple[int, int | None]:
    """Return memory in bytes and CPU in thousandths. Raises InvalidSpecError, which names the field."""
    memory_bytes = values.size_bytes(spec["memory"])
    hold(at_least, f"{path}.memory", memory_bytes >= smallest_mib * limits.MIB)
    if "cpu" not in spec:
        return memory_bytes, None
    cpu_millis = values.cpu_millis(spec["cpu"])
    hold(rules.CPU_POSITIVE, f"{path}.cpu", cpu_millis > 0)
    return memory_bytes, cpu_millis


def _scaling(spec: dict[str, Any], path: str) -> ScalingSpec:
    fixed = spec["type"] == "Fixed"
    hold(stream.FIXED_TAKES_NO_RATE, path, not fixed or not ({"target", "scaleFactor"} & spec.keys()))
    hold(stream.RATES_NEED_TARGET, path, fixed or "target" in spec)
    if fixed:
        return ScalingSpec(min_segments=spec["minSegments"])
    factor = spec.get("scaleFactor", grammar.SCALE_FACTOR_DEFAULT)
    return ScalingSpec(spec["type"], spec["minSegments"], spec["target"], factor)


def _retention(spec: dict[str, Any], path: str) -> RetentionSpec:
    bounds = [spec[name] for name in ("min", "max") if name in spec]
    if spec["type"] == "Size":
        hold(stream.SIZE_RETENTION_KEEPS_SIZES, path, all(map(values.is_size, bounds)))
        numbers = [values.size_bytes(bound) for bound in bounds]
        hold(stream.RETENTION_SIZES_BOUNDED, path, all(number <= grammar.SIZE_MAX_BYTES for number in numbers))
    else:
        hold(stream.TIME_RETENTION_KEEPS_DURATIONS, path, all(map(values.is_duration, bounds)))
        numbers = [values.duration_ms(bound) for bound in bounds]
    if "max" in spec:
        hold(stream.RETENTION_MAX_POSITIVE, f"{path}.max", numbers[-1] > 0)
    hold(stream.RETENTION_MIN_MAX, path, numbers == sorted(numbers))
    return RetentionSpec(spec["type"], *numbers)


def _streams(spec: dict[str, Any]) -> tuple[str, ...]:
    """Return the streams with their scopes. A stream that is named with and without its scope counts once."""
    full = (name if "/" in name else f"{spec['scope']}/{name}" for name in spec["streams"])
    return tuple(dict.fromkeys(full))


def _lag(spec: dict[str, Any]) -> LagThreshold:
    path = "spec.lagThreshold"
    hold(readergroup.LAG_NEEDS_ONE, path, bool(spec))
    found = _size(spec["bytes"], f"{path}.bytes") if "bytes" in spec else None
    return LagThreshold(found, spec.get("seconds"))
