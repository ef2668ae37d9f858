"""The end of a process: the signals that ask a server for it, and the exit where native threads may run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import NoReturn


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGINT, SIGTERM and SIGHUP set. An ignored SIGHUP (nohup) stays ignored."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, stop.set)
    return stop


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
