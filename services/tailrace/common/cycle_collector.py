"""Have CPython look for cyclic garbage rarely (docs/performance.md#pauses-of-the-event-loop)."""

from __future__ import annotations

import gc

from tailrace.common import limits


def collect_cycles_rarely() -> None:
    """Set the collector up; a server calls it when its modules are imported and before it serves.

    A process may call it before its imports, too. Looking at all objects of modules again and again takes a tenth of
    the time in which they load.

    Reference counts free what a request leaves: none of our own code makes cycles for each request, and a test holds it
    to that. With CPython's defaults the collector looks at all objects about once a second under load, and blocks the
    event loop for 40 to 130 ms. Here it never looks at modules again, and most young objects have gone before it looks.
    """
    gc.freeze()
    gc.set_threshold(limits.GC_YOUNG_OBJECTS, limits.GC_YOUNG_COLLECTIONS, limits.GC_MIDDLE_COLLECTIONS)
