"""Temporary reader groups and the processes that made them."""

import os
import subprocess
import sys

from tailrace.cli.temporary import Maker, group_name, maker_of, surely_gone, this_process
from tailrace.common.names import check_entity_name


def test_a_name_identifies_its_process() -> None:
    maker = this_process()
    name = group_name(maker)
    assert check_entity_name("reader group", name) == name
    assert maker_of(name) == maker
    assert maker.pid == os.getpid()
    assert group_name(maker) != name
    for other in ("mine", "cli-mine", "cli-" + "0" * 32, name + "x", name.removeprefix("cli-")):
        assert maker_of(other) is None


def test_who_is_gone() -> None:
    here = this_process().place
    assert not surely_gone(this_process(), here)
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with open(f"/proc/{other.pid}/stat") as stat:
            started = int(stat.read().rpartition(")")[2].split()[19])
        maker = Maker(here, other.pid, started)
        assert not surely_gone(maker, here)
        assert surely_gone(maker._replace(started=started - 1), here), "another process has its number now"
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert surely_gone(maker, here), "only its remains are there"
    finally:
        other.kill()
        other.communicate()
    assert surely_gone(maker, here)
    assert not surely_gone(maker, "elsewhere")
