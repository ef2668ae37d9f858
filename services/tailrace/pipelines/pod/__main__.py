"""Entry point of the image for pipelines.

``driver JOB ARGUMENT...`` runs a job, ``application FILE ARGUMENT...`` a program of the user; Spark starts executors by
``executor``.

The process becomes Java's. There is no shell in the image, so the scripts of Spark cannot run there.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tailrace.pipelines.pod.command_lines import APPLICATION, JOB, driver, executor, launched, launcher

LAUNCHER_DEADLINE_S = 60.0


def main() -> None:
    """Start what the first argument names."""
    environment = dict(os.environ)
    match sys.argv[1:]:
        case ["executor", *_]:
            command = executor(environment)
        case ["driver", *arguments]:
            command = _through_launcher(driver(environment, JOB, arguments), environment)
        case ["application", *arguments]:
            command = _through_launcher(driver(environment, APPLICATION, arguments), environment)
        case _:
            sys.exit("usage: driver JOB ARGUMENT... | application FILE ARGUMENT... | executor")
    os.execve(command[0], command, environment)


def _through_launcher(command: list[str], environment: dict[str, str]) -> list[str]:
    """Ask Spark's launcher for the command line: it knows what Java's modules have to open."""
    found = subprocess.run(
        launcher(environment, command), stdout=subprocess.PIPE, check=True, timeout=LAUNCHER_DEADLINE_S
    )
    return launched(found.stdout)


if __name__ == "__main__":
    main()
