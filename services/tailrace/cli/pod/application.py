"""Run a program of the user in the driver of a Pipeline, and leave its error for Kubernetes (docs/pipelines.md).

The program finds a Spark session, which knows the format ``tailrace`` and reports its progress as that of a job.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.cli.pod.job import MESSAGE_MAX_BYTES, leave_message
from tailrace.common.errors import TailraceError

if TYPE_CHECKING:
    from collections.abc import Sequence


def _run(file: str, arguments: Sequence[str]) -> tuple[int, str]:
    """Return the exit code of a program, and what it says of its end."""
    from tailrace.pipelines.jobs.application import local_copy, run_program
    from tailrace.pipelines.jobs.session import spark_session

    try:
        with spark_session(f"application {file}", None, {}) as spark, tempfile.TemporaryDirectory() as folder:
            return run_program(local_copy(spark, file, Path(folder)), arguments)
    except TailraceError as error:  # Spark did not start, or there is no such program
        sys.stderr.write(f"tailrace: {error}\n")
        return 1, f"tailrace: {error}"


def main() -> int:
    """Run the program that the first argument names, with the other ones as its arguments."""
    file, *arguments = sys.argv[1:]
    code, message = _run(file, arguments)
    leave_message(message[:MESSAGE_MAX_BYTES])
    return code


if __name__ == "__main__":
    sys.exit(main())
