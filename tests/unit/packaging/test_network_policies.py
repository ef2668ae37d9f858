"""`networkPolicy.monitoring: []` lets no other pod read metrics. An empty `from` would let in all of them."""

from __future__ import annotations

import re
from pathlib import Path

CHART = Path(__file__).resolve().parents[3] / "charts/tailrace"


def test_an_empty_list_of_peers_is_no_rule_that_lets_in_all() -> None:
    open_blocks: list[str] = []
    open_to_all: list[int] = []
    rules = 0
    lines = (CHART / "templates/networkpolicies.yaml").read_text().splitlines()
    for number, line in enumerate(lines, 1):
        for action in re.findall(r"\{\{-? *(.*?) *-?\}\}", line):
            if re.match(r"(if|with|range)\b", action):
                open_blocks.append(action)
            elif action == "end":
                open_blocks.pop()
        rules += "$policy.monitoring" in line
        if re.search(r"- from: .*\$policy\.monitoring", line) and not any("monitoring" in each for each in open_blocks):
            open_to_all.append(number)  # renders `from: []`: "if empty, this rule matches all sources"
    assert not open_blocks
    assert rules == 4
    assert not open_to_all, f"templates/networkpolicies.yaml, lines {open_to_all}"
