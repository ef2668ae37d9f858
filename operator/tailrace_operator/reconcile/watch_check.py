"""Detect a watch that has stopped reporting, by comparing it with lists; pure (ADR 0015).

A watch can stop without an error. A change is missed when two lists show an object in the same version and the watch
has not reported that version. The lists are at least `limits.OPERATOR_WATCH_LATE_S` apart, however short the period is:
an event may be late.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tailrace.common import limits

if TYPE_CHECKING:
    from tailrace_operator.reconcile.keys import Key


class WatchCheck:
    """Versions of objects as the watch and the lists showed them. Versions are compared for equality only."""

    def __init__(self) -> None:
        self._watched: dict[Key, str] = {}
        self._listed: dict[str, tuple[float, dict[Key, str]]] = {}
        """By kind: a list that later ones are compared with, and its time in seconds."""
        self._missed: dict[str, Key] = {}

    def on_event(self, key: Key, version: str | None) -> None:
        """Record a watch event of an object; None: it was deleted."""
        if version is None:
            self._watched.pop(key, None)
        else:
            self._watched[key] = version
        if self._missed.get(key.plural) == key:
            del self._missed[key.plural]

    def on_list(self, plural: str, versions: Mapping[Key, str], now_s: float) -> None:
        """Record a list of all objects of a kind, and when it was received."""
        listed_s, before = self._listed.get(plural, (-math.inf, {}))
        if now_s - listed_s < limits.OPERATOR_WATCH_LATE_S:
            return
        self._listed[plural] = now_s, dict(versions)
        self._missed.pop(plural, None)
        for key, version in versions.items():
            if before.get(key) == version and self._watched.get(key) != version:
                self._missed[plural] = key
                return

    def missed(self) -> Key | None:
        """Return an object whose change a watch has missed; None: all watches report."""
        return next(iter(self._missed.values()), None)
