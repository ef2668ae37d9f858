"""Small words that schemas are written in; each returns a plain OpenAPI v3 schema as Kubernetes takes it.

Everything has a bound: strings a length, lists a number of items. The API server estimates from them what a rule may
cost, and refuses rules over fields without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tailrace_operator.schema import grammar

Schema: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule in CEL and what users are told when it does not hold. ``field``: the path blamed, if not its place."""

    expression: str
    message: str
    field: str = ""

    def schema(self) -> dict[str, str]:
        """As it stands in ``x-kubernetes-validations``."""
        found = {"rule": self.expression, "message": self.message}
        return {**found, "fieldPath": self.field} if self.field else found


def immutable(field: str) -> Rule:
    """The value stays what it was when the resource was made."""
    return Rule("self == oldSelf", f"{field} is immutable")


def string(
    description: str,
    *,
    max_length: int,
    min_length: int = 0,
    pattern: str = "",
    default: str | None = None,
    rules: Sequence[Rule] = (),
) -> Schema:
    """A text."""
    schema: Schema = {"type": "string", "description": description, "maxLength": max_length}
    if min_length:
        schema["minLength"] = min_length
    if pattern:
        schema["pattern"] = pattern
    return _completed(schema, default, rules)


def timestamp(description: str) -> Schema:
    """A time in RFC 3339."""
    return {"type": "string", "format": "date-time", "description": description, "maxLength": 64}


def choice(
    description: str, values: Sequence[str], *, default: str | None = None, rules: Sequence[Rule] = ()
) -> Schema:
    """One of some words."""
    schema: Schema = {
        "type": "string",
        "description": description,
        "enum": list(values),
        "maxLength": max(len(value) for value in values),
    }
    return _completed(schema, default, rules)


def integer(
    description: str,
    *,
    minimum: int | None = 0,
    maximum: int | None = None,
    default: int | None = None,
    rules: Sequence[Rule] = (),
) -> Schema:
    """A whole number."""
    wide = maximum is None or maximum > grammar.INT32_MAX
    schema: Schema = {"type": "integer", "format": "int64" if wide else "int32", "description": description}
    if minimum is not None:
        schema["minimum"] = minimum
    if maximum is not None:
        schema["maximum"] = maximum
    return _completed(schema, default, rules)


def quantity(
    description: str, *, pattern: str, maximum: int, default: str | None = None, rules: Sequence[Rule] = ()
) -> Schema:
    """A text as ``1536Mi`` or a whole number, as Kubernetes takes quantities; bounds of each beside the other's."""
    schema: Schema = {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "description": description,
        "minimum": 0,
        "maximum": maximum,
        "maxLength": grammar.QUANTITY_MAX_LENGTH,
        "pattern": pattern,
    }
    return _completed(schema, default, rules)


def struct(
    description: str,
    properties: Mapping[str, Schema],
    *,
    required: Sequence[str] = (),
    defaulted: bool = False,
    rules: Sequence[Rule] = (),
) -> Schema:
    """Named fields. ``defaulted``: when it is not given it is there with the defaults of its fields.

    Those are written out, because the API server tries rules on a default before it fills it in.
    """
    schema: Schema = {"type": "object", "description": description, "properties": dict(properties)}
    if required:
        schema["required"] = list(required)
    fields = {name: field["default"] for name, field in properties.items() if "default" in field}
    return _completed(schema, fields if defaulted else None, rules)


def string_set(description: str, item: Schema, *, max_items: int, min_items: int = 0) -> Schema:
    """Texts, each once."""
    schema = {
        "type": "array",
        "description": description,
        "items": item,
        "maxItems": max_items,
        "x-kubernetes-list-type": "set",
    }
    return {**schema, "minItems": min_items} if min_items else schema


def keyed_list(description: str, key: str, item: Schema, *, max_items: int) -> Schema:
    """Structs, told apart by one of their fields."""
    return {
        "type": "array",
        "description": description,
        "items": item,
        "maxItems": max_items,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": [key],
    }


def conditions() -> Schema:
    """``status.conditions``, as Kubernetes' conventions have them."""
    condition = struct(
        "One aspect of the resource's state.",
        {
            "type": string("The aspect.", max_length=64, min_length=1, pattern=grammar.REASON),
            "status": choice("Whether it holds.", ("True", "False", "Unknown")),
            "reason": string(
                "Why, in one word.", max_length=grammar.REASON_MAX_LENGTH, min_length=1, pattern=grammar.REASON
            ),
            "message": string("Why, in a sentence.", max_length=grammar.MESSAGE_MAX_LENGTH),
            "lastTransitionTime": timestamp("When status changed last."),
            "observedGeneration": integer("The metadata.generation that this was found for."),
        },
        required=("type", "status", "reason", "message", "lastTransitionTime"),
    )
    return keyed_list(
        "What is known of the resource, by type; Ready sums it up.",
        "type",
        condition,
        max_items=grammar.CONDITIONS_MAX,
    )


def observed_generation() -> Schema:
    """``status.observedGeneration``."""
    return integer("The metadata.generation that was reconciled last.")


def _completed(schema: Schema, default: object, rules: Sequence[Rule]) -> Schema:
    if default is not None:
        schema["default"] = default
    if rules:
        schema["x-kubernetes-validations"] = [rule.schema() for rule in rules]
    return schema
