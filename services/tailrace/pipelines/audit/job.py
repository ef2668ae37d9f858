"""The job ``audit``: plans on the driver, verifies in executors, and adds up (docs/spark-audit.md)."""

from __future__ import annotations

import contextlib
import os
import posixpath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from tailrace.client.blocking.portal import Portal
from tailrace.cluster.cluster_identity import CLUSTER_KEY
from tailrace.common import limits
from tailrace.common.errors import BadRequestError, StartError
from tailrace.pipelines.audit.inventory import ListObjects, ReadSnapshots
from tailrace.pipelines.audit.objects import VerifyObjects
from tailrace.pipelines.audit.rows import COLUMNS, Status, What
from tailrace.pipelines.audit.summary import ContainerSums, Finding, Summary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tailrace.cluster.cluster_identity import ClusterIdentity
    from tailrace.pipelines.direct.store_location import StoreLocation

REPORT_FOLDER: Final = "report"
ROWS_SETTING: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""A row of work has all references to an object: with Spark's 10,000 rows a batch would be large."""
_REFERENCE: Final = ("segment", "segment_id", "status as kind", "position", "offset", "length_bytes")


def audit(spark: SparkSession, location: StoreLocation, output: str, now_ms: int) -> Summary:
    """Read and verify everything in Tier 2, and write the rows to Parquet files below `output`, a path or a URL.

    ``now_ms`` is the present time, in ms since 1970. Nothing in Tier 2 is changed.

    Raises:
        BadRequestError: there is a report, or `output` lies in Tier 2. StartError: the store holds no cluster.
            UnavailableError: it does not answer. PySparkException: a task failed.
    """
    report = f"{output.rstrip('/')}/{REPORT_FOLDER}"
    if is_within(output, location.url):
        raise BadRequestError(f"{output} lies in Tier 2 {location.url}: its report would be objects of no container")
    if _exists(spark, report):
        raise BadRequestError(f"{report} exists: an audit writes to a folder of its own")
    identity = identity_of(location)
    containers = spark.range(identity.containers, numPartitions=_partitions(identity.containers))
    inventory = containers.selectExpr("cast(id as int) as container").mapInArrow(
        ReadSnapshots(location, identity), COLUMNS
    )
    inventory.write.partitionBy("what").parquet(report)
    # The list is read after the snapshots: what is written from now on does not look like an orphan of theirs.
    known = _read(spark, report).persist()
    try:
        work = _work(spark, known, location).repartition(_tasks(spark, known))
        found = work.mapInArrow(VerifyObjects(location, identity, now_ms), COLUMNS)
        with setting(spark, ROWS_SETTING, str(limits.AUDIT_BATCH_OBJECTS)):
            found.write.mode("append").partitionBy("what").parquet(report)
    finally:
        known.unpersist()
    return summarize(spark, output, identity)


def summarize(spark: SparkSession, output: str, identity: ClusterIdentity) -> Summary:
    """Add up the report of an audit below `output`."""
    from pyspark.sql import functions as f

    rows = _read(spark, f"{output.rstrip('/')}/{REPORT_FOLDER}")
    summary = Summary(cluster=identity.cluster_id)
    sums = {container: ContainerSums(container) for container in range(identity.containers)}
    segments = rows.where(f.col("what") == What.SEGMENT).groupBy("container")
    for row in segments.agg(f.count("*").alias("n"), f.sum("length_bytes").alias("b")).collect():
        sums[row["container"]].segments, sums[row["container"]].segment_bytes = row["n"], row["b"] or 0
    chunks = rows.where(f.col("what") == What.CHUNK).groupBy("container", "status")
    wanted = (f.sum("length_bytes"), f.sum("verified_bytes"), f.count("*"))
    for container, status, length, verified, count in chunks.agg(*wanted).collect():
        sums[container].chunks += count
        sums[container].referenced_bytes += length
        sums[container].verified_bytes += verified
        if status in (Status.GONE, Status.UNSETTLED):
            sums[container].gone_bytes += length - verified
    objects = rows.where((f.col("what") == What.OBJECT) & f.col("length_bytes").isNotNull())
    for status, count, length in objects.groupBy("status").agg(f.count("*"), f.sum("length_bytes")).collect():
        summary.objects[status] = count
        summary.object_bytes[status] = length
    findings = rows.where(f.col("what") == What.FINDING)
    for container, status, count in findings.groupBy("container", "status").agg(f.count("*")).collect():
        summary.findings[status] = summary.findings.get(status, 0) + count
        if container in sums:
            sums[container].findings[status] = count
    shown = findings.orderBy(f.col("status") == Status.ORPHAN, "container", "segment", "offset", "object", "position")
    summary.listed = [Finding(**_fields(row.asDict())) for row in shown.limit(limits.AUDIT_SHOWN_MAX).collect()]
    summary.containers = list(sums.values())
    return summary


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in Finding.__dataclass_fields__}


