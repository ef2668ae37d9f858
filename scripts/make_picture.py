"""Draw docs/architecture.svg from docs/architecture.picture. ``--check`` only compares.

The source holds boxes on a grid and arrows between them; its first lines explain the syntax.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "docs" / "architecture.picture"
TARGET = ROOT / "docs" / "architecture.svg"

COLUMN, ROW, BOX_HEIGHT, GAP, MARGIN = 330, 170, 92, 90, 20


@dataclass(frozen=True, slots=True)
class Box:
    """A titled rectangle on the grid."""

    column: int
    row: int
    columns: int
    title: str
    lines: tuple[str, ...]

    @property
    def x(self) -> int:
        """Left edge in pixels."""
        return MARGIN + self.column * COLUMN

    @property
    def y(self) -> int:
        """Upper edge in pixels."""
        return MARGIN + self.row * ROW

    @property
    def width(self) -> int:
        """Width in pixels."""
        return self.columns * COLUMN - GAP

    @property
    def middle(self) -> float:
        """Horizontal centre in pixels."""
        return self.x + self.width / 2


@dataclass(frozen=True, slots=True)
class Picture:
    """Boxes by name, and arrows as (from, to, label)."""

    boxes: dict[str, Box]
    arrows: tuple[tuple[str, str, str], ...]


def parse(text: str) -> Picture:
    """Return the picture that a source describes. Raises ValueError with the line that is wrong."""
    boxes: dict[str, Box] = {}
    arrows = []
    for number, line in enumerate(text.splitlines(), 1):
        head, *rest = (part.strip() for part in line.split("|"))
        words = head.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] == "box" and len(words) == 5 and rest:
            column, row, columns = map(int, words[2:])
            boxes[words[1]] = Box(column, row, columns, rest[0], tuple(rest[1:]))
        elif words[0] == "arrow" and len(words) == 3 and len(rest) == 1 and {words[1], words[2]} <= boxes.keys():
            arrows.append((words[1], words[2], rest[0]))
        else:
            raise ValueError(f"line {number}: {line!r} is neither a box nor an arrow between boxes")
    return Picture(boxes, tuple(arrows))


def draw(picture: Picture) -> str:
    """Return the picture as SVG."""
    width = max(box.x + box.width for box in picture.boxes.values()) + MARGIN
    height = max(box.y for box in picture.boxes.values()) + BOX_HEIGHT + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<defs><marker id="tip" markerWidth="9" markerHeight="9" refX="8" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#456"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    parts += [_arrow(picture.boxes[start], picture.boxes[end], label) for start, end, label in picture.arrows]
    parts += [_box(box) for box in picture.boxes.values()]
    return "\n".join([*parts, "</svg>", ""])


def _box(box: Box) -> str:
    texts = [f'<text x="{box.middle:g}" y="{box.y + 20}" font-weight="bold" font-size="14">{escape(box.title)}</text>']
    texts += [
        f'<text x="{box.middle:g}" y="{box.y + 40 + 16 * index}">{escape(line)}</text>'
        for index, line in enumerate(box.lines)
    ]
    return (
        f'<g text-anchor="middle" fill="#123"><rect x="{box.x}" y="{box.y}" width="{box.width}" height="{BOX_HEIGHT}" '
        f'rx="6" fill="#eef4fa" stroke="#456"/>{"".join(texts)}</g>'
    )


def _arrow(start: Box, end: Box, label: str) -> str:
    x1: float
    x2: float
    if start.row == end.row:
        x1, x2 = (start.x + start.width, end.x) if start.x < end.x else (start.x, end.x + end.width)
        y = start.y + BOX_HEIGHT / 2
        return _line(f"M{x1:g},{y:g} L{x2:g},{y:g}", (x1 + x2) / 2, y - 6, label)
    # Where the boxes overlap the arrow is vertical, else it joins their centres.
    low, high = max(start.x, end.x), min(start.x + start.width, end.x + end.width)
    x1 = x2 = (low + high) / 2
    if low >= high:
        x1, x2 = start.middle, end.middle
    y1, y2 = start.y + BOX_HEIGHT, end.y
    below = 4 if x1 == x2 else 22  # beside a vertical arrow, under a slanted one
    return _line(f"M{x1:g},{y1} L{x2:g},{y2}", (x1 + x2) / 2 + 8, (y1 + y2) / 2 + below, label, anchor="start")


def _line(path: str, x: float, y: float, label: str, anchor: str = "middle") -> str:
    return (
        f'<path d="{path}" fill="none" stroke="#456" marker-end="url(#tip)"/>'
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="#456" font-style="italic">{escape(label)}</text>'
    )


def main() -> int:
    """Draw, or compare with what is there; return the exit code."""
    picture = draw(parse(SOURCE.read_text()))
    if "--check" in sys.argv[1:]:
        if not TARGET.exists() or TARGET.read_text() != picture:
            print(f"{TARGET.relative_to(ROOT)} is out of step with its source: make picture", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
