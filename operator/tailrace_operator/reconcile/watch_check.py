"""Whether a watch still tells what happens, seen from lists; pure (ADR 0015).

A watch can fall silent without an error. What a list shows twice in a row in one version, a period apart, and the watch
has told in another one or not at all, the watch has missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace_operator.reconcile.keys import Key


class WatchCheck:
    """Versions of objects as watch and lists showed them. Versions are compared for equality only."""

    def __init__(self) -> None:
        self._heard: dict[Key, str] = {}
        self._listed: dict[str, dict[Key, str]] = {}
        self._missed: dict[str, Key] = {}

    def heard(self, key: Key, version: str | None) -> None:
        """The watch told of the object; None: that it is gone."""
        if version is None:
            self._heard.pop(key, None)
        else:
            self._heard[key] = version
        if self._missed.get(key.plural) == key:
            del self._missed[key.plural]

    def listed(self, plural: str, versions: Mapping[Key, str]) -> None:
        """All objects of a kind as a list showed them."""
        before = self._listed.get(plural, {})
        self._listed[plural] = dict(versions)
        self._missed.pop(plural, None)
        for key, version in versions.items():
            if before.get(key) == version and self._heard.get(key) != version:
                self._missed[plural] = key
                return

    def missed(self) -> Key | None:
        """An object of which a watch did not tell; None: all watches go on."""
        return next(iter(self._missed.values()), None)
