"""Options of the sink (docs/spark-sink.md#options). Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.client.model import StreamName
from tailrace.common import limits
from tailrace.common.errors import BadRequestError
from tailrace.pipelines.option_values import choice, count, lower_names, required

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES: Final = (
    "controller",
    "stream",
    "value",
    "valueFormat",
    "routingKey",
    "delivery",
    "leaseSeconds",
    "unresolved",
    "query",
    "batch",
)
_EXACTLY_ONCE: Final = "exactlyOnce"


class Unresolved(enum.Enum):
    """What to do with a batch that is there in part, or whose transactions the controller has forgotten."""

    FAIL = "fail"
    KEEP = "keep"
    REWRITE = "rewrite"


@dataclass(frozen=True)
class SinkOptions:
    """Where to write to, and how.

    ``value`` and ``routing_key`` name columns; an empty ``routing_key`` means events without a key. ``query`` and
    ``batch`` make a table's write one that can be repeated; None for a write that cannot.
    """

    controller: str
    stream: StreamName
    value: str = "value"
    is_json: bool = False
    routing_key: str = ""
    exactly_once: bool = True
    lease_ms: int = limits.TRANSACTION_LEASE_MAX_MS
    unresolved: Unresolved = Unresolved.FAIL
    query: str = ""
    batch: int | None = None


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Return the options of a query or of a table's write.

    Raises:
        BadRequestError: names the option that is unknown, missing or malformed.
    """
    options = lower_names(given, _NAMES)
    parsed = SinkOptions(
        controller=required(options, "controller"),
        stream=StreamName.parse(required(options, "stream")),
        value=options.get("value", "value"),
        is_json=choice(options, "valueFormat", ("binary", "json")) == "json",
        routing_key=options.get("routingkey", ""),
        exactly_once=choice(options, "delivery", (_EXACTLY_ONCE, "atLeastOnce")) == _EXACTLY_ONCE.lower(),
        lease_ms=_lease_ms(options),
        unresolved=Unresolved(choice(options, "unresolved", tuple(each.value for each in Unresolved))),
        query=options.get("query", ""),
        batch=count(options, "batch", lowest=0),
    )
    if parsed.is_json and "value" in options:
        raise BadRequestError("value names the column of the events; with valueFormat=json all columns are written")
    if streaming and (parsed.query or parsed.batch is not None):
        raise BadRequestError("query and batch are options of tables: Spark numbers the batches of a streaming query")
    if (parsed.query == "") != (parsed.batch is None):
        raise BadRequestError("query and batch belong together: give both or neither")
    if parsed.query and not parsed.exactly_once:
        raise BadRequestError("query and batch have no use with delivery=atLeastOnce")
    if len(parsed.query) > limits.SPARK_QUERY_LENGTH_MAX:
        raise BadRequestError(f"option query: at most {limits.SPARK_QUERY_LENGTH_MAX} characters")
    return parsed


def _lease_ms(options: Mapping[str, str]) -> int:
    lease_s = count(options, "leaseSeconds")
    if lease_s is None:
        return limits.TRANSACTION_LEASE_MAX_MS
    low, high = limits.TRANSACTION_LEASE_MIN_MS // 1000, limits.TRANSACTION_LEASE_MAX_MS // 1000
    if not low <= lease_s <= high:
        raise BadRequestError(f"option leaseSeconds: {lease_s} is not between {low} and {high}")
    return lease_s * 1000
