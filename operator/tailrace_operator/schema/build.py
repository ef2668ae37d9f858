"""Build OpenAPI v3 schemas as Kubernetes accepts them; each function returns a plain dictionary.

Strings have a maximum length and lists a maximum number of items. The API server estimates the cost of a rule from
these, and refuses rules over fields without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tailrace_operator.schema import grammar

Schema: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule in CEL and its error message. ``field``: the path in the error, if it is not that of the rule."""

    expression: str
    message: str
    field: str = ""

    def schema(self) -> dict[str, str]:
        """Return the entry of ``x-kubernetes-validations``."""
        found = {"rule": self.expression, "message": self.message}
        return {**found, "fieldPath": self.field} if self.field else found


def immutable(field: str) -> Rule:
    """Return the rule that a field cannot be changed."""
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
    """Return the schema of a string."""
    schema: Schema = {"type": "string", "description": description, "maxLength": max_length}
    if min_length:
        schema["minLength"] = min_length
    if pattern:
        schema["pattern"] = pattern
    return _completed(schema, default, rules)


def timestamp(description: str) -> Schema:
    """Return the schema of a time in RFC 3339."""
    return {"type": "string", "format": "date-time", "description": description, "maxLength": 64}


def choice(
    description: str, values: Sequence[str], *, default: str | None = None, rules: Sequence[Rule] = ()
) -> Schema:
    """Return the schema of an enumeration."""
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
    """Return the schema of an integer."""
    wide = maximum is None or maximum > grammar.INT32_MAX
    schema: Schema = {"type": "integer", "format": "int64" if wide else "int32", "description": description}
    if minimum is not None:
        schema["minimum"] = minimum
    if maximum is not None:
        schema["maximum"] = maximum
    return _completed(schema, default, rules)


def boolean(description: str, *, default: bool) -> Schema:
    """Return the schema of a truth value."""
    return {"type": "boolean", "description": description, "default": default}


def quantity(
    description: str, *, pattern: str, maximum: int, default: str | None = None, rules: Sequence[Rule] = ()
) -> Schema:
    """Return the schema of a Kubernetes quantity: a string such as ``1536Mi`` or an integer, with bounds for both."""
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
    """Return the schema of an object. ``defaulted``: a missing object is created with the defaults of its fields.

    The defaults are written out, because the API server checks the rules of a default before it fills in nested ones.
    """
    schema: Schema = {"type": "object", "description": description, "properties": dict(properties)}
    if required:
        schema["required"] = list(required)
    fields = {name: field["default"] for name, field in properties.items() if "default" in field}
    return _completed(schema, fields if defaulted else None, rules)


def string_set(
    description: str, item: Schema, *, max_items: int, min_items: int = 0, rules: Sequence[Rule] = ()
) -> Schema:
    """Return the schema of a set of strings."""
    schema: Schema = {
        "type": "array",
        "description": description,
        "items": item,
        "maxItems": max_items,
        "x-kubernetes-list-type": "set",
    }
    if min_items:
        schema["minItems"] = min_items
    return _completed(schema, None, rules)


def plain_list(description: str, item: Schema, *, max_items: int) -> Schema:
    """Return the schema of a list whose order counts, and that may have an item twice."""
    return {
        "type": "array",
        "description": description,
        "items": item,
        "maxItems": max_items,
        "x-kubernetes-list-type": "atomic",
    }


def string_map(description: str, item: Schema, *, max_items: int) -> Schema:
    """Return the schema of an object whose fields have any names."""
    return {"type": "object", "description": description, "additionalProperties": item, "maxProperties": max_items}


def keyed_list(description: str, key: str, item: Schema, *, max_items: int) -> Schema:
    """Return the schema of a list of objects with a key field."""
    return {
        "type": "array",
        "description": description,
        "items": item,
        "maxItems": max_items,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": [key],
    }


def conditions() -> Schema:
    """Return the schema of ``status.conditions``, by the Kubernetes API conventions."""
    condition = struct(
        "One aspect of the state of the resource.",
        {
            "type": string("Type of the condition.", max_length=64, min_length=1, pattern=grammar.REASON),
            "status": choice("Status of the condition.", ("True", "False", "Unknown")),
            "reason": string(
                "Reason for the status, in CamelCase.",
                max_length=grammar.REASON_MAX_LENGTH,
                min_length=1,
                pattern=grammar.REASON,
            ),
            "message": string("Explanation of the status, in one sentence.", max_length=grammar.MESSAGE_MAX_LENGTH),
            "lastTransitionTime": timestamp("When the status last changed."),
            "observedGeneration": integer("The metadata.generation that the condition was observed for."),
        },
        required=("type", "status", "reason", "message", "lastTransitionTime"),
    )
    return keyed_list(
        "State of the resource, by type of condition; Ready is the summary.",
        "type",
        condition,
        max_items=grammar.CONDITIONS_MAX,
    )


def observed_generation(when: str = "carried out, or refused") -> Schema:
    """Return the schema of ``status.observedGeneration``; ``when`` it is written."""
    return integer(f"The metadata.generation that was last {when}.")


def _completed(schema: Schema, default: object, rules: Sequence[Rule]) -> Schema:
    if default is not None:
        schema["default"] = default
    if rules:
        schema["x-kubernetes-validations"] = [rule.schema() for rule in rules]
    return schema
