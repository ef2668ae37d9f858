"""Every bound of Tailrace, with its unit in its name. No queue, batch, cache, retry or wait is without one."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# -- names (naming §1) --------------------------------------------------------------------------------------------
SCOPE_NAME_MAX_LENGTH: Final = 255
STREAM_NAME_MAX_LENGTH: Final = 250
INTERNAL_NAME_MAX_LENGTH: Final = 255
SEGMENT_NAME_MAX_BYTES: Final = 1024

# -- wire (wire §1, §5, §6) ---------------------------------------------------------------------------------------
FRAME_MAX_BYTES: Final = 0x00FFFFFF  # whole frame, header included
EVENT_MAX_BYTES: Final = 8 * MIB
APPEND_BLOCK_MAX_BYTES: Final = 32 * MIB  # after reassembly
CONNECTION_IN_FLIGHT_MAX_BYTES: Final = 16 * MIB
ALL_CONNECTIONS_IN_FLIGHT_MAX_BYTES: Final = 48 * MIB
READ_REPLY_MAX_BYTES: Final = 2 * MIB
SETUP_APPENDS_PER_CONNECTION_MAX: Final = 2048
REQUEST_DEADLINE_S: Final = 60.0

# -- containers (design §3 to §8) ---------------------------------------------------------------------------------
OPERATION_MAX_BYTES: Final = APPEND_BLOCK_MAX_BYTES + 64 * KIB
FRAME_PAYLOAD_TARGET_BYTES: Final = 1 * MIB  # a log frame is closed when it holds this much
LOG_UNSYNCED_MAX_BYTES: Final = 4 * MIB  # caps the size of a group commit (performance §6)
ATTRIBUTE_UPDATES_PER_OPERATION_MAX: Final = 1024
CHECKPOINT_INTERVAL_BYTES: Final = 64 * MIB
CHECKPOINT_INTERVAL_OPERATIONS: Final = 100_000
CHECKPOINT_RECORD_BYTES: Final = 512 * KIB
MERGED_SOURCES_REMEMBERED_S: Final = 600.0

# -- storage writer (design §5) -----------------------------------------------------------------------------------
FLUSH_THRESHOLD_BYTES: Final = 4 * MIB
FLUSH_INTERVAL_S: Final = 30.0
FLUSH_ATTRIBUTES_THRESHOLD: Final = 1000
FLUSH_CONCURRENCY: Final = 4
DELETE_DELAY_S: Final = 120.0  # longer than the longest Tier-2 read
STORAGE_CALL_DEADLINE_S: Final = 30.0

# -- cache and read index (design §8) -----------------------------------------------------------------------------
CACHE_BLOCK_BYTES: Final = 4 * KIB
CACHE_BUFFER_BYTES: Final = 2 * MIB
CACHE_DEFAULT_BYTES: Final = 256 * MIB
STORAGE_READ_ALIGNMENT_BYTES: Final = 1 * MIB
CACHE_ENTRY_MAX_BYTES: Final = 256 * KIB
GENERATION_INTERVAL_S: Final = 1.0
ACTIVE_SEGMENTS_PER_CONTAINER_MAX: Final = 25_000

# -- attributes (design §6) ---------------------------------------------------------------------------------------
ATTRIBUTE_PAGE_MAX_BYTES: Final = 32 * KIB - 1
ATTRIBUTE_KEY_MAX_BYTES: Final = 256
ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX: Final = 4096

# -- tables (wire §8, server §8, §9) ------------------------------------------------------------------------------
TABLE_KEY_MAX_BYTES: Final = 8192
TABLE_VALUE_MAX_BYTES: Final = MIB - 8192
TABLE_BATCH_MAX_BYTES: Final = 32 * MIB
TABLE_REPLY_MAX_BYTES: Final = 2 * MIB
TABLE_CONFLICT_RETRIES_MAX: Final = 100
