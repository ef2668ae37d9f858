"""One HTML page with the pictures and tables of an audit; it needs no other file (docs/spark-audit.md#page)."""

from __future__ import annotations

import base64
import io
import re
from html import escape
from typing import TYPE_CHECKING, Any, Final

from tailrace.common import limits
from tailrace.common.errors import UnsupportedError
from tailrace.common.quantities import size_text
from tailrace.pipelines.audit.rows import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tailrace.pipelines.audit.summary import ContainerSums, Summary

_NUMBER: Final = re.compile(r"[0-9.,]+( [%A-Za-z]+)?")
"""A count, a size, a share."""
_GOOD, _LOST, _GONE = "#2f6f9f", "#c0392b", "#b0b7bd"
_KINDS: Final = {
    Status.DAMAGED: "#c0392b",
    Status.MISSING: "#7b241c",
    Status.GAP: "#8e44ad",
    Status.UNACCOUNTED: "#d68910",
    Status.ORPHAN: "#7f8c8d",
}
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1100px; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; } th, td { padding: .25em .8em; border-bottom: 1px solid #ddd; }
th { text-align: left; } td.number { text-align: right; } td { overflow-wrap: anywhere; vertical-align: top; }
img { max-width: 100%; } .healthy { color: #1e7e34; } .wrong { color: #c0392b; }
"""


def check_can_draw() -> None:
    """Import what draws. Raises UnsupportedError: matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise UnsupportedError("the page needs matplotlib: pip install 'tailrace[spark]', or --no-page") from error


def page(summary: Summary, tier2: str, time: str) -> str:
    """Return the page. ``tier2`` is what it calls the store, ``time`` when the audit began."""
    chosen = _chosen(summary.containers)
    verdict = "nothing is wrong" if summary.healthy() else f"{summary.finding_count:,} findings"
    left_out = len(summary.containers) - len(chosen)
    note = f"<p>The pictures show the {len(chosen)} containers with most findings and bytes.</p>" if left_out else ""
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Audit of {escape(tier2)}</title>',
        f"<style>{_STYLE}</style></head><body><h1>Audit of {escape(tier2)}</h1>",
        f"<p>Cluster {escape(summary.cluster)}, {escape(time)}: ",
        f'<b class="{"healthy" if summary.healthy() else "wrong"}">{verdict}</b>.</p>',
        _table(("what", "", ""), _totals(summary)),
        note,
        _picture(chosen),
        "<h2>Objects</h2>",
        _table(("status", "objects", "bytes"), _objects(summary)),
        "<h2>Findings</h2>",
        _findings(summary),
        "<h2>Containers</h2>",
        _table(("container", "segments", "chunks", "referenced", "verified", "share", "findings"), _containers(chosen)),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _chosen(containers: Sequence[ContainerSums]) -> list[ContainerSums]:
    """Return the containers that are shown, in order of their numbers."""
    worst = sorted(containers, key=lambda each: (-sum(each.findings.values()), -each.referenced_bytes))
    return sorted(worst[: limits.AUDIT_CHART_CONTAINERS_MAX], key=lambda each: each.container)


def _picture(containers: Sequence[ContainerSums]) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.6 + 0.28 * len(containers)), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True, gridspec_kw={"width_ratios": [3, 2, 2]})
    rows = range(len(containers))
    lost = [each.referenced_bytes - each.verified_bytes - each.gone_bytes for each in containers]
    _stack(
        panels[0],
        [
            ("verified", _GOOD, [each.verified_bytes / 1e6 for each in containers]),
            ("damaged or missing", _LOST, [value / 1e6 for value in lost]),
            ("gone during the audit", _GONE, [each.gone_bytes / 1e6 for each in containers]),
        ],
    )
    panels[0].set_xlabel("referenced bytes (MB)")
    panels[0].set_ylabel("container")
    panels[0].set_yticks(rows, [str(each.container) for each in containers], fontsize=8)
    panels[0].invert_yaxis()
    shares = [100 * each.share_verified for each in containers]
    bars = panels[1].barh(rows, shares, color=[_GOOD if value == 100 else _LOST for value in shares])
    panels[1].bar_label(bars, labels=[_percent(each.share_verified) for each in containers], padding=3, fontsize=8)
    panels[1].set_xlim(0, 135)
    panels[1].set_xticks(range(0, 101, 25))
    panels[1].set_xlabel("verified (%)")
    kinds = [(kind, color) for kind, color in _KINDS.items() if any(kind in each.findings for each in containers)]
    _stack(panels[2], [(kind, color, [each.findings.get(kind, 0) for each in containers]) for kind, color in kinds])
    panels[2].set_xlabel("findings" if kinds else "findings: none")
    panels[2].locator_params(axis="x", integer=True)
    if not kinds:
        panels[2].set_xlim(0, 1)
        panels[2].set_xticks([])
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    text = base64.b64encode(content.getvalue()).decode()
    return f'<img alt="Bytes, share verified and findings of each container" src="data:image/png;base64,{text}">'


def _stack(panel: Any, series: Sequence[tuple[str, str, Sequence[float]]]) -> None:
    """Draw one bar for each row, of several parts."""
    left = [0.0] * len(series[0][2]) if series else []
    for label, color, values in series:
        panel.barh(range(len(values)), values, left=left, color=color, label=label)
        left = [begin + value for begin, value in zip(left, values, strict=True)]
    if series:
        panel.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(series), frameon=False)


def _totals(summary: Summary) -> list[tuple[str, ...]]:
    wanted = summary.total("referenced_bytes") - summary.total("gone_bytes")
    verified = summary.total("verified_bytes")
    return [
        ("segments", f"{summary.total('segments'):,}", size_text(summary.total("segment_bytes"))),
        ("chunks and index pages", f"{summary.total('chunks'):,}", size_text(summary.total("referenced_bytes"))),
        ("verified", _percent(verified / wanted if wanted else 1.0), size_text(verified)),
        ("findings", f"{summary.finding_count:,}", ""),
    ]


def _objects(summary: Summary) -> list[tuple[str, ...]]:
    return [
        (status, f"{count:,}", size_text(summary.object_bytes[status]))
        for status, count in sorted(summary.objects.items())
    ]


def _containers(containers: Sequence[ContainerSums]) -> list[tuple[str, ...]]:
    return [
        (
            str(each.container),
            f"{each.segments:,}",
            f"{each.chunks:,}",
            size_text(each.referenced_bytes),
            size_text(each.verified_bytes),
            _percent(each.share_verified),
            f"{sum(each.findings.values()):,}",
        )
        for each in containers
    ]


def _findings(summary: Summary) -> str:
    if not summary.listed:
        return "<p>None.</p>"
    rows = [
        (each.status, *(_text(value) for value in (each.container, each.segment, each.offset)),
         _text(each.object), _text(each.position), each.reason)
        for each in summary.listed
    ]  # fmt: skip
    more = summary.finding_count - len(summary.listed)
    note = f"<p>And {more:,} more, in the report.</p>" if more > 0 else ""
    return _table(("kind", "container", "segment", "offset", "object", "position", "reason"), rows) + note


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _percent(share: float) -> str:
    """Return a share with so many digits that only a whole one is 100 %."""
    return "100 %" if share == 1 else f"{min(100 * share, 99.9999):.4f} %"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "\n".join("<tr>" + "".join(_cell(text) for text in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}\n</table>"


def _cell(text: str) -> str:
    kind = ' class="number"' if _NUMBER.fullmatch(text) else ""
    return f"<td{kind}>{escape(text)}</td>"
