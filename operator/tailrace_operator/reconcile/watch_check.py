"""Detect a watch that has stopped reporting, by comparing it with lists; pure (ADR 0015).

A watch can stop without an error. A change is missed when two lists in a row, one period apart, show an object in the
same version and the watch has not reported that version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace_operator.reconcile.keys import Key


class WatchCheck:
    """Versions of objects as the watch and the lists showed them. Versions are compared for equality only."""

    def __init__(self) -> None:
        self._watched: dict[Key, str] = {}
        self._listed: dict[str, dict[Key, str]] = {}
        self._missed: dict[str, Key] = {}

    def on_event(self, key: Key, version: str | None) -> None:
        """Record a watch event of an object; None: it was deleted."""
        if version is None:
            self._watched.pop(key, None)
        else:
            self._watched[key] = version
        if self._missed.get(key.plural) == key:
            del self._missed[key.plural]

    def on_list(self, plural: str, versions: Mapping[Key, str]) -> None:
        """Record a list of all objects of a kind."""
        before = self._listed.get(plural, {})
        self._listed[plural] = dict(versions)
        self._missed.pop(plural, None)
        for key, version in versions.items():
            if before.get(key) == version and self._watched.get(key) != version:
                self._missed[plural] = key
                return

    def missed(self) -> Key | None:
        """Return an object whose change a watch has missed; None: all watches report."""
        return next(iter(self._missed.values()), None)
