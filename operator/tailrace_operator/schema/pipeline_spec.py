"""Parse the specification of a Pipeline (docs/pipelines.md). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from tailrace_operator.schema import grammar, pipeline, values
from tailrace_operator.schema.apply import applied
from tailrace_operator.schema.specs import hold, resources_of

_SCHEMA: Final = pipeline.spec()


@dataclass(frozen=True, slots=True)
class SparkPodSpec:
    """A pod of Spark; memory is its limit."""

    memory_bytes: int
    cpu_millis: int | None = None


@dataclass(frozen=True, slots=True)
class ExecutorsSpec:
    """Executor pods; none: the driver runs `cores` tasks at a time itself."""

    instances: int
    cores: int
    pod: SparkPodSpec


@dataclass(frozen=True, slots=True)
class ObjectStoreSpec:
    """Where files and checkpoints are. ``credentials_secret`` has the keys accessKey and secretKey."""

    endpoint: str
    credentials_secret: str
    region: str | None = None


@dataclass(frozen=True, slots=True)
class ApplicationSpec:
    """A program of the user: a path in the image or a URL, and its arguments."""

    file: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlacementSpec:
    """On which nodes pods run. ``tolerations`` as in a pod."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """A job or an application, and when and where it runs.

    ``object_store`` None: the cluster's. ``image`` None: that of the installation. ``service_account`` None: its own.
    """

    cluster: str
    job: str | None = None
    application: ApplicationSpec | None = None
    stream: str | None = None
    target: str | None = None
    output: str | None = None
    input: str | None = None
    checkpoint: str | None = None
    options: tuple[str, ...] = ()
    every_s: int | None = None
    continuous: bool = False
    schedule: str | None = None
    suspend: bool = False
    restarts: int = grammar.RESTARTS_DEFAULT
    service_account: str | None = None
    placement: PlacementSpec
    object_store: ObjectStoreSpec | None = None
    driver: SparkPodSpec
    executors: ExecutorsSpec
    spark_conf: tuple[str, ...] = ()
    image: str | None = None
    image_pull_policy: str | None = None

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> PipelineSpec:
        """Parse a Pipeline. Raises InvalidSpecError, which names the field."""
        name = str(manifest["metadata"]["name"])
        fits = len(name) <= grammar.PIPELINE_NAME_MAX_LENGTH and values.matches(grammar.CLUSTER_NAME, name)
        hold(pipeline.PIPELINE_NAME, "metadata.name", fits)
        spec = applied(_SCHEMA, manifest.get("spec"), "spec")
        _check(spec)
        store, application = spec.get("objectStore"), spec.get("application")
        return cls(
            cluster=spec["cluster"],
            job=spec.get("job"),
            application=None
            if application is None
            else ApplicationSpec(application["file"], tuple(application.get("arguments", ()))),
            stream=spec.get("stream"),
            target=spec.get("target"),
            output=spec.get("output"),
            input=spec.get("input"),
            checkpoint=spec.get("checkpoint"),
            options=tuple(spec.get("options", ())),
            every_s=spec.get("everySeconds"),
            continuous=spec["continuous"],
            schedule=spec.get("schedule"),
            suspend=spec["suspend"],
            restarts=spec["restarts"],
            service_account=spec.get("serviceAccountName"),
            placement=PlacementSpec(spec.get("nodeSelector", {}), tuple(spec.get("tolerations", ()))),
            object_store=None
            if store is None
            else ObjectStoreSpec(store["endpoint"], store["credentialsSecret"], store.get("region")),
            driver=_pod(spec["driver"], "spec.driver"),
            executors=ExecutorsSpec(
                spec["executors"]["instances"],
                spec["executors"]["cores"],
                _pod(spec["executors"], "spec.executors"),
            ),
            spark_conf=tuple(spec.get("sparkConf", ())),
            image=spec.get("image"),
            image_pull_policy=spec.get("imagePullPolicy"),
        )

    @property
    def written(self) -> tuple[tuple[str, str], ...]:
        """Return the folders that the job writes, with the fields that name them."""
        found = (("spec.output", self.output), ("spec.checkpoint", self.checkpoint))
        return tuple((name, url) for name, url in found if url is not None)

    @property
    def is_endless(self) -> bool:
        """Return whether the driver runs until it is stopped."""
        return self.every_s is not None or self.continuous


def bucket_and_path(url: str) -> tuple[str, str]:
    """Return the bucket of a URL ``s3a://BUCKET/PATH``, and the path without slashes at its ends."""
    parts = urlsplit(url)
    return parts.netloc, parts.path.strip("/")


def _check(spec: Mapping[str, Any]) -> None:
    """Check the rules over several fields. Raises InvalidSpecError."""
    job, is_scheduled, is_application = spec.get("job"), "schedule" in spec, "application" in spec
    repeats = job in grammar.CONTINUOUS_JOBS and not is_scheduled
    hold(pipeline.JOB_OR_APPLICATION, "spec", (job is not None) != is_application)
    hold(pipeline.STREAM_OF_JOBS, "spec", (job in grammar.JOBS_OF_STREAMS) == ("stream" in spec))
    hold(pipeline.OUTPUT_OF_FILES, "spec", (job in grammar.JOBS_WITH_OUTPUT) == ("output" in spec))
    hold(pipeline.TARGET_OF_REPLAY, "spec", (job == "replay") == ("target" in spec))
    hold(pipeline.INPUT_OF_BACKFILL, "spec", (job == "backfill") == ("input" in spec))
    hold(pipeline.CHECKPOINT_OF_WRITERS, "spec", (job in grammar.JOBS_WITH_CHECKPOINT) == ("checkpoint" in spec))
    hold(pipeline.EVERY_OF_FILES, "spec", "everySeconds" not in spec or repeats)
    hold(pipeline.CONTINUOUS_APPLICATION, "spec", not spec["continuous"] or (is_application and not is_scheduled))
    hold(pipeline.OPTIONS_OF_A_JOB, "spec", not is_application or "options" not in spec)
    hold(pipeline.STORE_OF_AUDIT, "spec", job != "audit" or "objectStore" not in spec)
    names = {option.partition("=")[0] for option in spec.get("options", ())}
    hold(pipeline.OPTIONS_ARE_OF_JOBS, "spec.options", not names & set(grammar.OPTIONS_OF_OPERATOR))


def _pod(spec: dict[str, Any], path: str) -> SparkPodSpec:
    return SparkPodSpec(*resources_of(spec, path, pipeline.SPARK_MEMORY_AT_LEAST, grammar.SPARK_MEMORY_MIN_MIB))
