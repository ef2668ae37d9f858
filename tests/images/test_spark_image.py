"""The image for pipelines has Spark and all that it loads, and starts it without a shell."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.imageroot import ImageRoot

pytestmark = pytest.mark.timeout(900)

COUNT = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
print(spark.range(1000).count(), spark.sparkContext._jvm.java.lang.Class.forName(sys.argv[1]).getName())
"""
CONNECTOR = "org.apache.hadoop.fs.s3a.S3AFileSystem"


@pytest.fixture
def spark(archives: dict[str, Path], tmp_path: Path) -> Iterator[ImageRoot]:
    """The image."""
    yield ImageRoot(archives["tailrace-spark"], tmp_path / "image")
    shutil.rmtree(tmp_path / "image")


def test_the_python_side_loads(spark: ImageRoot) -> None:
    program = "import pandas, pyarrow, pyspark, tailrace.pipelines.pod.status_server; print(pyspark.__version__)"
    assert spark.run("python3.11", "-c", program).stdout == "4.3.0\n"


def test_the_list_of_the_libraries_for_s3_is_shipped_and_they_are_beside_spark(spark: ImageRoot) -> None:
    program = (
        "import pathlib, pyspark\n"
        "from tailrace.pipelines.s3.libraries import are_installed, locked\n"
        "from tailrace.pipelines.s3.settings import has_connector\n"
        "home = pathlib.Path(pyspark.__file__).parent\n"
        "print(len(locked()) > 30, are_installed(locked(), home / 'jars'), has_connector(home))\n"
    )
    assert spark.run("python3.11", "-c", program).stdout == "True True True\n"


def test_a_program_runs_through_the_launcher(spark: ImageRoot) -> None:
    """As the driver does it: Java asks Spark's launcher, then becomes it, and starts Python."""
    (spark.root / "etc/hosts").write_text("127.0.0.1 localhost\n")  # which the kubelet writes
    (spark.scratch / "count.py").write_text(COUNT)
    (spark.scratch / "start.py").write_text(
        "import os, subprocess\n"
        "from tailrace.pipelines.pod.command_lines import launched, launcher\n"
        "words = ['org.apache.spark.deploy.SparkSubmit', '--master', 'local[1]', '--conf', 'spark.ui.enabled=false',\n"
        "         '--conf', 'spark.driver.host=127.0.0.1', '--conf', 'spark.driver.bindAddress=127.0.0.1',\n"
        f"         '/tmp/count.py', '{CONNECTOR}']\n"
        "os.environ.update(SPARK_LOCAL_IP='127.0.0.1', SPARK_LOCAL_HOSTNAME='localhost')  # no resolver is here\n"
        "asked = subprocess.run(launcher(os.environ, words), stdout=subprocess.PIPE, check=True)\n"
        "command = launched(asked.stdout)\n"
        "os.execv(command[0], command)\n"
    )
    assert spark.run("python3.11", "/tmp/start.py").stdout.strip().endswith(f"1000 {CONNECTOR}")
