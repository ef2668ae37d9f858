"""Patterns, bounds and defaults of the resources' fields, shared by schemas, rules and parsed specs."""

from __future__ import annotations

from typing import Final

from tailrace.common import limits
from tailrace.common.budgets import smallest_controller_bytes
from tailrace.common.names import USER_NAME_PATTERN

GROUP: Final = "tailrace.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CATEGORY: Final = "tailrace"

# -- names ----------------------------------------------------------------------------------------------------------
CLUSTER_NAME: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"  # a part of the names of Services and Leases
CLUSTER_NAME_MAX_LENGTH: Final = 40  # leaves room for -store-N-W and for suffixes of Kubernetes
USER_NAME: Final = f"^{USER_NAME_PATTERN}$"
STREAM_REFERENCE: Final = f"^({USER_NAME_PATTERN}/)?{USER_NAME_PATTERN}$"  # a stream, with a scope if it is another one
STREAM_REFERENCE_MAX_LENGTH: Final = limits.SCOPE_NAME_MAX_LENGTH + 1 + limits.STREAM_NAME_MAX_LENGTH
OBJECT_NAME: Final = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"
OBJECT_NAME_MAX_LENGTH: Final = 253
UUID: Final = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
UUID_LENGTH: Final = 36

# -- quantities and durations ---------------------------------------------------------------------------------------
SIZE: Final = r"^[0-9]{1,12}(\.[0-9]{1,3})?(k|M|G|T|Ki|Mi|Gi|Ti)?$"  # a subset of Kubernetes' quantities
DURATION: Final = r"^[0-9]{1,9}(s|m|h|d)$"
POSITIVE_DURATION: Final = r"^[1-9][0-9]{0,8}(s|m|h|d)$"
SIZE_OR_DURATION: Final = r"^[0-9]{1,12}(\.[0-9]{1,3})?(k|M|G|T|Ki|Mi|Gi|Ti|s|m|h|d)?$"
CPU: Final = r"^([0-9]{1,4}(\.[0-9]{1,3})?|[0-9]{1,7}m)$"
SIZE_NUMBER_MAX: Final = 10**12 - 1  # as many digits as a string may have
CPU_NUMBER_MAX: Final = 9999
QUANTITY_MAX_LENGTH: Final = 20
SIZE_MAX: Final = "1Ei"
SIZE_MAX_BYTES: Final = 2**60
MEMORY_MIN_MIB: Final = 64  # less means a forgotten unit; the operator computes whether the memory suffices

# -- StreamCluster --------------------------------------------------------------------------------------------------
CONTAINERS_DEFAULT: Final = 16
STORE_REPLICAS_DEFAULT: Final = 2
STORE_REPLICAS_MAX: Final = 256
STORE_WORKERS_DEFAULT: Final = 2
STORE_MEMORY_DEFAULT: Final = "1536Mi"
WORKERS_ALL_MAX: Final = limits.CONTAINERS_MAX  # more workers would have no container
CONTROLLER_REPLICAS_DEFAULT: Final = 2
CONTROLLER_REPLICAS_MAX: Final = 16
CONTROLLER_MEMORY_DEFAULT: Final = "512Mi"
CONTROLLER_MEMORY_MIN_MIB: Final = smallest_controller_bytes() // limits.MIB  # with less, a pod refuses to start
RETENTION_PERIOD_DEFAULT: Final = "30m"
BUCKET: Final = r"^[a-z0-9][a-z0-9.-]*[a-z0-9]$"
BUCKET_MIN_LENGTH: Final = 3
BUCKET_MAX_LENGTH: Final = 63
PREFIX: Final = r"^([A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*)?$"
PREFIX_MAX_LENGTH: Final = 200
ENDPOINT: Final = r"^https?://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?$"
ENDPOINT_MAX_LENGTH: Final = 300
REGION: Final = r"^[A-Za-z0-9-]+$"
REGION_MAX_LENGTH: Final = 64
IMAGE: Final = r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$"
IMAGE_MAX_LENGTH: Final = 512
IMAGE_PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")

# -- Stream ---------------------------------------------------------------------------------------------------------
RATE_SCALING_TYPES: Final = ("EventRate", "ByteRate")
SCALING_TYPES: Final = ("Fixed", *RATE_SCALING_TYPES)
RETENTION_TYPES: Final = ("Size", "Time")
DELETION_POLICIES: Final = ("Retain", "Delete")
INT32_MAX: Final = 2**31 - 1
SUBSCRIBERS_LISTED_MAX: Final = 20
SUBSCRIBERS_FORMERLY_DESCRIBED_MAX: Final = 100
SEGMENT_RATES_LISTED_MAX: Final = 100
SUBSCRIBER_MAX_LENGTH: Final = limits.SCOPE_NAME_MAX_LENGTH + 1 + limits.STREAM_NAME_MAX_LENGTH
SCALE_FACTOR_DEFAULT: Final = 2

