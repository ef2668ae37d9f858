"""How the command begins."""

import subprocess
import sys

WATCHED = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "tailrace.cli.main":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, {handler})
sys.meta_path.insert(0, Interrupts())
sys.argv = ["tailrace", "--version"]
from tailrace.cli.entry import main
main()
"""


def interrupted_while_loading(handler: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WATCHED.format(handler=handler)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_ctrl_c_while_loading_ends_without_a_traceback() -> None:
    ended = interrupted_while_loading("signal.default_int_handler")
    assert (ended.returncode, ended.stdout, ended.stderr) == (-2, "", "")


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    ended = interrupted_while_loading("signal.SIG_IGN")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("tailrace ")
