"""How a process with native threads ends."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """End the process with this exit code, after writing out what was printed.

    Where the object store's native runtime was loaded the interpreter is not taken down: a thread of that runtime that
    lets go of a Python object meanwhile would abort the process (SIGABRT in place of the exit code).
    """
    if "obstore" not in sys.modules:
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):  # whoever read it has gone
                stream.flush()
    os._exit(code)