def identity_of(location: StoreLocation) -> ClusterIdentity:
    """Return the cluster of a store.

    Raises:
        StartError: it holds none, or one of a wrong number of containers. UnavailableError: it does not answer.
    """
    portal = Portal()  # a notebook has an event loop that runs already
    try:
        identity = portal.run(_identity(location))
    finally:
        portal.close()
    if not 1 <= identity.containers <= limits.CONTAINERS_MAX:
        what = f"{identity.containers} containers, not 1 to {limits.CONTAINERS_MAX}"
        raise StartError(f"Tier 2 {location.url}: {CLUSTER_KEY} is of a cluster of {what}")
    return identity


async def _identity(location: StoreLocation) -> ClusterIdentity:
    store = location.open()
    try:
        return await location.identity(store)
    finally:
        await store.close()


def is_within(output: str, store: str) -> bool:
    """Return whether an output, a path or a URL of Spark, lies in a store, a URL of ours.

    An output may be escaped or not. A store is not: its folder may have any name.
    """
    where, (*store_place, store_path) = (_parts(output), _parts(unquote(output))), _parts(store)
    folder = f"{store_path.rstrip('/')}/"
    return any(place == store_place and f"{path}/".startswith(folder) for *place, path in where)


def _parts(url: str) -> tuple[str, str, str]:
    """Return scheme, host and absolute path; ``file:/folder`` is one of Hadoop's forms."""
    scheme, colon, rest = url.partition(":/")
    if not colon:
        return "file", "", os.path.realpath(url)
    host, slash, path = rest[1:].partition("/") if rest.startswith("/") else ("", "/", rest)
    if scheme == "file":
        return scheme, "", os.path.realpath(slash + path)
    return "s3" if scheme in ("s3a", "s3n") else scheme, host, posixpath.normpath(f"/{path}")


@contextlib.contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Change a setting of the session for a block."""
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)


def _exists(spark: SparkSession, folder: str) -> bool:
    from pyspark.errors import AnalysisException

    try:
        spark.read.schema(COLUMNS).parquet(folder)
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return False
        raise
    return True


def _read(spark: SparkSession, report: str) -> DataFrame:
    return spark.read.schema(COLUMNS).parquet(report)


def _work(spark: SparkSession, known: DataFrame, location: StoreLocation) -> DataFrame:
    """Return a row for each object that is listed or referenced: the input of `objects.Work.from_row`."""
    from pyspark.sql import functions as f

    listed = spark.range(1, numPartitions=1).mapInArrow(ListObjects(location), COLUMNS)
    listed = listed.select("object", "length_bytes", "time_ms", f.col("container").alias("listed_container"))
    references = known.where(f.col("what") == What.REFERENCE).select("object", "container", *map(f.expr, _REFERENCE))
    fields = ("segment", "segment_id", "kind", "position", "offset", "length_bytes")
    by_object = references.groupBy("object").agg(
        f.min("container").alias("named_container"), f.collect_list(f.struct(*fields)).alias("references")
    )
    pending = known.where(f.col("what") == What.PENDING).select("object", f.lit(True).alias("pending")).distinct()
    newest = known.where(f.col("what") == What.CONTAINER).select(
        "container",
        f.col("object").alias("snapshot"),
        f.col("epoch").alias("snapshot_epoch"),
        f.col("time_ms").alias("snapshot_ms"),
    )
    work = listed.join(by_object, "object", "full_outer").join(pending, "object", "left")
    work = work.withColumn("container", f.coalesce("named_container", "listed_container"))
    return work.join(f.broadcast(newest), "container", "left")


def _tasks(spark: SparkSession, known: DataFrame) -> int:
    """Return into how many tasks the verification is divided."""
    from pyspark.sql import functions as f

    total = known.where(f.col("what") == What.REFERENCE).agg(f.sum("length_bytes")).first()
    length = 0 if total is None else total[0] or 0
    return _partitions(-(-length // limits.AUDIT_PARTITION_BYTES) + spark.sparkContext.defaultParallelism)


def _partitions(wanted: int) -> int:
    return max(1, min(wanted, limits.AUDIT_PARTITIONS_MAX))
