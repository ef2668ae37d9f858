"""The rates of a stream's segments in its status (docs/kubernetes.md#streams). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tailrace.common.stream_policies import ScaleType
from tailrace_operator.kube.manifests import time_text
from tailrace_operator.schema import grammar
from tailrace_operator.stream.plan import SCALE_TYPES

if TYPE_CHECKING:
    from tailrace.client.control.owners import StreamDescription

RATES: Final = "rates"
_TYPES: Final[Mapping[ScaleType, str]] = {
    kind: name for name, kind in SCALE_TYPES.items() if kind is not ScaleType.FIXED
}


def rates(found: StreamDescription) -> dict[str, Any]:
    """Return ``status.rates``: None without a policy by rates, no field while the controller does not know them."""
    kind = _TYPES.get(found.config.scaling.kind)
    if kind is None:
        return {RATES: None}
    if found.rates is None:
        return {}  # what was said before stays, with its time
    per_s = found.rates.per_s
    fastest = sorted(per_s, key=lambda segment: (-per_s[segment], segment))[: grammar.SEGMENT_RATES_LISTED_MAX]
    segments = [{"segment": segment, "perSecond": round(per_s[segment])} for segment in sorted(fastest)]
    return {RATES: {"type": kind, "time": time_text(found.rates.measured_ms), "segments": segments}}


def are_rates_near(found: object, wanted: object) -> bool:
    """Return whether the same segments have rates that are at most twice as high, or 1 higher, either way.

    No rate is ever quite the same. Of lists that are full, which segments are in them may differ, too: those with the
    highest rates change with each look.
    """
    if not isinstance(found, Mapping) or not isinstance(wanted, Mapping):
        return found == wanted
    before = {each["segment"]: each["perSecond"] for each in found["segments"]}
    after = {each["segment"]: each["perSecond"] for each in wanted["segments"]}
    are_full = len(before) == len(after) == grammar.SEGMENT_RATES_LISTED_MAX
    if found["type"] != wanted["type"] or (before.keys() != after.keys() and not are_full):
        return False
    pairs = [(before[each], after[each]) for each in before.keys() & after.keys()]
    return all(abs(new - old) <= max(1, min(old, new)) for old, new in pairs)
