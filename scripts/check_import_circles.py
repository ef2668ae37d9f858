"""Find import circles between modules; imports under TYPE_CHECKING count. `make lint` runs this.

A circle is a group of modules that all reach each other through imports. It is printed as one of its shortest loops.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import grimp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PACKAGES = ("tailrace", "tailrace_operator")


def read_imports(packages: Sequence[str]) -> dict[str, set[str]]:
    """Return the modules that each module of the packages imports directly, within the packages."""
    first, *others = packages
    graph = grimp.build_graph(first, *others, exclude_type_checking_imports=False, cache_dir=None)
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def find_circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other; modules and groups are sorted."""
    reachable = {module: _reachable(imports, module) for module in imports}
    circles = {
        tuple(sorted(other for other in others if module in reachable[other]))
        for module, others in reachable.items()
        if module in others
    }
    return [list(circle) for circle in sorted(circles)]


def shortest_loop(imports: Mapping[str, set[str]], circle: Sequence[str]) -> list[str]:
    """Return one of the shortest loops through the first module of a circle; it begins and ends with that module."""
    first = circle[0]
    loops = [[first]]
    seen: set[str] = set()
    for loop in loops:
        for module in sorted(imports[loop[-1]]):
            if module == first:
                return [*loop, first]
            if module not in seen:
                seen.add(module)
                loops.append([*loop, module])
    raise ValueError(f"{first} is in no circle")


def main(packages: Sequence[str] = PACKAGES) -> int:
    """Print each circle and the number of circles; return 1 when there is a circle."""
    imports = read_imports(packages)
    circles = find_circles(imports)
    for circle in circles:
        print(f"import circle of {len(circle)} modules: {' -> '.join(shortest_loop(imports, circle))}")
    print(f"import circles: {len(circles)}")
    return 1 if circles else 0


def _reachable(imports: Mapping[str, set[str]], module: str) -> set[str]:
    """Return the modules that a module imports, directly or through others."""
    found: set[str] = set()
    pending = [module]
    while pending:
        new = imports.get(pending.pop(), set()) - found
        found |= new
        pending.extend(new)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or PACKAGES))
