"""Schema of a Pipeline: a job on streams that runs on Spark in pods (docs/pipelines.md, ADR 0039)."""

from __future__ import annotations

from typing import Final

from tailrace_operator.schema import fields, grammar, rules
from tailrace_operator.schema.build import (
    Rule,
    Schema,
    boolean,
    choice,
    conditions,
    integer,
    observed_generation,
    plain_list,
    string,
    string_map,
    string_set,
    struct,
    timestamp,
)

PIPELINE_NAME: Final = Rule(
    f"size(self.metadata.name) <= {grammar.PIPELINE_NAME_MAX_LENGTH} && "
    f"self.metadata.name.matches('{grammar.CLUSTER_NAME}')",
    f"a Pipeline's name has at most {grammar.PIPELINE_NAME_MAX_LENGTH} characters: lower-case letters, digits and '-', "
    "beginning with a letter and not ending with '-'",
)


def _is_job(*jobs: str) -> str:
    """Return the CEL expression that the job is one of these."""
    return f"(has(self.job) && self.job in [{', '.join(map(repr, jobs))}])"


JOB_OR_APPLICATION: Final = Rule(
    "has(self.job) != has(self.application)", "either job or application is required, not both"
)
STREAM_OF_JOBS: Final = Rule(
    f"{_is_job(*grammar.JOBS_OF_STREAMS)} == has(self.stream)",
    "stream is required by every job but audit; an application has it in its arguments",
)
OUTPUT_OF_FILES: Final = Rule(
    f"{_is_job(*grammar.JOBS_WITH_OUTPUT)} == has(self.output)",
    "output is required by archive, aggregate and audit, and only by them",
)
TARGET_OF_REPLAY: Final = Rule(f"{_is_job('replay')} == has(self.target)", "target is required by replay, only")
INPUT_OF_BACKFILL: Final = Rule(f"{_is_job('backfill')} == has(self.input)", "input is required by backfill, only")
CHECKPOINT_OF_WRITERS: Final = Rule(
    f"{_is_job(*grammar.JOBS_WITH_CHECKPOINT)} == has(self.checkpoint)",
    "checkpoint is required by replay and backfill, and only by them",
)
EVERY_OF_FILES: Final = Rule(
    f"!has(self.everySeconds) || ({_is_job(*grammar.CONTINUOUS_JOBS)} && !has(self.schedule))",
    "everySeconds is for archive and aggregate without a schedule",
)
CONTINUOUS_APPLICATION: Final = Rule(
    "!self.continuous || (has(self.application) && !has(self.schedule))",
    "continuous is for an application without a schedule",
)
OPTIONS_OF_A_JOB: Final = Rule(
    "has(self.job) || !has(self.options)", "options are those of a job; an application has arguments"
)
STORE_OF_AUDIT: Final = Rule(
    f"!{_is_job('audit')} || !has(self.objectStore)",
    "audit has no objectStore: it reads and writes the object store of the StreamCluster",
)
_NOT_GIVEN = " || ".join(
    f"option == '{name}' || option.startsWith('{name}=')" for name in grammar.OPTIONS_OF_OPERATOR
)
OPTIONS_ARE_OF_JOBS: Final = Rule(
    f"!self.exists(option, {_NOT_GIVEN})",
    f"the operator sets the options {', '.join(grammar.OPTIONS_OF_OPERATOR)}: use the fields of the resource",
)
SPARK_MEMORY_AT_LEAST: Final = rules.memory_at_least(grammar.SPARK_MEMORY_MIN_MIB, grammar.SPARK_MEMORY_DEFAULT)


def _stream(description: str) -> Schema:
    return string(
        description,
        min_length=1,
        max_length=grammar.STREAM_REFERENCE_MAX_LENGTH,
        pattern=grammar.QUALIFIED_STREAM,
    )


def _url(description: str) -> Schema:
    return string(description, min_length=1, max_length=grammar.URL_MAX_LENGTH, pattern=grammar.URL)


def _memory() -> Schema:
    about = "Memory limit of a pod. Half of it is Java's heap; the rest is for Python and for Java's other memory."
    return fields.memory(about, grammar.SPARK_MEMORY_DEFAULT, SPARK_MEMORY_AT_LEAST)


def _driver() -> Schema:
    return struct(
        "The driver: the pod that plans and commits.", {"memory": _memory(), "cpu": fields.cpu()}, defaulted=True
    )


