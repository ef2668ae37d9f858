"""`networkPolicy.monitoring: []` lets no other pod read metrics. An empty `from` would let in all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import yaml

CHART = Path(__file__).resolve().parents[3] / "charts/tailrace"
LISTS = ("clients", "monitoring")


def test_an_empty_list_of_peers_is_no_rule_that_lets_in_all() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    values["networkPolicy"]["monitoring"] = []
    try:
        jsonschema.validate(values, schema)
    except jsonschema.ValidationError:
        return  # refused: right as well
    open_blocks: list[str] = []
    open_to_all: list[int] = []
    lines = (CHART / "templates/networkpolicies.yaml").read_text().splitlines()
    for number, line in enumerate(lines, 1):
        for action in re.findall(r"\{\{-? *(.*?) *-?\}\}", line):
            if re.match(r"(if|with|range)\b", action):
                open_blocks.append(action)
            elif action == "end":
                open_blocks.pop()
        if re.search(r"- from: .*\$policy\.monitoring", line) and not any("monitoring" in each for each in open_blocks):
            open_to_all.append(number)  # renders `from: []`: "if empty, this rule matches all sources"
    assert not open_blocks
    assert not open_to_all, f"templates/networkpolicies.yaml, lines {open_to_all}"
