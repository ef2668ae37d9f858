"""The collector of cycles, as servers set it up; in a process of its own, because it is the whole process's."""

from __future__ import annotations

import subprocess
import sys

from tailrace.common import limits

PROGRAM = """
import gc
from tailrace.common.cycle_collector import collect_cycles_rarely

class Node:
    pass

def circle():
    one, other = Node(), Node()
    one.other, other.other = other, one

collect_cycles_rarely()
print(gc.isenabled(), *gc.get_threshold(), gc.get_freeze_count() > 1000)
for _ in range(20_000):
    circle()
print(sum(isinstance(found, Node) for found in gc.get_objects()) < 15_000)
"""


def test_young_objects_are_looked_at_and_modules_are_not() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    young = (limits.GC_YOUNG_OBJECTS, limits.GC_YOUNG_COLLECTIONS, limits.GC_MIDDLE_COLLECTIONS)
    assert ended.stdout.split() == ["True", *map(str, young), "True", "True"]
