"""Command lines of Java in the pods of a Pipeline."""

import pytest

from tailrace.pipelines.pod.command_lines import APPLICATION, JOB, driver, executor, launched, launcher

PLACES = {"JAVA_HOME": "/java", "SPARK_HOME": "/opt/packages/pyspark"}
EXECUTOR = PLACES | {
    "SPARK_JAVA_OPT_10": "-Dlast=1",
    "SPARK_JAVA_OPT_2": "-Dfirst=1",
    "SPARK_EXECUTOR_MEMORY": "768m",
    "SPARK_DRIVER_URL": "spark://d:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "app",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "e-3",
}


def test_an_executor_is_started_as_spark_s_script_would() -> None:
    command = executor(EXECUTOR)
    assert command[:7] == [
        "/java/bin/java",
        "-Dfirst=1",
        "-Dlast=1",
        "-Xms768m",
        "-Xmx768m",
        "-cp",
        "/opt/packages/pyspark/jars/*",
    ]
    assert command[8:12] == ["--driver-url", "spark://d:7078", "--executor-id", "3"]
    assert command[-2:] == ["--podName", "e-3"]


def test_an_executor_needs_what_spark_sets() -> None:
    with pytest.raises(KeyError):
        executor(PLACES)


def test_a_driver_binds_to_the_address_of_its_pod() -> None:
    environment = PLACES | {"POD_IP": "10.0.0.1", "POD_NAME": "d-0", "SPARK_PROPERTIES": "/p"}
    command = driver(environment, JOB, ["archive", "a/b"])
    assert command[:3] == ["org.apache.spark.deploy.SparkSubmit", "--properties-file", "/p"]
    assert "spark.driver.bindAddress=10.0.0.1" in command
    assert command[-3:] == ["/opt/packages/tailrace/cli/pod/job.py", "archive", "a/b"]
    assert driver(environment, APPLICATION, ["/app/x.py"])[-2:] == [
        "/opt/packages/tailrace/cli/pod/application.py",
        "/app/x.py",
    ]
    assert launcher(PLACES, command)[-len(command) - 1] == "org.apache.spark.launcher.Main"


def test_what_the_launcher_prints_is_a_command_line() -> None:
    assert launched(b"\0\n/java/bin/java\0-Xmx1g\0\0a b\0") == ["/java/bin/java", "-Xmx1g", "", "a b"]
