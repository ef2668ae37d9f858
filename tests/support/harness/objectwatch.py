"""Kills a process when a new chunk appears in Tier 2: between its upload and the commit of its reference.

``python objectwatch.py FOLDER PID part|whole`` waits for a file under FOLDER that was not there at its start ("part":
one that is being written), kills PID and prints the file. A process of its own, so that nothing delays the kill.
"""

from __future__ import annotations

import os
import re
import signal
import sys

_PART = re.compile(r"#\d+$")


def is_part(path: str) -> bool:
    """Whether a file is an object that is being written."""
    return _PART.search(path) is not None


def files_in(folder: str) -> set[str]:
    """All files below a folder; it changes meanwhile."""
    found = set()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    found |= files_in(entry.path)
                else:
                    found.add(entry.path)
    except FileNotFoundError:
        return found
    return found


def main(folder: str, pid: int, what: str) -> None:
    """Wait, kill, tell."""
    before = files_in(folder)
    print("watching", flush=True)
    while True:
        for path in files_in(folder) - before:
            # Frames of a log in objects come all the time.
            passing = "/probe/" in path or "/log/" in path.removeprefix(folder)
            if is_part(path) == (what == "part") and not passing:
                os.kill(pid, signal.SIGKILL)
                print(path, flush=True)
                return


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