def _executors() -> Schema:
    return struct(
        "The executors: the pods that read and write events.",
        {
            "instances": integer(
                "Pods; 0: the driver does all work itself.",
                maximum=grammar.EXECUTORS_MAX,
                default=grammar.EXECUTORS_DEFAULT,
            ),
            "cores": integer(
                "Tasks that a pod runs at a time; with 0 instances, those of the driver.",
                minimum=1,
                maximum=grammar.CORES_MAX,
                default=grammar.CORES_DEFAULT,
            ),
            "memory": _memory(),
            "cpu": fields.cpu(),
        },
        defaulted=True,
    )


def _object_store() -> Schema:
    return struct(
        "Object store of output, input and checkpoint. Default: that of the StreamCluster, with its credentials.",
        {
            **fields.object_store(),
        },
        required=("endpoint", "credentialsSecret"),
    )


def _application() -> Schema:
    return struct(
        "A program for PySpark, in place of a job. Variable TAILRACE_CONTROLLER has the address of the controllers.",
        {
            "file": string(
                "The program: a path in the image, or s3a://BUCKET/FILE.py.",
                min_length=1,
                max_length=grammar.PROGRAM_MAX_LENGTH,
                pattern=grammar.PROGRAM,
            ),
            "arguments": plain_list(
                "Its arguments.",
                string("An argument.", max_length=grammar.ARGUMENT_MAX_LENGTH),
                max_items=grammar.ARGUMENTS_MAX,
            ),
        },
        required=("file",),
    )


def _toleration() -> Schema:
    return struct(
        "A taint that the pods tolerate, as in a pod.",
        {
            "key": string(
                "Key of the taint; absent: of any.",
                min_length=1,
                max_length=grammar.LABEL_KEY_MAX_LENGTH,
                pattern=grammar.LABEL_KEY,
            ),
            "operator": choice("Exists, or Equal to the value.", grammar.TOLERATION_OPERATORS, default="Equal"),
            "value": string("Value of the taint.", max_length=grammar.LABEL_MAX_LENGTH, pattern=grammar.LABEL),
            "effect": choice("Effect of the taint; absent: any.", grammar.TAINT_EFFECTS),
            "tolerationSeconds": integer("How long the pods stay, with the effect NoExecute; absent: for ever."),
        },
    )


def _where() -> dict[str, Schema]:
    return {
        "serviceAccountName": string(
            "Service account of driver and executors. Default: one of the Pipeline's own.",
            min_length=1,
            max_length=grammar.OBJECT_NAME_MAX_LENGTH,
            pattern=grammar.OBJECT_NAME,
        ),
        "nodeSelector": string_map(
            "Labels of the nodes on which the pods run.",
            string("Value of the label.", max_length=grammar.LABEL_MAX_LENGTH, pattern=grammar.LABEL),
            max_items=grammar.NODE_LABELS_MAX,
        ),
        "tolerations": plain_list(
            "Taints of nodes on which the pods may run.", _toleration(), max_items=grammar.TOLERATIONS_MAX
        ),
    }


def _when() -> dict[str, Schema]:
    return {
        "everySeconds": integer(
            "Go on without end, and write this often. Default: write what the stream has, and end.",
            minimum=1,
            maximum=grammar.EVERY_MAX_S,
        ),
        "continuous": boolean(
            "The application has no end: when it ends, it starts again. Default: it runs once.", default=False
        ),
        "schedule": string(
            "Run at these times (cron, UTC), for example `0 3 * * *`; one run at a time.",
            min_length=1,
            max_length=grammar.SCHEDULE_MAX_LENGTH,
            pattern=grammar.SCHEDULE,
        ),
        "suspend": boolean("Stop the pods, and start none. A later run goes on where this one was.", default=False),
        "restarts": integer(
            "Failed attempts after which a run without everySeconds has failed; 0: the first one.",
            maximum=grammar.RESTARTS_MAX,
            default=grammar.RESTARTS_DEFAULT,
        ),
    }


