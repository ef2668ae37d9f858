"""Run a job of ``tailrace pipeline`` in the driver of a Pipeline, and leave its result for Kubernetes.

What Kubernetes keeps of a container that has ended is its termination message: one line of the error, or the numbers of
the run as JSON (docs/pipelines.md#what-a-run-leaves).
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any, Final, TextIO

MESSAGE_MAX_BYTES: Final = 2048
"""Kubernetes keeps 4,096 bytes of all containers of a pod."""
MESSAGE_FILE: Final = "/dev/termination-log"
FINDINGS_CODE: Final = 3
"""Exit code of an audit that has read everything and found something wrong: another run would find it again."""


class Kept(io.TextIOBase):
    """A text stream that passes everything on, and keeps the last line that says something."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = ""
        self.last = ""

    def write(self, text: str) -> int:
        """Write to the stream."""
        *complete, self._line = (self._line + text).split("\n")
        self.last = next((line for line in reversed(complete) if line.strip()), self.last)
        self._line = self._line[-MESSAGE_MAX_BYTES:]
        return self._stream.write(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()

    def fileno(self) -> int:
        """Return the descriptor of the stream."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Return False."""
        return False


def result_of(code: int, output: str, errors: str) -> tuple[int, str]:
    """Return the exit code and the termination message of a run.

    The message has the numbers that the job printed, without its position; or its error; or an audit's findings.
    """
    found = _printed(output)
    if code != 0 and found.get("findings"):
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(found["findings"].items()))
        return FINDINGS_CODE, f"the audit has findings ({counts}); its report is {found['report']}"
    if code != 0:
        return code, errors[:MESSAGE_MAX_BYTES] or f"exit code {code}"
    return code, json.dumps({name: value for name, value in found.items() if type(value) is int}) if found else ""


def _printed(output: str) -> dict[str, Any]:
    """Return the JSON object that a job has printed; empty: it has printed none."""
    try:
        found: Any = json.loads(output)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def leave_message(message: str) -> None:
    """Write the termination message."""
    try:
        Path(os.environ.get("TERMINATION_MESSAGE", MESSAGE_FILE)).write_text(message)
    except OSError as error:
        sys.stderr.write(f"tailrace: the termination message cannot be written: {error}\n")


def main() -> int:
    """Run the job of the command line."""
    from tailrace.cli.main import run

    output, errors = Kept(sys.stdout), Kept(sys.stderr)
    sys.stdout, sys.stderr = output, errors
    code = run(["pipeline", *sys.argv[1:], "--json"])
    code, message = result_of(code, output.last, errors.last)
    leave_message(message)
    return code


if __name__ == "__main__":
    sys.exit(main())
