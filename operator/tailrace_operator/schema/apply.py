"""Validate a value against its schema as the API server does: types, bounds, patterns, defaults, pruning. Pure.

Rules in CEL are not evaluated here; `tailrace_operator.schema.specs` has each of them in Python.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from tailrace.common.errors import InvalidSpecError

_SHOWN_MAX_LENGTH = 60


def applied(schema: dict[str, Any], value: Any, path: str) -> Any:
    """Return the value with defaults and without unknown fields.

    Raises:
        InvalidSpecError: the value does not match the schema; the message names the field.
    """
    if schema.get("x-kubernetes-int-or-string"):
        return _number_or_string(schema, value, path)
    match schema["type"]:
        case "object":
            return _object(schema, value, path)
        case "array":
            return _array(schema, value, path)
        case "string":
            return _string(schema, value, path)
        case "boolean":
            if not isinstance(value, bool):
                raise InvalidSpecError(path, f"{_shown(value)} is neither true nor false")
            return value
        case "integer":
            return _integer(schema, value, path)
        case other:
            raise AssertionError(f"{path}: unexpected type {other} in a schema")


def _object(schema: dict[str, Any], value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidSpecError(path, f"{_shown(value)} is not an object")
    if "additionalProperties" in schema:
        return _map(schema, value, path)
    found = {}
    for name, field in schema["properties"].items():
        given = value.get(name)
        if given is None and "default" in field:
            given = copy.deepcopy(field["default"])
        if given is not None:
            found[name] = applied(field, given, f"{path}.{name}")
        elif name in schema.get("required", ()):
            raise InvalidSpecError(f"{path}.{name}", "is required")
    return found


def _map(schema: dict[str, Any], value: dict[str, Any], path: str) -> dict[str, Any]:
    given = {name: item for name, item in value.items() if item is not None}
    if len(given) > schema["maxProperties"]:
        raise InvalidSpecError(path, f"{len(given)} fields, at most {schema['maxProperties']} are allowed")
    return {name: applied(schema["additionalProperties"], item, f"{path}.{name}") for name, item in given.items()}


def _array(schema: dict[str, Any], value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidSpecError(path, f"{_shown(value)} is not a list")
    if len(value) > schema["maxItems"]:
        raise InvalidSpecError(path, f"{len(value)} items, at most {schema['maxItems']} are allowed")
    if len(value) < schema.get("minItems", 0):
        raise InvalidSpecError(path, f"{len(value)} items, at least {schema['minItems']} are required")
    found = [applied(schema["items"], item, f"{path}[{index}]") for index, item in enumerate(value)]
    if schema["x-kubernetes-list-type"] == "atomic":
        return found
    keys = schema.get("x-kubernetes-list-map-keys")
    seen = set()
    for index, item in enumerate(found):
        identity = tuple(item.get(key) for key in keys) if keys else item
        if identity in seen:
            raise InvalidSpecError(f"{path}[{index}]", f"{_shown(item)} is a duplicate")
        seen.add(identity)
    return found


def _string(schema: dict[str, Any], value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise InvalidSpecError(path, f"{_shown(value)} is not a string")
    if "enum" in schema and value not in schema["enum"]:
        raise InvalidSpecError(path, f"{_shown(value)} is not one of {', '.join(schema['enum'])}")
    if len(value) > schema["maxLength"]:
        raise InvalidSpecError(path, f"{len(value)} characters, at most {schema['maxLength']} are allowed")
    if len(value) < schema.get("minLength", 0):
        raise InvalidSpecError(path, f"{len(value)} characters, at least {schema['minLength']} are required")
    # In Go, $ matches only the end of the text; in Python, also before a final line break.
    if "pattern" in schema and not re.search(schema["pattern"].removesuffix("$") + r"\Z", value):
        raise InvalidSpecError(path, f"{_shown(value)} does not match {schema['pattern']}")
    return value


def _number_or_string(schema: dict[str, Any], value: Any, path: str) -> int | str:
    if isinstance(value, str):
        return _string(schema, value, path)
    if isinstance(value, int) and not isinstance(value, bool):
        return _integer(schema, value, path)
    raise InvalidSpecError(path, f"{_shown(value)} is neither an integer nor a string")


def _integer(schema: dict[str, Any], value: Any, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidSpecError(path, f"{_shown(value)} is not an integer")
    if value < schema.get("minimum", value):
        raise InvalidSpecError(path, f"{value} is below {schema['minimum']}")
    if value > schema.get("maximum", value):
        raise InvalidSpecError(path, f"{value} is above {schema['maximum']}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX_LENGTH else f"{text[:_SHOWN_MAX_LENGTH]}..."
