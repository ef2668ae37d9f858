"""Which processes cannot reach which: partitions, also of one direction."""

from __future__ import annotations

from sim.process import SimProcess


class Partitions:
    """Cuts between processes, by the names they were made with (without the number of the incarnation)."""

    def __init__(self) -> None:
        self._cut: dict[tuple[str, str], int] = {}

    def cut(self, source: str, target: str) -> None:
        """Cut two processes off from each other; each cut needs a join of its own."""
        self._cut[source, target] = self._cut.get((source, target), 0) + 1

    def join(self, source: str, target: str) -> None:
        """End a cut."""
        left = self._cut.get((source, target), 0) - 1
        if left > 0:
            self._cut[source, target] = left
        else:
            self._cut.pop((source, target), None)

    def heal(self) -> None:
        """End all cuts."""
        self._cut.clear()

    def lies_between(self, source: SimProcess | None, target: SimProcess | None) -> bool:
        """Whether what one process sends does not reach the other."""
        return bool(self._cut) and (_name(source), _name(target)) in self._cut


def _name(process: SimProcess | None) -> str:
    return "" if process is None else process.name.partition("#")[0]
