"""Every bound is read by the product: a constant that no code reads bounds nothing."""

from __future__ import annotations

import ast
from pathlib import Path

from tailrace.common import limits

SERVICES = Path(limits.__file__).resolve().parents[2]
OPERATOR = SERVICES.parent / "operator"


def names_read(tree: ast.AST) -> set[str]:
    """Names and attributes that are read in a module."""
    return {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def test_every_limit_is_used() -> None:
    used: set[str] = set()
    for file in sorted((*SERVICES.rglob("*.py"), *OPERATOR.rglob("*.py"))):
        used |= names_read(ast.parse(file.read_text()))
    constants = [name for name in vars(limits) if name.isupper()]
    assert len(constants) > 100
    assert [name for name in constants if name not in used] == []
