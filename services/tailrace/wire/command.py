"""The base of all commands: the code on the wire and the layout of the fields (docs/protocol/wire.md#commands)."""

from dataclasses import MISSING, fields
from typing import ClassVar, Final, NamedTuple, get_type_hints

from tailrace.wire.fields import Field


class Slot(NamedTuple):
    """One field of a command's layout; the payload may end before an optional one (docs/protocol/wire.md#frames)."""

    name: str
    field: Field
    optional: bool


class Command:
    """Base of all commands.

    ``CODE`` is the type in the frame's header. Older peers leave out fields with a default: when the payload ends
    before such a field, it and all later ones take their defaults.
    """

    __slots__ = ()

    CODE: ClassVar[int]


_LAYOUTS: Final[dict[type[Command], tuple[Slot, ...]]] = {}


def layout_of(command: type[Command]) -> tuple[Slot, ...]:
    """Return the command's fields in wire order."""
    layout = _LAYOUTS.get(command)
    if layout is None:
        hints = get_type_hints(command, include_extras=True)
        slots = []
        for each in fields(command):  # type: ignore[arg-type]
            optional = each.default is not MISSING or each.default_factory is not MISSING
            slots.append(Slot(each.name, hints[each.name].__metadata__[0], optional))
        layout = _LAYOUTS[command] = tuple(slots)
    return layout
