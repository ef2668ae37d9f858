"""A process that loaded the object store's runtime ends with its exit code and everything it printed."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The failing "atexit" stands for a native thread that aborts while the interpreter is taken down.
PROGRAM = """
import atexit, os, sys
from tailrace.common.process_exit import end_process
if {loaded}:
    import obstore
    atexit.register(os.abort)
print("said")
sys.stderr.write("failed\\n")
end_process({code})
"""


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("code", [0, 1, 3])
def test_exit_code_and_output(loaded: bool, code: int) -> None:
    program = PROGRAM.format(loaded=loaded, code=code)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "said\n", "failed\n")
