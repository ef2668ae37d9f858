"""The client: writers, transactions, reader groups, byte streams, tables, and management of streams.

`Client` is for asyncio programs, `BlockingClient` for others. docs/client.md shows how they are used.
"""

from __future__ import annotations

from tailrace.client.admin import StreamInfo, StreamManager
from tailrace.client.asyncclient import Client
from tailrace.client.batch import SegmentReader, SegmentSlice
from tailrace.client.bytestream import ByteStreamReader, ByteStreamWriter
from tailrace.client.config import ClientConfig, TlsOptions, basic_authorization, bearer_authorization
from tailrace.client.context import ClientContext
from tailrace.client.control.tables import TableConfig
from tailrace.client.controller import ControllerClient
from tailrace.client.groupstate.records import Checkpoint, Position, ReaderGroupConfig, RetentionType
from tailrace.client.model import (
    PingStatus,
    RetentionPolicy,
    ScaleType,
    ScalingPolicy,
    SegmentRange,
    StreamConfig,
    StreamName,
    TransactionState,
)
from tailrace.client.reader import EventBatch, EventRead, EventReader
from tailrace.client.readergroup import ReaderGroup, ReaderGroupManager, group_config
from tailrace.client.revisioned import RevisionedStream
from tailrace.client.segments import SegmentClient
from tailrace.client.sync import BlockingClient
from tailrace.client.tables import KeyValueTable, TableKeyParts, TableValue
from tailrace.client.transactions import Transaction, TransactionalWriter
from tailrace.client.types import NO_VERSION, NOT_EXISTS, SegmentInfo, TableEntry
from tailrace.client.writer import EventWriter
from tailrace.common.streamcut import StreamCut, parse_stream_cut

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
    "RetentionType",
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
    "StreamInfo",
    "StreamManager",
    "StreamName",
    "TableConfig",
    "TableEntry",
    "TableKeyParts",
    "TableValue",
    "TlsOptions",
    "Transaction",
    "TransactionState",
    "TransactionalWriter",
    "basic_authorization",
    "bearer_authorization",
    "group_config",
    "parse_stream_cut",
]
