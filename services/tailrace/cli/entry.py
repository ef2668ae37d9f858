"""Start the ``tailrace`` command, so that Ctrl-C while modules load ends it without a traceback."""

from __future__ import annotations

import signal

from tailrace.common.cycle_collector import collect_cycles_rarely


def main() -> None:
    """Load the command line and run it."""
    python = signal.getsignal(signal.SIGINT)
    if python is signal.default_int_handler:  # keep SIGINT ignored if the caller ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    collect_cycles_rarely()
    from tailrace.cli.main import main as run

    signal.signal(signal.SIGINT, python)
    run()
