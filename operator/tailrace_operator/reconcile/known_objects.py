"""The objects of all kinds as they were last heard of, by kind and namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_operator.reconcile.keys import Key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tailrace.cluster.kubernetes import Manifest


class KnownObjects:
    """Objects by their keys. They must not change while one iterates over them."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], dict[str, Manifest]] = {}
        """By plural of the kind and namespace: objects by name. None of them is empty."""

    def __len__(self) -> int:
        """Return how many objects there are."""
        return sum(map(len, self._places.values()))

    def __contains__(self, key: Key) -> bool:
        """Return whether the object is known."""
        return self.get(key) is not None

    def get(self, key: Key) -> Manifest | None:
        """Return an object; None: it is not known."""
        return self._places.get((key.plural, key.namespace), {}).get(key.name)

    def put(self, key: Key, manifest: Manifest) -> None:
        """Remember an object, or its new state."""
        self._places.setdefault((key.plural, key.namespace), {})[key.name] = manifest

    def remove(self, key: Key) -> bool:
        """Forget an object; return whether it was known."""
        place = self._places.get((key.plural, key.namespace), {})
        if place.pop(key.name, None) is None:
            return False
        if not place:
            del self._places[key.plural, key.namespace]
        return True

    def count(self, plural: str) -> int:
        """Return how many objects of a kind there are."""
        return sum(len(place) for (kind, _), place in self._places.items() if kind == plural)

    def of(self, plural: str, namespace: str) -> Collection[Manifest]:
        """Return the objects of a kind in a namespace."""
        return self._places.get((plural, namespace), {}).values()

    def items(self, plural: str | None = None) -> Iterator[tuple[Key, Manifest]]:
        """Yield the objects of a kind, or (None) of all, with their keys."""
        for (kind, namespace), place in self._places.items():
            if plural in (None, kind):
                for name, manifest in place.items():
                    yield Key(kind, namespace, name), manifest


def is_older(manifest: Manifest, known: Manifest) -> bool:
    """Return whether the manifest is an older generation of the same object; generations only rise."""
    new, old = manifest["metadata"], known["metadata"]
    same = new.get("uid") == old.get("uid")
    return same and int(new.get("generation") or 0) < int(old.get("generation") or 0)


def is_of_another(manifest: Manifest, known: Manifest, *, is_gone: bool) -> bool:
    """Return whether an event says nothing of the known object: it is of another one of that name, gone or older."""
    new, old = manifest["metadata"], known["metadata"]
    if new["uid"] == old["uid"]:
        return False
    return is_gone or str(new.get("creationTimestamp", "")) < str(old.get("creationTimestamp", ""))
