"""Pieces of CEL that several schemas use."""

from __future__ import annotations

from typing import Final

from tailrace_operator.schema import grammar
from tailrace_operator.schema.build import Rule

MEMORY_AT_LEAST: Final = Rule(
    f"type(self) == int ? self >= {grammar.MEMORY_MIN_BYTES} : "
    f"!isQuantity(self) || quantity(self).compareTo(quantity('{grammar.MEMORY_MIN}')) >= 0",
    f"memory must be at least {grammar.MEMORY_MIN}, as in 1536Mi",
)
CPU_POSITIVE: Final = Rule(
    "type(self) == int ? self > 0 : !isQuantity(self) || quantity(self).isGreaterThan(quantity('0'))",
    "cpu must be more than 0",
)
SIZE_BOUNDED: Final = Rule(
    f"!isQuantity(self) || quantity(self).compareTo(quantity('{grammar.SIZE_MAX}')) <= 0",
    f"a size must be at most {grammar.SIZE_MAX}",
)


def is_size(value: str) -> str:
    """Whether the text is a size."""
    return f"{value}.matches('{_quoted(grammar.SIZE)}')"


def is_duration(value: str) -> str:
    """Whether the text is a duration."""
    return f"{value}.matches('{_quoted(grammar.DURATION)}')"


def duration_s(value: str) -> str:
    """Seconds of a duration; days are none of CEL's own units."""
    end = f"size({value}) - 1"
    return f"int({value}.substring(0, {end})) * {{'s': 1, 'm': 60, 'h': 3600, 'd': 86400}}[{value}.substring({end})]"


def same_name(field: str, kind: str) -> Rule:
    """The resource's own name stands for a name that is not given; the result is immutable. At the root of a schema."""
    new, old = (f"(has({at}.spec.{field}) ? {at}.spec.{field} : {at}.metadata.name)" for at in ("self", "oldSelf"))
    return Rule(f"{new} == {old}", f"{field}, the name of the {kind}, is immutable", f".spec.{field}")


def name_fits(field: str, max_length: int) -> Rule:
    """The resource's own name is not too long to stand for the one that is not given. At the root of a schema."""
    return Rule(
        f"has(self.spec.{field}) || size(self.metadata.name) <= {max_length}",
        f"{field} must be given: the resource's own name has more than {max_length} characters",
    )


def _quoted(pattern: str) -> str:
    return pattern.replace("\\", "\\\\")
