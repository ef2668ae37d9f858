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


def message_of(code: int, output: str, errors: str) -> str:
    """Return the termination message of a run: the numbers it printed, without its position; or its error."""
    if code != 0:
        return errors[:MESSAGE_MAX_BYTES] or f"exit code {code}"
    try:
        found: Any = json.loads(output)
    except ValueError:
        return ""
    if not isinstance(found, dict):
        return ""
    return json.dumps({name: value for name, value in found.items() if isinstance(value, int)})


def main() -> int:
    """Run the job of the command line."""
    from tailrace.cli.main import run

    output, errors = Kept(sys.stdout), Kept(sys.stderr)
    sys.stdout, sys.stderr = output, errors
    code = run(["pipeline", *sys.argv[1:], "--json"])
    message = message_of(code, output.last, errors.last)
    try:
        Path(os.environ.get("TERMINATION_MESSAGE", MESSAGE_FILE)).write_text(message)
    except OSError as error:
        sys.stderr.write(f"tailrace: the termination message cannot be written: {error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
