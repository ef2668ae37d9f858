"""The caller of a request, and the parts of the controller that calls use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.cluster.endpoints import ListenerKind
from tailrace.common.auth import Principal

if TYPE_CHECKING:
    from tailrace.controller.instances.membership import Membership
    from tailrace.controller.managers.groups import ReaderGroupManager
    from tailrace.controller.managers.held_bytes import HeldBytes
    from tailrace.controller.managers.retention import RetentionManager
    from tailrace.controller.managers.scopes import ScopeManager
    from tailrace.controller.managers.segment_rates import SegmentRates
    from tailrace.controller.managers.stream_cuts import CutReader
    from tailrace.controller.managers.streams import StreamManager
    from tailrace.controller.managers.tables import TableManager
    from tailrace.controller.managers.tag_lists import TagLists
    from tailrace.controller.metadata.ports import ContainerMap
    from tailrace.controller.workflows.context import WorkflowContext
    from tailrace.controller.workflows.driver import StreamDriver


@dataclass(frozen=True, slots=True)
class Call:
    """Where a request came from. ``token`` is the ``authorization`` metadata as it was sent, "" without one."""

    principal: Principal = field(default_factory=lambda: Principal("local"))
    token: str = ""
    listener: ListenerKind = ListenerKind.INTERNAL


LOCAL_CALL = Call()
"""A call from inside the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """The parts of the controller that calls use."""

    context: WorkflowContext
    driver: StreamDriver
    streams: StreamManager
    groups: ReaderGroupManager
    tables: TableManager
    scopes: ScopeManager
    tag_lists: TagLists
    cuts: CutReader
    retention: RetentionManager
    held_bytes: HeldBytes
    segment_rates: SegmentRates
    containers: ContainerMap
    membership: Membership
    endpoints: list[tuple[str, int]]
    """This controller's addresses, which discovery returns; a listener adds its own when it knows its port."""
