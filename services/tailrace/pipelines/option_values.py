"""Options of the data source as values. Spark gives their names in lower case. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.common.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_OF_SPARK: Final = frozenset({"path", "checkpointlocation"})


def lower_names(given: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Return the options by their names in lower case. Raises BadRequestError for a name that is not known."""
    options = {name.lower(): value for name, value in given.items()}
    names = tuple(known)
    allowed = _OF_SPARK.union(name.lower() for name in names)
    for name in options:
        if name not in allowed:
            raise BadRequestError(f"there is no option {name}; there are {', '.join(names)}")
    return options


def required(options: Mapping[str, str], name: str) -> str:
    """Return the text of an option. Raises BadRequestError when it is missing."""
    value = options.get(name.lower(), "")
    if not value:
        raise BadRequestError(f"the option {name} is missing")
    return value


def count(options: Mapping[str, str], name: str, *, lowest: int = 1) -> int | None:
    """Return the number of an option; None when it is not given. Raises BadRequestError for another text."""
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not lowest <= int(text) < 2**63:
        bound = f"of at least {lowest}" if lowest != 1 else "above 0"
        raise BadRequestError(f"option {name}: {text[:80]!r} is not a number {bound}")
    return int(text)


def choice(options: Mapping[str, str], name: str, allowed: Sequence[str]) -> str:
    """Return the text of an option in lower case; without one the first. Raises BadRequestError for others."""
    text = options.get(name.lower(), allowed[0]).lower()
    if text not in (each.lower() for each in allowed):
        raise BadRequestError(f"option {name}: {text[:80]!r} is none of {', '.join(allowed)}")
    return text
