"""CEL rules that several schemas use."""

from __future__ import annotations

from typing import Final

from tailrace.common import limits
from tailrace_operator.schema import grammar
from tailrace_operator.schema.build import Rule


def memory_at_least(smallest_mib: int, example: str) -> Rule:
    """Return the rule that a memory limit is not below a number of MiB."""
    return Rule(
        f"type(self) == int ? self >= {smallest_mib * limits.MIB} : "
        f"!isQuantity(self) || quantity(self).compareTo(quantity('{smallest_mib}Mi')) >= 0",
        f"memory must be at least {smallest_mib}Mi, for example {example}",
    )


MEMORY_AT_LEAST: Final = memory_at_least(grammar.MEMORY_MIN_MIB, "1536Mi")
CONTROLLER_MEMORY_AT_LEAST: Final = memory_at_least(
    grammar.CONTROLLER_MEMORY_MIN_MIB, grammar.CONTROLLER_MEMORY_DEFAULT
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
    """Return the CEL expression that a text is a size."""
    return f"{value}.matches('{_quoted(grammar.SIZE)}')"


def is_duration(value: str) -> str:
    """Return the CEL expression that a text is a duration."""
    return f"{value}.matches('{_quoted(grammar.DURATION)}')"


def duration_s(value: str) -> str:
    """Return the CEL expression for the seconds of a duration; CEL itself has no days."""
    end = f"size({value}) - 1"
    return f"int({value}.substring(0, {end})) * {{'s': 1, 'm': 60, 'h': 3600, 'd': 86400}}[{value}.substring({end})]"


def same_name(field: str, kind: str) -> Rule:
    """Return the rule that a name, by default that of the resource, is immutable. For the root of a schema."""
    new, old = (f"(has({at}.spec.{field}) ? {at}.spec.{field} : {at}.metadata.name)" for at in ("self", "oldSelf"))
    return Rule(f"{new} == {old}", f"{field}, the name of the {kind}, is immutable", f".spec.{field}")


def name_fits(field: str, max_length: int) -> Rule:
    """Return the rule that the resource's name is short enough to be the default. For the root of a schema."""
    return Rule(
        f"has(self.spec.{field}) || size(self.metadata.name) <= {max_length}",
        f"{field} must be set, because metadata.name has more than {max_length} characters",
    )


def _quoted(pattern: str) -> str:
    return pattern.replace("\\", "\\\\")
