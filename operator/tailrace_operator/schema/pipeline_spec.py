"""Parse the specification of a Pipeline (docs/pipelines.md). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """A job, and when it runs. ``object_store`` None: the cluster's. ``image`` None: that of the installation."""

    cluster: str
    job: str
    stream: str
    target: str | None = None
    output: str | None = None
    input: str | None = None
    checkpoint: str | None = None
    options: tuple[str, ...] = ()
    every_s: int | None = None
    schedule: str | None = None
    suspend: bool = False
    restarts: int = grammar.RESTARTS_DEFAULT
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
        store = spec.get("objectStore")
        return cls(
            cluster=spec["cluster"],
            job=spec["job"],
            stream=spec["stream"],
            target=spec.get("target"),
            output=spec.get("output"),
            input=spec.get("input"),
            checkpoint=spec.get("checkpoint"),
            options=tuple(spec.get("options", ())),
            every_s=spec.get("everySeconds"),
            schedule=spec.get("schedule"),
            suspend=spec["suspend"],
            restarts=spec["restarts"],
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
        return tuple((field, url) for field, url in found if url is not None)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the arguments of ``tailrace pipeline``."""
        places: tuple[str, ...]
        match self.job:
            case "replay":
                places = (self.stream, str(self.target), f"--checkpoint={self.checkpoint}")
            case "backfill":
                places = (str(self.input), self.stream, f"--checkpoint={self.checkpoint}")
            case _:
                places = (self.stream, str(self.output))
        every = () if self.every_s is None else (f"--every={self.every_s}",)
        return (self.job, *places, *(f"--{option}" for option in self.options), *every)


def bucket_and_path(url: str) -> tuple[str, str]:
    """Return the bucket of a URL ``s3a://BUCKET/PATH``, and the path without slashes at its ends."""
    parts = urlsplit(url)
    return parts.netloc, parts.path.strip("/")


def _check(spec: Mapping[str, Any]) -> None:
    """Check the rules over several fields. Raises InvalidSpecError."""
    job = spec["job"]
    writes_files = job in grammar.CONTINUOUS_JOBS
    hold(pipeline.OUTPUT_OF_FILES, "spec", writes_files == ("output" in spec))
    hold(pipeline.TARGET_OF_REPLAY, "spec", (job == "replay") == ("target" in spec))
    hold(pipeline.INPUT_OF_BACKFILL, "spec", (job == "backfill") == ("input" in spec))
    hold(pipeline.CHECKPOINT_OF_WRITERS, "spec", writes_files != ("checkpoint" in spec))
    hold(pipeline.EVERY_OF_FILES, "spec", "everySeconds" not in spec or (writes_files and "schedule" not in spec))
    names = {option.partition("=")[0] for option in spec.get("options", ())}
    hold(pipeline.OPTIONS_ARE_OF_JOBS, "spec.options", not names & set(grammar.OPTIONS_OF_OPERATOR))


def _pod(spec: dict[str, Any], path: str) -> SparkPodSpec:
    return SparkPodSpec(*resources_of(spec, path, pipeline.SPARK_MEMORY_AT_LEAST, grammar.SPARK_MEMORY_MIN_MIB))