def _what() -> dict[str, Schema]:
    return {
        "cluster": string(
            "StreamCluster of the same namespace.",
            min_length=1,
            max_length=grammar.CLUSTER_NAME_MAX_LENGTH,
            pattern=grammar.CLUSTER_NAME,
        ),
        "job": choice("Job of `tailrace pipeline`.", grammar.JOBS),
        "application": _application(),
        "stream": _stream("SCOPE/STREAM that the job reads, or, with backfill, writes."),
        "target": _stream("replay: SCOPE/STREAM that it writes. It must exist."),
        "output": _url(
            "archive, aggregate: s3a://BUCKET/FOLDER of the files and of the position in the stream. "
            "audit: of the reports, a folder for each run."
        ),
        "input": string(
            "backfill: Parquet files, s3a://BUCKET/FOLDER or a pattern.",
            min_length=1,
            max_length=grammar.URL_MAX_LENGTH,
            pattern=grammar.URL_PATTERN,
        ),
        "checkpoint": _url("replay, backfill: s3a://BUCKET/FOLDER of the job's position."),
        "options": string_set(
            "Options of the job, NAME=VALUE or NAME, as `tailrace pipeline JOB --help` has them, without the dashes.",
            string("An option.", min_length=1, max_length=grammar.JOB_OPTION_MAX_LENGTH, pattern=grammar.JOB_OPTION),
            max_items=grammar.JOB_OPTIONS_MAX,
            rules=[OPTIONS_ARE_OF_JOBS],
        ),
    }


def spec() -> Schema:
    """Return the schema of ``spec``."""
    return struct(
        "Desired state of the pipeline.",
        {
            **_what(),
            **_when(),
            **_where(),
            "objectStore": _object_store(),
            "driver": _driver(),
            "executors": _executors(),
            "sparkConf": string_set(
                "Settings of Spark, NAME=VALUE. They win over the operator's, but for those of its pods.",
                string(
                    "A setting.",
                    min_length=1,
                    max_length=grammar.SPARK_SETTING_MAX_LENGTH,
                    pattern=grammar.SPARK_SETTING,
                ),
                max_items=grammar.JOB_OPTIONS_MAX,
            ),
            "image": fields.image("Image of driver and executors; default: the one of the installation."),
            "imagePullPolicy": choice("When the image is pulled.", grammar.IMAGE_PULL_POLICIES),
        },
        required=("cluster",),
        rules=[
            JOB_OR_APPLICATION,
            STREAM_OF_JOBS,
            OUTPUT_OF_FILES,
            TARGET_OF_REPLAY,
            INPUT_OF_BACKFILL,
            CHECKPOINT_OF_WRITERS,
            EVERY_OF_FILES,
            CONTINUOUS_APPLICATION,
            OPTIONS_OF_A_JOB,
            STORE_OF_AUDIT,
        ],
    )


def _progress() -> Schema:
    return struct(
        "What the driver reports while it runs. It counts from the driver's start.",
        {
            "batches": integer("Batches written."),
            "rows": integer("Rows read."),
            "bytes": integer("Bytes of the stream read, without the first batch of a new folder."),
            "rowsPerSecond": integer("Rows a second, of the last batch."),
            "bytesPerSecond": integer("Bytes a second, of the last batch."),
            "lagBytes": integer("Bytes of the stream that no batch has read."),
            "lagSeconds": integer("Age of the oldest of these, at most; absent: not known yet."),
            "lastBatchTime": timestamp("Last commit: when the last batch was written and in the checkpoint."),
        },
    )


def _last_run() -> Schema:
    return struct(
        "The last run that has ended.",
        {
            "result": choice("How it ended.", ("Succeeded", "Failed")),
            "time": timestamp("When it ended."),
            "rows": integer("Rows that it wrote."),
            "batches": integer("Batches that it wrote."),
            "message": string("Its error.", max_length=grammar.MESSAGE_MAX_LENGTH),
            "specification": string(
                "Without schedule: digest of specification and annotation tailrace.io/run; the same is not run again.",
                max_length=grammar.DIGEST_MAX_LENGTH,
            ),
        },
    )


def status() -> Schema:
    """Return the schema of ``status``."""
    return struct(
        "Observed state of the pipeline.",
        {
            "observedGeneration": observed_generation(),
            "conditions": conditions(),
            "driver": string("Pod of the driver.", max_length=grammar.OBJECT_NAME_MAX_LENGTH),
            "sparkUi": string("URL of Spark's pages, inside the cluster.", max_length=grammar.ADDRESS_MAX_LENGTH),
            "executors": integer("Executor pods that run."),
            "restarts": integer("Failed attempts of the present run."),
            "progress": _progress(),
            "lastRun": _last_run(),
        },
    )


def root_rules() -> list[Rule]:
    """Return the rules over the whole resource."""
    return [PIPELINE_NAME]
