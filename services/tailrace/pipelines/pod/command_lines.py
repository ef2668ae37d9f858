"""Command lines of Java in the pods of a Pipeline (docs/pipelines.md). Pure.

Variables named SPARK_… of an executor are those that Spark sets in the pods that it creates.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

JOB: Final = "tailrace/cli/pod/job.py"
APPLICATION: Final = "tailrace/cli/pod/application.py"
"""The programs of a driver, in the folder of packages."""
_EXECUTOR: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_SUBMIT: Final = "org.apache.spark.deploy.SparkSubmit"
_LAUNCHER: Final = "org.apache.spark.launcher.Main"
_OPTION: Final = re.compile(r"SPARK_JAVA_OPT_(\d+)")


def executor(environment: Mapping[str, str]) -> list[str]:
    """Return the command line of an executor. Raises KeyError: Spark has not set a variable."""
    numbered = ((_OPTION.fullmatch(name), value) for name, value in environment.items())
    options = sorted((int(match[1]), value) for match, value in numbered if match)
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    values = {
        "--driver-url": "SPARK_DRIVER_URL",
        "--executor-id": "SPARK_EXECUTOR_ID",
        "--cores": "SPARK_EXECUTOR_CORES",
        "--app-id": "SPARK_APPLICATION_ID",
        "--hostname": "SPARK_EXECUTOR_POD_IP",
        "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
        "--podName": "SPARK_EXECUTOR_POD_NAME",
    }
    arguments = [text for option, name in values.items() for text in (option, environment[name])]
    return [
        _java(environment),
        *(value for _, value in options),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        _classes(environment),
        _EXECUTOR,
        *arguments,
    ]


def driver(environment: Mapping[str, str], program: str, arguments: Sequence[str]) -> list[str]:
    """Return what Spark's launcher is asked for: a program of the driver, with its arguments.

    ``POD_NAME`` and ``POD_IP`` name the pod; ``SPARK_PROPERTIES`` is the file with Spark's settings.
    """
    packages = environment["SPARK_HOME"].rpartition("/")[0]
    address = environment["POD_IP"]
    settings = {
        "spark.driver.host": address,
        "spark.driver.bindAddress": address,  # Spark gives executors this one
        "spark.kubernetes.driver.pod.name": environment["POD_NAME"],
    }
    return [
        _SUBMIT,
        "--properties-file",
        environment["SPARK_PROPERTIES"],
        *(text for name, value in settings.items() for text in ("--conf", f"{name}={value}")),
        f"{packages}/{program}",
        *arguments,
    ]


def launcher(environment: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """Return the command line of Spark's launcher, which prints the one of a command."""
    return [_java(environment), "-Xmx64m", "-cp", _classes(environment), _LAUNCHER, *command]


def launched(printed: bytes) -> list[str]:
    """Return the command line that the launcher printed: an empty line, then words that end with a zero byte."""
    *words, _ = printed.removeprefix(b"\0\n").split(b"\0")
    return [word.decode() for word in words]


def _java(environment: Mapping[str, str]) -> str:
    return f"{environment['JAVA_HOME']}/bin/java"


def _classes(environment: Mapping[str, str]) -> str:
    return f"{environment['SPARK_HOME']}/jars/*"
