"""The resources' schemas: structural, bounded, documented; and read the same way by specs and by a JSON schema."""

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.resourcecases import CASES, PLURALS, Case, manifest
from tailrace.common import limits, names
from tailrace.common.errors import InvalidNameError, InvalidSpecError
from tailrace_operator.schema import grammar
from tailrace_operator.schema.apply import applied
from tailrace_operator.schema.definitions import DEFINITIONS, Definition
from tailrace_operator.schema.pipeline_spec import PipelineSpec
from tailrace_operator.schema.specs import ReaderGroupSpec, StreamClusterSpec, StreamSpec

PARSERS = {
    "StreamCluster": StreamClusterSpec.parse,
    "Stream": StreamSpec.parse,
    "ReaderGroup": ReaderGroupSpec.parse,
    "Pipeline": PipelineSpec.parse,
}
BY_KIND = {definition.kind: definition for definition in DEFINITIONS}
ALLOWED = {
    "type",
    "format",
    "description",
    "properties",
    "required",
    "items",
    "default",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "additionalProperties",
    "maxProperties",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
    "x-kubernetes-int-or-string",
    "anyOf",
}


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema below spec and status, with its path."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from nodes(field, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


def own_nodes() -> list[Any]:
    found = []
    for definition in DEFINITIONS:
        properties = definition.schema()["properties"]
        for part in ("spec", "status"):
            found += [pytest.param(node, id=f"{definition.kind}{path}") for path, node in nodes(properties[part], part)]
    return found


@pytest.mark.parametrize("node", own_nodes())
def test_every_field_is_structural_and_bounded(node: dict[str, Any]) -> None:
    assert not node.keys() - ALLOWED
    assert node["description"].endswith(".")
    if node.get("x-kubernetes-int-or-string"):
        assert "type" not in node, "the API server allows it none"
        assert node["anyOf"] == [{"type": "integer"}, {"type": "string"}], "and this one form beside"
        assert node["maxLength"] >= 1
        assert node["maximum"] > node["minimum"] >= 0
        return
    assert "anyOf" not in node
    match node["type"]:
        case "string":
            assert node["maxLength"] >= 1
        case "array":
            assert node["maxItems"] >= 1
            assert node["x-kubernetes-list-type"] in {"set", "map", "atomic"}
        case "object" if "additionalProperties" in node:
            assert node["maxProperties"] >= 1
            assert node["additionalProperties"]["type"] == "string"
        case "object":
            assert node["properties"]
            assert set(node.get("required", ())) <= node["properties"].keys()
        case "boolean":
            assert "default" in node
        case kind:
            assert kind == "integer"
            assert node["format"] in {"int32", "int64"}
            if node["format"] == "int32":
                assert node["maximum"] <= 2**31 - 1


@pytest.mark.parametrize("node", own_nodes())
def test_keys_of_lists_are_always_there(node: dict[str, Any]) -> None:
    for key in node.get("x-kubernetes-list-map-keys", ()):
        assert key in node["items"]["required"]


@pytest.mark.parametrize("node", own_nodes())
def test_patterns_hold_for_the_whole_text(node: dict[str, Any]) -> None:
    pattern = node.get("pattern")
    if pattern is not None:
        assert pattern.startswith("^")
        assert pattern.endswith("$")
        assert not re.search(r"\(\?|\\[1-9bBdDsSwW]", pattern), "Go and Python read it alike"


@pytest.mark.parametrize("node", own_nodes())
def test_defaults_keep_to_their_own_schema(node: dict[str, Any]) -> None:
    if "default" in node:
        applied(node, node["default"], "default")


@pytest.mark.parametrize("node", own_nodes())
def test_rules_tell_in_one_line_what_is_wrong(node: dict[str, Any]) -> None:
    for rule in node.get("x-kubernetes-validations", ()):
        assert rule["message"]
        assert "\n" not in rule["message"]
        assert not rule["message"].endswith(".")
        assert rule["rule"].count("(") == rule["rule"].count(")")


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.kind)
def test_a_definition_has_what_conventions_ask_for(definition: Definition) -> None:
    whole = definition.manifest()
    spec = whole["spec"]
    (version,) = spec["versions"]
    assert whole["metadata"]["name"] == f"{spec['names']['plural']}.{spec['group']}"
    assert spec["names"]["plural"] == PLURALS[definition.kind]
    assert spec["names"]["categories"] == ["tailrace"]
    assert version["subresources"]["status"] == {}
    columns = [column["name"] for column in version["additionalPrinterColumns"]]
    assert (columns[:2], columns[-1]) == (["Ready", "Reason"], "Age")
    conditions = definition.status()["properties"]["conditions"]
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert set(conditions["items"]["required"]) == {"type", "status", "reason", "message", "lastTransitionTime"}


def at(schema: dict[str, Any], path: str) -> dict[str, Any]:
    for name in path.removeprefix(".").split("."):
        schema = schema["properties"][name]
    return schema


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.kind)
def test_columns_and_scale_point_at_fields(definition: Definition) -> None:
    schema = definition.schema()
    for column in definition.columns:
        if "[" not in column.json_path and not column.json_path.startswith(".metadata."):
            field = at(schema, column.json_path)
            kind = "date" if field.get("format") == "date-time" else field["type"]
            assert kind == column.kind
    for path in definition.scale.values():
        assert at(schema, path)["type"] == "integer"
    for rule in definition.rules():
        if rule.field:
            at(schema, rule.field)