# -- ReaderGroup ----------------------------------------------------------------------------------------------------
STARTS: Final = ("Head", "Tail")
FLAVOURS: Final = ("Java", "Rust")
GROUP_RETENTIONS: Final = ("None", "AutomaticAtLastCheckpoint", "ManualStreamCut")
CHECKPOINT_INTERVAL_DEFAULT_MS: Final = 30_000  # the default of the Java client
CHECKPOINT_INTERVAL_OFF: Final = -1
CHECKPOINT_INTERVAL_MIN_MS: Final = 1000
CHECKPOINTS_OUTSTANDING_DEFAULT: Final = 3
CHECKPOINTS_OUTSTANDING_MAX: Final = 1000
REFRESH_DEFAULT_MS: Final = 3000
REFRESH_MIN_MS: Final = 100
INTERVAL_MAX_MS: Final = 24 * 3_600_000
LAG_SECONDS_MAX: Final = INT32_MAX

# -- Pipeline -------------------------------------------------------------------------------------------------------
PIPELINE_NAME_MAX_LENGTH: Final = 40  # leaves room for suffixes of Jobs, pods and executors
JOBS: Final = ("archive", "aggregate", "replay", "backfill", "audit")
JOBS_OF_STREAMS: Final = ("archive", "aggregate", "replay", "backfill")
JOBS_WITH_OUTPUT: Final = ("archive", "aggregate", "audit")
JOBS_WITH_CHECKPOINT: Final = ("replay", "backfill")
CONTINUOUS_JOBS: Final = ("archive", "aggregate")
URL: Final = r"^s3a://[a-z0-9][a-z0-9.-]*[a-z0-9](/[A-Za-z0-9][A-Za-z0-9._=-]*)+/?$"
URL_PATTERN: Final = r"^s3a://[a-z0-9][a-z0-9.-]*[a-z0-9](/[A-Za-z0-9*][A-Za-z0-9._=*-]*)+/?$"
URL_MAX_LENGTH: Final = 512
QUALIFIED_STREAM: Final = f"^{USER_NAME_PATTERN}/{USER_NAME_PATTERN}$"
JOB_OPTION: Final = r"^[a-z][a-z0-9-]*(=[^\r\n]*)?$"
JOB_OPTION_MAX_LENGTH: Final = 8192
JOB_OPTIONS_MAX: Final = 64
OPTIONS_OF_OPERATOR: Final = ("master", "conf", "controller", "json", "every", "checkpoint", "s3-endpoint", "dated")
PROGRAM: Final = r"^(/|s3a://[a-z0-9][a-z0-9.-]*[a-z0-9]/)[A-Za-z0-9._=/-]*[A-Za-z0-9_=-]\.py$"
PROGRAM_MAX_LENGTH: Final = 512
ARGUMENT_MAX_LENGTH: Final = 8192
ARGUMENTS_MAX: Final = 64
LABEL_MAX_LENGTH: Final = 63
LABEL: Final = r"^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$"
LABEL_KEY_MAX_LENGTH: Final = 253 + 1 + LABEL_MAX_LENGTH
LABEL_KEY: Final = r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
NODE_LABELS_MAX: Final = 16
TOLERATIONS_MAX: Final = 16
TOLERATION_OPERATORS: Final = ("Exists", "Equal")
TAINT_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
SPARK_SETTING: Final = r"^spark\.[A-Za-z0-9._-]+=[^\r\n]*$"
SPARK_SETTING_MAX_LENGTH: Final = 1024
SCHEDULE: Final = r"^(@(hourly|daily|weekly|monthly|yearly)|[0-9*/,A-Za-z-]+( [0-9*/,A-Za-z?#-]+){4})$"
SCHEDULE_MAX_LENGTH: Final = 100
EVERY_MAX_S: Final = 86_400
RESTARTS_DEFAULT: Final = 6
RESTARTS_MAX: Final = 1000
EXECUTORS_DEFAULT: Final = 1
EXECUTORS_MAX: Final = 256
SPARK_MEMORY_DEFAULT: Final = "1536Mi"
SPARK_MEMORY_MIN_MIB: Final = 1024  # half of it is Java's heap, of which Spark wants 450 MiB at least
CORES_DEFAULT: Final = 1
CORES_MAX: Final = 64

# -- status ---------------------------------------------------------------------------------------------------------
CONDITIONS_MAX: Final = 16
REASON: Final = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
REASON_MAX_LENGTH: Final = 1024  # this and the next as in Kubernetes' own conditions
MESSAGE_MAX_LENGTH: Final = 32_768
ADDRESS_MAX_LENGTH: Final = 512
DIGEST_MAX_LENGTH: Final = 64
WORKERS_LISTED_MAX: Final = 2 * WORKERS_ALL_MAX  # workers that drain are listed beside new ones
CUT_MAX_LENGTH: Final = 16_384
