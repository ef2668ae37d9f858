"""Start and stop the Spark session of a job (docs/spark-jobs.md#where-a-job-runs)."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any, Final

from tailrace.common.errors import BadRequestError, StartError
from tailrace.common.logs import configure_notes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

STATUS_PORT: Final = "TAILRACE_STATUS_PORT"
CONTROLLER: Final = "TAILRACE_CONTROLLER"
LOCAL_SETTINGS: Final = {"spark.ui.enabled": "false", "spark.log.level": "OFF"}
"""The log would repeat, with a traceback of the JVM, what the exception of a failed query says."""
SETTINGS: Final = {"spark.sql.session.timeZone": "UTC"}
_OUR_ERRORS: Final = "tailrace.common.errors."
_RAISED: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?)(?: SQLSTATE: \w+)*$")


@contextlib.contextmanager
def spark_session(name: str, master: str | None, settings: dict[str, str]) -> Iterator[SparkSession]:
    """Yield a session that knows the format ``tailrace``; it is stopped at the end. ``settings`` win over ours.

    ``master`` is None in a program that spark-submit has started: it has said where Spark runs, and how.
    Spark's Python workers run the interpreter of this process, unless PYSPARK_PYTHON names another one.

    Raises:
        StartError: PySpark or Java is missing. BadRequestError: an error of Spark in the block, by its reason.
    """
    try:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException, PySparkRuntimeError
        from pyspark.sql import SparkSession

        from tailrace.pipelines import register
    except ModuleNotFoundError as error:
        raise StartError(f"no Spark here ({error}): pip install 'tailrace[spark]'") from error

    configure_notes()  # standard output has the report
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    wanted: dict[str, str] = {}
    builder = SparkSession.builder.appName(f"tailrace {name}")
    if master is not None:
        builder, wanted = builder.master(master), SETTINGS
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            wanted = SETTINGS | LOCAL_SETTINGS
    for setting, value in (wanted | settings).items():
        builder = builder.config(setting, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PySpark says of versions of libraries
        try:
            session = builder.getOrCreate()
        except PySparkRuntimeError as error:
            raise StartError(f"Spark did not start: {reason_of(str(error))}; it needs Java 17 or later") from error
        try:
            register(session)
            with _status(session):
                yield session
        except (PySparkException, Py4JJavaError) as error:
            raise BadRequestError(reason_of_error(error)) from error
        finally:
            session.stop()


@contextlib.contextmanager
def _status(session: SparkSession) -> Iterator[None]:
    """Serve the progress of the session in the driver of a Pipeline, where variables say so."""
    port = os.environ.get(STATUS_PORT)
    if port is None:
        yield
        return
    from tailrace.pipelines.pod.status_server import served_progress

    with served_progress(session, os.environ[CONTROLLER], int(port)):
        yield


def file_of(spark: SparkSession, url: str) -> tuple[Any, Any]:
    """Return Java's objects for a file or folder: its file system, and its path in it."""
    jvm: Any = spark.sparkContext._jvm
    place = jvm.org.apache.hadoop.fs.Path(url)
    return place.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()), place


def reason_of_error(error: Exception) -> str:
    """Return the reason of an error: of Java's, where a library below Spark has failed, as one for a file system."""
    java = getattr(error, "java_exception", None)
    return reason_of(str(error if java is None else java.getMessage()))


def reason_of(text: str) -> str:
    """Return the reason in a message of Spark: our own last error, what a job raised in SQL, or the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(_OUR_ERRORS)]
    if ours:
        return ours[-1].partition(": ")[2]
    raised = _RAISED.search(lines[0]) if lines else None
    if raised is not None:
        return raised[1]
    return lines[0] if lines else "no reason given"
