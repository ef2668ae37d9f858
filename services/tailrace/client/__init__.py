"""Write and read streams: events, transactions, reader groups, byte streams, tables, and management of streams.

`Client` is for asyncio programs, `BlockingClient` for others. See docs/client.md.
"""

from __future__ import annotations

from tailrace.client.async_client import Client
from tailrace.client.blocking.client import BlockingClient
from tailrace.client.byte_stream import ByteStreamReader, ByteStreamWriter
from tailrace.client.config import ClientConfig, TlsOptions, basic_authorization, bearer_authorization
from tailrace.client.connections.segments import SegmentClient
from tailrace.client.context import ClientContext
from tailrace.client.control.controller import ControllerClient
from tailrace.client.control.tables import TableConfig
from tailrace.client.group.reader_group import ReaderGroup, ReaderGroupManager, group_config
from tailrace.client.group.state.records import Checkpoint, Position
from tailrace.client.model import PingStatus, ReaderGroupConfig, SegmentRange, StreamName, TransactionState
from tailrace.client.reader.batch import SegmentReader, SegmentSlice
from tailrace.client.reader.event_reader import EventBatch, EventRead, EventReader
from tailrace.client.reader.time_windows import TimeWindow
from tailrace.client.revisioned import RevisionedStream
from tailrace.client.stream_manager import StreamInfo, StreamManager
from tailrace.client.tables import KeyValueTable, TableKeyParts, TableValue
from tailrace.client.types import NO_VERSION, NOT_EXISTS, SegmentInfo, TableEntry
from tailrace.client.writer.event_writer import EventWriter
from tailrace.client.writer.transactions import Transaction, TransactionalWriter
from tailrace.common.stream_cut import StreamCut, parse_stream_cut
from tailrace.common.stream_policies import RetentionPolicy, ScaleType, ScalingPolicy, StreamConfig, StreamDataRetention

__all__ = [
    "NOT_EXISTS",
    "NO_VERSION",
    "BlockingClient",
    "ByteStreamReader",
    "ByteStreamWriter",
    "Checkpoint",
    "Client",
    "ClientConfig",
    "ClientContext",
    "ControllerClient",
    "EventBatch",
    "EventRead",
    "EventReader",
    "EventWriter",
    "KeyValueTable",
    "PingStatus",
    "Position",
    "ReaderGroup",
    "ReaderGroupConfig",
    "ReaderGroupManager",
    "RetentionPolicy",
    "RevisionedStream",
    "ScaleType",
    "ScalingPolicy",
    "SegmentClient",
    "SegmentInfo",
    "SegmentRange",
    "SegmentReader",
    "SegmentSlice",
    "StreamConfig",
    "StreamCut",
    "StreamDataRetention",
    "StreamInfo",
    "StreamManager",
    "StreamName",
    "TableConfig",
    "TableEntry",
    "TableKeyParts",
    "TableValue",
    "TimeWindow",
    "TlsOptions",
    "Transaction",
    "TransactionState",
    "TransactionalWriter",
    "basic_authorization",
    "bearer_authorization",
    "group_config",
    "parse_stream_cut",
]
