"""Ends a process that may have native threads."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """Flush the output and end the process with this exit code.

    When the object store's native runtime is loaded, this skips the shutdown of the interpreter. A thread of that
    runtime that releases a Python object during the shutdown would abort the process (SIGABRT, not the exit code).
    """
    if "obstore" not in sys.modules:
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):  # the reader has closed it
                stream.flush()
    os._exit(code)
