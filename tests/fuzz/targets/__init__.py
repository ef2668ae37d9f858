"""What is fuzzed: one module a target, in the order in which they run.

A module has ``run(data)``, which makes a stored or received form of the fuzzed bytes, with the right checksums, and
decodes it; ``DOCUMENTED``, the exceptions that the decoders document; and ``seeds()``, inputs that the code's own
encoders made, at least one of which `run` decodes without an exception.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Protocol, cast

NAMES = (
    "wire",
    "frames",
    "claims",
    "operations",
    "checkpoints",
    "snapshots",
    "chunks",
    "attributes",
    "tables",
    "records",
)


class Target(Protocol):
    """A module of this package."""

    DOCUMENTED: tuple[type[Exception], ...]

    def run(self, data: bytes) -> None:
        """Decode what the fuzzed bytes make. Raises one of `DOCUMENTED`; any other exception is a finding."""
        ...

    def seeds(self) -> Iterable[bytes]:
        """Inputs to begin with."""
        ...


def load(name: str) -> Target:
    """The target of this name."""
    return cast(Target, importlib.import_module(f"targets.{name}"))


def check(target: Target, data: bytes) -> bool:
    """Whether the target decodes this input; False after a documented exception. Any other one is raised."""
    try:
        target.run(data)
    except target.DOCUMENTED:
        return False
    return True
