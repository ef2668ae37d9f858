"""The last run that has ended, as the status of a Pipeline has it; pure (docs/pipelines.md#what-a-run-leaves)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LastRun:
    """A run that has ended. ``specification``: the annotation of its Job; empty: none, as of a scheduled run."""

    succeeded: bool
    time: str
    rows: int | None = None
    batches: int | None = None
    message: str = ""
    specification: str = ""

    @classmethod
    def of_status(cls, status: object) -> LastRun | None:
        """Return the run of a Pipeline's status; None: it has none."""
        found = status.get("lastRun") if isinstance(status, Mapping) else None
        if not isinstance(found, Mapping):
            return None
        return cls(
            succeeded=found.get("result") == "Succeeded",
            time=str(found.get("time", "")),
            rows=found.get("rows"),
            batches=found.get("batches"),
            message=str(found.get("message", "")),
            specification=str(found.get("specification", "")),
        )

    def as_status(self) -> dict[str, Any]:
        """Return the fields of the status."""
        found = {
            "result": "Succeeded" if self.succeeded else "Failed",
            "time": self.time,
            "rows": self.rows,
            "batches": self.batches,
            "message": self.message or None,
            "specification": self.specification or None,
        }
        return {name: value for name, value in found.items() if value is not None}