@pytest.mark.parametrize(("kind", "path"), [("Stream", ".spec.streamName"), ("ReaderGroup", ".spec.groupName")])
def test_a_name_that_is_not_the_resources_own_shows_with_wide(kind: str, path: str) -> None:
    (column,) = (column for column in BY_KIND[kind].columns if column.json_path == path)
    assert column.schema()["priority"] == 1


def test_kubectl_scale_finds_a_number_in_every_stream() -> None:
    definition = BY_KIND["Stream"]
    assert definition.scale["specReplicasPath"] == ".spec.scaling.minSegments"
    spec = applied(definition.spec(), {"cluster": "c", "scope": "s"}, "spec")
    assert spec["scaling"] == {"type": "Fixed", "minSegments": 1}


def test_the_map_of_a_full_cluster_fits() -> None:
    status = BY_KIND["StreamCluster"].status()["properties"]
    assert status["containers"]["maxItems"] == limits.CONTAINERS_MAX
    assert status["containers"]["items"]["properties"]["id"]["maximum"] == limits.CONTAINERS_MAX - 1
    assert status["workers"]["maxItems"] >= grammar.WORKERS_ALL_MAX


@given(st.text(st.sampled_from("aZ09.-_/ é\n"), max_size=6) | st.sampled_from(["a" * 250, "a" * 251, "a" * 256]))
def test_streams_are_named_as_everywhere(name: str) -> None:
    schema = BY_KIND["Stream"].spec()["properties"]["streamName"]
    try:
        names.check_stream_name(name)
    except InvalidNameError:
        with pytest.raises(InvalidSpecError):
            applied(schema, name, "spec.streamName")
    else:
        assert applied(schema, name, "spec.streamName") == name


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}: {case.title}")
def test_specs_are_read_as_the_api_server_reads_them(case: Case) -> None:
    parse = PARSERS[case.kind]
    if not case.refused:
        parse(case.manifest())
        return
    with pytest.raises(InvalidSpecError) as caught:
        parse(case.manifest())
    assert case.refused in str(caught.value)


# -- any value at all ---------------------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers(-2, 2**40) | st.text("ab1.-/:dGi ", max_size=8)
JUNK = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner))
TEXTS = ("", "a", "abc", "a.b", "1Gi", "2Gi", "7d", "25h", "1d", "0", "500m", "http://h:1", "x/y", "64Mi", "1048577Ti")


def plausible(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that often keep to the schema and often nearly do."""
    match schema.get("type", "quantity"):
        case "quantity":
            numbers = [schema["minimum"], schema["maximum"], schema["maximum"] + 1, -1, 2, 2**30, 0.5]
            return st.sampled_from([*numbers, *TEXTS])
        case "object" if "additionalProperties" in schema:
            items = plausible(schema["additionalProperties"]) | st.none()
            return st.dictionaries(st.sampled_from(TEXTS), items, max_size=3)
        case "object":
            required = set(schema.get("required", ()))
            fields = {name: plausible(field) for name, field in schema["properties"].items()}
            there = {name: value for name, value in fields.items() if name in required}
            whole = st.fixed_dictionaries(
                there, optional={name: value for name, value in fields.items() if name not in required}
            )
            return whole | st.fixed_dictionaries({}, optional=fields)
        case "array":
            return st.lists(plausible(schema["items"]), max_size=3)
        case "boolean":
            return st.booleans() | st.sampled_from(TEXTS)
        case "integer":
            low, high = schema.get("minimum", 0), schema.get("maximum", 2**31)
            return st.sampled_from([low, low + 1, high, high + 1, low - 1, 1000])
        case _:
            return st.sampled_from([*schema.get("enum", ()), *TEXTS])


def refusal(kind: str, resource: dict[str, Any]) -> InvalidSpecError | None:
    try:
        PARSERS[kind](resource)
    except InvalidSpecError as error:
        return error
    return None


def rule_messages(schema: dict[str, Any]) -> set[str]:
    return {rule["message"] for _, node in nodes(schema) for rule in node.get("x-kubernetes-validations", ())}


def without_nulls(value: Any) -> Any:
    """The API server drops nulls of fields, as `applied` does."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def unique_lists(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with Kubernetes' word for sets in JSON Schema's."""
    found = {
        key: {name: unique_lists(field) for name, field in value.items()} if key == "properties" else value
        for key, value in schema.items()
    }
    if "items" in found:
        found["items"] = unique_lists(found["items"])
        found["uniqueItems"] = found["x-kubernetes-list-type"] != "atomic"
    return found


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.kind)
@given(data=st.data())
def test_specs_refuse_what_the_schema_refuses_and_else_what_a_rule_refuses(
    definition: Definition, data: st.DataObject
) -> None:
    schema = definition.spec()
    spec = data.draw(plausible(schema) | JUNK)
    resource = {**manifest(definition.kind, "orders", {}), "spec": spec}
    valid = jsonschema.Draft202012Validator(unique_lists(schema)).is_valid(without_nulls(spec))
    refused = refusal(definition.kind, resource)
    if refused is None:
        assert valid
    else:
        assert refused.field.startswith("spec")
        assert not valid or refused.problem in rule_messages(schema)
