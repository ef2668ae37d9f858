"""All bounds of Tailrace, each with its unit in its name. Every queue, batch, cache, retry and wait has one."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# -- names (docs/protocol/naming.md#names) ------------------------------------------------------------------------
SCOPE_NAME_MAX_LENGTH: Final = 255
STREAM_NAME_MAX_LENGTH: Final = 250
INTERNAL_NAME_MAX_LENGTH: Final = 255
SEGMENT_NAME_MAX_BYTES: Final = 1024

# -- wire (docs/protocol/wire.md#frames, docs/protocol/wire.md#appends, docs/protocol/wire.md#reads) --------------
FRAME_MAX_BYTES: Final = 0x00FFFFFF  # whole frame, header included
WIRE_LIST_ITEMS_MAX: Final = 32_768  # items of a list in a frame: bounds the time of one decode
EVENT_MAX_BYTES: Final = 8 * MIB
APPEND_BLOCK_MAX_BYTES: Final = 32 * MIB  # after reassembly
CONNECTION_IN_FLIGHT_MAX_BYTES: Final = 16 * MIB
ALL_CONNECTIONS_IN_FLIGHT_MAX_BYTES: Final = 48 * MIB
READ_REPLY_MAX_BYTES: Final = 2 * MIB
SETUP_APPENDS_PER_CONNECTION_MAX: Final = 2048
REQUEST_DEADLINE_S: Final = 60.0
CONNECTION_IN_FLIGHT_FREE_BYTES: Final = 1 * MIB  # a connection with less outstanding is read in any case
CONNECTIONS_MAX: Final = 10_000  # of one server
REQUESTS_PER_CONNECTION_MAX: Final = 4096  # requests without a reply, waiting tail reads included
REQUESTS_MAX: Final = 32_768  # the same for all connections together
REQUESTS_PER_CONNECTION_FREE: Final = 16  # a connection with fewer is served regardless of the others
TRANSIENT_SEGMENTS_PER_CONNECTION_MAX: Final = 1024
SEND_BUFFER_HIGH_BYTES: Final = 1 * MIB  # above it a connection gets no replies and is not read
SEND_PROGRESS_S: Final = 1.0  # while others wait for room, each connection must take replies within this time
SEND_PROGRESS_MIN_BYTES: Final = 64 * KIB  # and at least so many bytes
LARGE_REPLIES_PER_CONNECTION_MAX_BYTES: Final = 8 * MIB  # table reads of one connection that are served at a time
SEND_GATHER_BYTES: Final = 64 * KIB  # replies of one loop turn are joined up to this size
TCP_KEEPALIVE_IDLE_S: Final = 60  # silence after which the kernel probes a peer
TCP_KEEPALIVE_INTERVAL_S: Final = 15
CLOSE_FLUSH_DEADLINE_S: Final = 5.0  # a closing connection that does not take its last bytes is cut off
TABLE_ITERATE_ITEMS_MAX: Final = 10_000
RATES_PER_REPLY_MAX: Final = 500  # segments of one reply with rates
SEGMENTS_PER_REPLY_MAX: Final = 1000  # names of one reply with a container's segments
RATE_WINDOWS_MAX: Final = 8  # over which one request averages
RATE_WINDOW_MIN_MS: Final = 10
RECEIVE_BUFFER_BYTES: Final = 64 * KIB  # of a connection with pending bytes; idle ones have none
RECEIVE_BUFFER_BUSY_BYTES: Final = 512 * KIB  # of one that keeps filling its buffer
RECEIVE_BUFFERS_MAX_BYTES: Final = 64 * MIB  # larger ones, of all connections together
RECEIVE_BUFFERS_MANY: Final = 512  # from so many buffers in use on, new ones have the smallest size
RECEIVE_PROGRESS_S: Final = 1.0  # while others wait for room, each connection must make progress in this time
RECEIVE_PROGRESS_MIN_BYTES: Final = 64 * KIB  # and at least so many bytes
RECEIVE_MIN_BYTES: Final = 16 * KIB  # smallest room for one read
RECEIVE_POOL_IDLE_MAX_BYTES: Final = 32 * MIB  # receive buffers kept for reuse

# -- listeners and open files -------------------------------------------------------------------------------------
OPEN_FILES_MAX: Final = 65_536  # requested from the operating system
OPEN_FILES_MIN: Final = 512
OPEN_FILES_RESERVED: Final = 256  # logs, chunks, listeners, workers; the rest is for connections
RPC_CONNECTIONS_MAX: Final = 4096  # of the controller's gRPC listener
HTTP_CONNECTIONS_MAX: Final = 256  # of one HTTP listener
HTTP_BACKLOG: Final = 32  # also the connections accepted at once, before the server can refuse any
HTTP_REQUEST_DEADLINE_S: Final = 30.0  # from the connection's start to the end of the first request's head
HTTP_BODY_MAX_BYTES: Final = 1 * MIB
LOG_LINES_BURST: Final = 100  # lines of one event that peers cause, at once
LOG_LINES_PER_S: Final = 1.0  # and in the long run
REFUSALS_LOGGED_EVERY_S: Final = 10.0  # refused connections are counted in between

# -- containers (docs/design.md#write-path) -----------------------------------------------------------------------
FRAME_PAYLOAD_TARGET_BYTES: Final = 1 * MIB  # a log frame with this much payload is closed
FRAME_PIECE_MIN_BYTES: Final = 256 * KIB  # an operation that spans frames has at most one piece per so many bytes
CONTROL_OPERATION_MAX_BYTES: Final = 1 * MIB  # size in the log of a client's request other than an append
ATTRIBUTE_UPDATES_PER_OPERATION_MAX: Final = 1024
CHECKPOINT_INTERVAL_BYTES: Final = 64 * MIB
CHECKPOINT_INTERVAL_OPERATIONS: Final = 100_000
CHECKPOINT_BYTES_PER_FRAME: Final = 4 * KIB  # checkpoint size that is worth one log frame
CHECKPOINT_FRAMES_PER_SEGMENT: Final = 4  # frames that are worth the flush of one segment before a checkpoint
CHECKPOINT_FULL_DISK_FACTOR: Final = 8  # checkpoints come so many times earlier while the disk is full, to free space
MERGED_SOURCES_REMEMBERED_S: Final = 600.0

# -- file log (docs/design.md#tier-1) -----------------------------------------------------------------------------
LOG_FILE_BYTES: Final = 64 * MIB  # one preallocated, zeroed file
LOG_FRAME_MAX_BYTES: Final = 8 * MIB  # payload of one frame
LOG_FRAMES_IN_FLIGHT_MAX: Final = 2  # of a container whose log syncs
LOG_RESERVE_BYTES: Final = 8 * MIB  # kept on a full disk for what frees space: flush commits, checkpoints
LOG_PREALLOCATE_RETRY_S: Final = 1.0  # between attempts to prepare the next file while the disk is full
LOG_ZERO_CHUNK_BYTES: Final = 1 * MIB  # zeros between two syncs while a file is made in the background
LOG_ZERO_STEP_BYTES: Final = 16 * MIB  # zeros that the background thread writes without asking the event loop
LOG_SCAN_WINDOW_BYTES: Final = 1 * MIB  # read at a time while a log is scanned
LOG_LOCK_TIMEOUT_S: Final = 30.0  # for a worker whose parent was killed to release its log
LOG_LOCK_POLL_S: Final = 0.1
LOG_INLINE_SYNC_MAX_S: Final = 0.001  # a slower fdatasync (moving average) runs in a thread

# -- object log (docs/design.md#tier-1) ---------------------------------------------------------------------------
LOG_OBJECT_PUTS_MAX: Final = 16  # frames of one log that are being written to the store
LOG_OBJECT_FRAME_TARGET_BYTES: Final = 4 * MIB  # of a frame; times the puts, not more than may be unacknowledged
LOG_OBJECT_PART_FRAMES_MAX: Final = 2  # frames in flight before a partly filled one waits and fills
LOG_OBJECT_CHECKPOINT_FRAMES: Final = 4096  # largest number between checkpoints: opening costs a request for each
LOG_OBJECT_CHECKPOINT_FRAMES_MIN: Final = 256  # fewer frames make no checkpoint due
LOG_OBJECT_REQUEST_DEADLINE_S: Final = 10.0  # one request; its outcome is unknown after that
LOG_OBJECT_RETRY_MIN_S: Final = 0.02
LOG_OBJECT_RETRY_MAX_S: Final = 2.0
LOG_OBJECT_OPEN_ATTEMPTS: Final = 8  # of each request while a log is opened or read
LOG_OBJECT_SCANS_MAX: Final = 64  # headers requested at a time while a log is opened
# Requests for them at a time, of all logs that a process opens. Each may make a connection, for which the store's name
# is looked up: hundreds of look-ups at once are more than a name server may take, and a lost one costs 5 s.
LOG_OBJECT_SCAN_REQUESTS_MAX: Final = 32
LOG_OBJECT_CACHE_BYTES: Final = 8 * MIB  # small frames that a scan read whole, kept until their log is recovered
LOG_OBJECT_CACHE_FRAME_MAX_BYTES: Final = 64 * KIB  # a scan reads only the headers of larger frames
LOG_OBJECT_READS_MAX: Final = 16  # whole frames read ahead by a recovery
LOG_OBJECT_READ_AHEAD_BYTES: Final = 32 * MIB  # of those together
LOG_OBJECT_DELETE_BATCH: Final = 64  # objects of one delete request
LOG_OBJECT_DELETES_MAX: Final = 4  # delete requests at a time
LOG_UNACKNOWLEDGED_MAX_BYTES: Final = 64 * MIB  # appended to one log and not acknowledged
LOG_CLAIMS_PER_OPEN_MAX: Final = 10_000  # epochs that one opening may skip
LOG_START_RECORD_MAX_BYTES: Final = 64 * KIB  # history of some 2,700 epochs
LOG_EPOCHS_PER_CHECKPOINT: Final = 64  # so many in a log at its opening cause a checkpoint and a truncation at once
LOG_PROBE_ROUNDS: Final = 3  # of every check of a store
LOG_PROBE_RIVALS: Final = 8  # requests that create one object at a time
LOG_PROBE_ATTEMPTS: Final = 5  # when a store returns transient errors
OWNER_SEEN_MAX_S: Final = 2.0  # an owner replies only when its ownership was confirmed within this time
OWNER_LOOK_INTERVAL_S: Final = 0.5  # between checks for a later owner while a container is used
OWNER_IDLE_S: Final = 10.0  # without requests; then the checks stop
OWNER_LOOK_DEADLINE_S: Final = 2.0  # of one check
OWNER_LOOK_RETRY_S: Final = 0.1  # after a check without an answer
OWNER_ANSWER_DEADLINE_S: Final = 10.0  # requests that wait longer for a check are refused

# -- storage writer (docs/design.md#tier-2) -----------------------------------------------------------------------
FLUSH_THRESHOLD_BYTES: Final = 4 * MIB
FLUSH_INTERVAL_S: Final = 30.0
FLUSHES_ASKED_FOR_MAX: Final = 64  # requested flushes of one container in progress, also of closed connections
FLUSH_ATTRIBUTES_THRESHOLD: Final = 1000
FLUSH_ATTRIBUTES_AGED_THRESHOLD: Final = 200  # flushed once they are FLUSH_INTERVAL_S old
FLUSH_ATTRIBUTES_BATCH_MAX: Final = 1000  # attributes of one flush
FLUSH_ATTRIBUTES_SCATTERED_BATCH_MAX: Final = 256  # when each may rewrite another page
UPLOADS_MAX: Final = 4  # objects that one process writes to Tier 2 at a time
UPLOADS_UNCERTAIN_MAX: Final = 1000  # failed uploads whose objects are deleted in case they exist
FLUSH_RUNS_PER_PASS_MAX: Final = 8  # objects of one segment in one pass of the storage writer
DELETE_DELAY_S: Final = 120.0  # longer than the longest Tier-2 read
STORAGE_CALL_DEADLINE_S: Final = 30.0
STORAGE_READS_MAX: Final = 8  # concurrent reads of one container
PREFETCH_POSITIONS_MAX: Final = 10_000  # segments whose last read position is remembered
STORAGE_RETRY_MIN_S: Final = 0.5
STORAGE_RETRY_MAX_S: Final = 10.0
FLUSH_OBJECT_MAX_BYTES: Final = 8 * MIB
FLUSH_PENDING_APPENDS_MAX: Final = 5_000  # a segment with this many small un-tiered appends is flushed at once
FLUSH_TICK_S: Final = 0.5
DELETE_BATCH_MAX: Final = 100
SWEEP_FIRST_AFTER_S: Final = 120.0  # after a container opened: first sweep for orphans of its earlier owners
SWEEP_INTERVAL_S: Final = 3600.0
SWEEP_ORPHANS_MAX: Final = 10_000  # remembered by one sweep; when there are more, the next one follows at once
SWEEP_PAGE_OBJECTS: Final = 1000  # listed between two pauses
SWEEP_PAUSE_S: Final = 0.2
COMPACT_TICK_S: Final = 5.0  # between searches for small chunks
COMPACT_LOOK_SEGMENTS: Final = 500  # of one search; segments with unchanged chunks cost nothing
COMPACT_LOOK_REFS: Final = 256  # of one segment
COMPACT_SMALL_MAX_BYTES: Final = 1 * MIB  # larger chunks are never rewritten
COMPACT_RUN_MIN: Final = 16  # references that become one
COMPACT_GROWTH_MIN: Final = 4  # the new chunk is so many times larger than the largest one that goes into it
COMPACT_RUN_FORCED: Final = 64  # so many small references in a row are joined in any case
COMPACT_RUN_MAX: Final = 128
COMPACT_READS_MAX: Final = 4  # chunks read at a time
COMPACT_SHARE: Final = 1.0  # bytes rewritten, at most, for each byte flushed
COMPACT_FLOOR_BYTES_PER_S: Final = 256 * KIB  # in addition, for existing chunks
COMPACT_CREDIT_MAX_BYTES: Final = 32 * MIB  # share that may accumulate
COMPACT_DEFER_MAX_S: Final = 60.0  # while the storage writer uses all uploads
RECLAIM_FIRST_AFTER_S: Final = 30.0  # after a container opened
RECLAIM_TICK_S: Final = 15.0  # between looks whether bytes in Tier 2 died
RECLAIM_DEAD_SHARE: Final = 0.15  # dead bytes that a container may hold for each live one, and
RECLAIM_SLACK_BYTES: Final = 2 * MIB  # in addition
RECLAIM_DEAD_MIN_BYTES: Final = 64 * KIB  # an object that is half dead is always rewritten, if it frees so many
RECLAIM_PASS_BYTES: Final = 64 * MIB  # moved between two surveys
RECLAIM_MOVES_MAX: Final = 1000  # references that are replaced by one operation
RECLAIM_BYTES_PER_S: Final = 8 * MIB  # moved by one container
RECLAIM_SURVEY_REFS: Final = 10_000  # looked at without a pause
SNAPSHOT_FIRST_S: Final = 30.0  # after a container was opened
SNAPSHOT_INTERVAL_S: Final = 300.0
SNAPSHOT_DELETES_WAIT_S: Final = 150.0  # that objects to delete wait for the next snapshot, which may not be due
SNAPSHOT_TICK_S: Final = 5.0
SNAPSHOT_RETRY_S: Final = 10.0  # after one that failed
SNAPSHOT_LEAVE_DEADLINE_S: Final = 5.0  # the last one of a closing container
SNAPSHOTS_KEPT: Final = 3  # of one container

# -- cache and read index (docs/design.md#cache) ------------------------------------------------------------------
CACHE_MIN_BYTES: Final = 64 * MIB  # one largest operation and one shared object per container must fit
SEND_BUFFERS_MAX_BYTES: Final = 64 * MIB
CACHE_DEFAULT_BYTES: Final = 256 * MIB
STORAGE_READ_ALIGNMENT_BYTES: Final = 1 * MIB
CACHE_ENTRY_MAX_BYTES: Final = 256 * KIB
THROTTLE_TARGET: Final = 0.5  # part of the cache that may wait for Tier 2 before appends slow down
THROTTLE_HORIZON_S: Final = 0.5  # beyond the target, the remaining room is spread over this time
THROTTLE_BYTES_PER_S_MIN: Final = 1 * MIB
THROTTLE_TICK_S: Final = 0.005  # between rounds of waiting appends
ACTIVE_SEGMENTS_PER_CONTAINER_MAX: Final = 25_000

# -- attributes (docs/design.md#attributes) -----------------------------------------------------------------------
ATTRIBUTE_PAGE_MAX_BYTES: Final = 32 * KIB - 1
ATTRIBUTE_KEY_MAX_BYTES: Final = 256
ATTRIBUTES_IN_MEMORY_PER_SEGMENT_MAX: Final = 4096
ATTRIBUTES_EVICTION_SCAN_MAX: Final = 16_384  # values that one eviction checks
ATTRIBUTE_PAGES_CACHED_MAX_BYTES: Final = 16 * MIB  # index pages of one container
DAMAGE_RETRY_S: Final = 60.0  # before a damaged attribute index is read again: an operator may have restored the object
ATTRIBUTE_PAGE_READS_MAX: Final = 16  # pages of one index that one call reads at once

# -- tables -------------------------------------------------------------------------------------------------------
TABLE_KEY_MAX_BYTES: Final = 8192
TABLE_VALUE_MAX_BYTES: Final = MIB - 8192
TABLE_BATCH_MAX_BYTES: Final = 32 * MIB
TABLE_REPLY_MAX_BYTES: Final = 2 * MIB
TABLE_CONFLICT_RETRIES_MAX: Final = 100
TABLE_TURNS_MAX: Final = 256  # changes of a table that waited and are staged in one turn of the event loop
TABLE_BATCH_KEYS_MAX: Final = ATTRIBUTE_UPDATES_PER_OPERATION_MAX - 8  # different keys of one batch
TABLE_ENTRY_CACHE_BYTES: Final = 16 * MIB  # hot entries of a worker
TABLE_ENTRY_CACHE_OVERHEAD_BYTES: Final = 300  # objects around a cached entry
TABLE_ENTRY_CACHED_MAX_BYTES: Final = 64 * KIB  # larger entries are not cached
TABLE_ENTRY_READ_BYTES: Final = 4 * KIB  # first read of an entry of unknown length
TABLE_ENTRY_READS_MAX: Final = 16  # entries that one request reads at once
TABLE_SCAN_READ_BYTES: Final = 1 * MIB
TABLE_DELTA_SCAN_MAX_BYTES: Final = 32 * MIB  # removed and replaced entries that one delta read skips
TABLE_ITERATOR_RUN: Final = 256  # index entries that an iterator reads at once
TABLE_COMPACTION_PASS_BYTES: Final = 4 * MIB
TABLE_COMPACTION_PASSES_MAX: Final = 32  # of one table in one interval
TABLE_COMPACTION_MIN_BYTES: Final = 128 * KIB  # smaller tables are not worth a pass
TABLE_COMPACTION_UTILISATION: Final = 0.75  # live entries of all written since the compaction offset
TABLE_COMPACTION_CANDIDATES_MAX: Final = 10_000  # changed tables remembered

# -- stream cuts (docs/protocol/naming.md#stream-cuts) ------------------------------------------------------------
STREAM_CUT_TEXT_MAX_BYTES: Final = 1 * MIB  # Base64 text accepted from a user
STREAM_CUT_PLAIN_MAX_BYTES: Final = 4 * MIB  # after inflation: bounds the growth of a small text

# -- client (docs/design.md#controller, docs/performance.md#append-blocks) ----------------------------------------
ROUTING_KEY_CACHE_ENTRIES: Final = 65_536  # hashed keys remembered by a process
CLIENT_CONNECT_DEADLINE_S: Final = 10.0  # name, TCP connect and Hello
CLIENT_RESOLVE_TIMEOUT_S: Final = 0.5  # for the address of a name, before a second lookup runs in parallel
CLIENT_RESOLVE_QUESTIONS_MAX: Final = 3  # parallel lookups of one connect
CLIENT_REQUEST_DEADLINE_S: Final = 60.0  # one request with all its retries
CLIENT_REPLY_DEADLINE_S: Final = 30.0  # one attempt of a request
CLIENT_WAIT_NOTICE_S: Final = 5.0  # without success, after which a client logs why a call or a write waits
CLIENT_BACKOFF_INITIAL_S: Final = 0.02
CLIENT_BACKOFF_MAX_S: Final = 1.0
CLIENT_KEEP_ALIVE_S: Final = 10.0  # idle time after which a KeepAlive is sent
CLIENT_SILENCE_MAX_S: Final = 40.0  # without a byte from the peer although one is due: the connection is dead
BLOCKING_CLOSE_DEADLINE_S: Final = 10.0  # for the thread of a blocking client to end what still runs
CLIENT_REQUESTS_IN_FLIGHT_MAX: Final = 10_000  # per connection
CLIENT_WRITE_BUFFER_MAX_BYTES: Final = 4 * MIB  # unsent bytes of a connection before writers wait
CLIENT_ENDPOINTS_CACHED_MAX: Final = 1000  # segment → endpoint
CLIENT_ENDPOINT_TTL_S: Final = 300.0
CLIENT_TOKENS_CACHED_MAX: Final = 1000  # stream → delegation token
CLIENT_TOKEN_TTL_S: Final = 300.0  # after which a token is requested again, regardless of its expiry
CLIENT_TOKEN_REFRESH_BEFORE_S: Final = 10.0  # before its expiry a token is requested again
CLIENT_CONTROLLER_ATTEMPTS_MAX: Final = 10
CLIENT_CONTROLLER_UNKNOWN_ATTEMPTS_MAX: Final = 4  # of calls that return UNKNOWN, which wrong arguments also do
CLIENT_REMOVE_WRITER_DEADLINE_S: Final = 5.0  # of a closing writer's removal at the controller
NAMES_SHOWN_MAX: Final = 5  # of each kind, in a message
CLIENT_CONTROLLER_CALL_DEADLINE_S: Final = 120.0
CLIENT_CONTROLLER_MESSAGE_MAX_BYTES: Final = 4 * MIB
WRITER_BLOCK_MAX_BYTES: Final = 1 * MIB  # events of one append block
WRITER_BLOCK_MAX_EVENTS: Final = 20_000
WRITER_IN_FLIGHT_MAX_BYTES: Final = 8 * MIB  # unacknowledged bytes of a segment writer; below the server's 16 MiB
WRITER_EAGER_BLOCKS: Final = 2  # blocks in flight before a partly filled one waits for more events
WRITER_EVENT_MAX_BYTES: Final = 1 * GIB  # of one event, through a transient segment
WRITER_GIVE_UP_S: Final = 600.0  # without progress although events wait; then they fail
WRITER_ASK_AGAIN_S: Final = 5.0  # without an acknowledgement, until the controller is asked where the segment is
LARGE_EVENT_DOUBT_S: Final = 300.0  # of checks whether a large event was merged; merges are remembered for 10 minutes
SUCCESSORS_DEADLINE_S: Final = 60.0  # from a segment's seal until the controller returns its successors
WRITER_BUFFERED_MAX_BYTES: Final = 16 * MIB  # accepted, not yet acknowledged bytes of an event writer
TRANSACTION_LEASE_DEFAULT_MS: Final = 90_000
SCALE_DEADLINE_S: Final = 600.0  # of the client, for a scale to end
TRANSACTION_PINGS_PER_LEASE: Final = 3
BYTE_STREAM_WRITE_BYTES: Final = 1 * MIB  # larger writes are appended in parts
TABLE_PAGE_ENTRIES: Final = 1000  # requested at a time by iterations over a table
READER_REQUEST_BYTES: Final = 1 * MIB  # requested by one segment read
READER_GROUP_COMPACT_BYTES: Final = 512 * KIB  # state record bytes since the last compaction
READER_GROUP_COMPACT_PROBABILITY: Final = 0.05
READER_GROUP_CONFLICTS_MAX: Final = 1000  # conditional writes lost in a row before giving up
READER_GROUP_POLL_S: Final = 0.5  # between checks whether a checkpoint is complete
READER_GROUP_LOADS_MAX: Final = 5  # attempts to read a state that is being compacted
READER_GROUP_RESETS_MAX: Final = 20  # attempts of a reset while other clients reset the group
READER_GROUP_CONFIG_CHECK_S: Final = 10.0  # between checks for an interrupted reset
READER_PUBLISH_LEAVE_S: Final = 2.0  # for a publication of the group's position, when a reader leaves
READER_DEAD_AFTER_S: Final = 30.0  # of silence until other readers of the group take over a reader's segments
READER_DEAD_AFTER_MIN_S: Final = 0.5
READER_DEAD_AFTER_MAX_S: Final = 86_400.0
READER_HEARTBEATS_PER_DEAD_AFTER: Final = 6
READER_EVENTS_PER_READ_MAX: Final = 100_000  # of one call
READER_GROUP_RECORD_MAX_BYTES: Final = EVENT_MAX_BYTES

# -- direct reads of Tier 2 (docs/spark-direct.md) ----------------------------------------------------------------
DIRECT_READ_BYTES: Final = 1 * MIB  # of one request: whole blocks of one chunk
DIRECT_READ_AHEAD_BYTES: Final = 8 * MIB  # requested and not yet returned, of one segment
DIRECT_READS_MAX: Final = 16  # requests in flight, of one segment
DIRECT_SNAPSHOT_ATTEMPTS: Final = 5  # to list and get a container's newest snapshot while newer ones replace it
DIRECT_REREADS_MAX: Final = 5  # of a container's snapshot, without a byte read in between
DIRECT_CLOCK_SKEW_MAX_MS: Final = 60_000  # between the segment stores that create segments and take snapshots

# -- controller ---------------------------------------------------------------------------------------------------
METADATA_BUCKETS: Final = 64  # tables that hold streams; never changes in a cluster
METADATA_TABLE_PAGE_ENTRIES: Final = 1000
METADATA_CONFLICTS_MAX: Final = 100  # optimistic updates lost in a row before giving up
METADATA_CONFLICT_BACKOFF_MAX_S: Final = 0.5
IMMUTABLE_RECORDS_CACHED_MAX_BYTES: Final = 64 * MIB  # epochs and sealed sizes, in a controller's memory
RECENT_RECORDS_MAX_BYTES: Final = 16 * MIB  # roots and transactions that a controller read or wrote last
METADATA_READS_ADDED_MAX: Final = 100  # times that one change finds that it needs more records
EPOCHS_PER_READ_MAX: Final = 100
LIST_PAGE_ENTRIES_MAX: Final = 1000
STREAM_SEGMENTS_MAX: Final = 10_000  # active at once
TAGS_PER_STREAM_MAX: Final = 127
TAG_MAX_LENGTH: Final = 255
WRITER_MARKS_PER_STREAM_MAX: Final = 500
WRITER_MARK_IDLE_MAX_MS: Final = 3_600_000  # a full stream forgets writers that noted no time for so long
WATERMARK_PERIOD_S: Final = 10.0  # between looks at the marks of a stream's writers
WATERMARK_READ_S: Final = 5.0  # between a reader's looks for watermarks of a stream, at least
WATERMARKS_AHEAD_MAX: Final = 100  # that a reader keeps of a stream, beyond the position of its group
WATERMARK_STREAMS_CONCURRENT_MAX: Final = 8  # whose marks an instance looks at at a time
WATERMARK_POSITIONS_KEPT_MAX: Final = 200_000  # segments of all newest watermarks that an instance remembers
MARKED_WITHOUT_WRITERS_MS: Final = 600_000  # then a stream leaves the list; longer than a call that adds a writer lasts
SUBSCRIBERS_PER_STREAM_MAX: Final = 1000
SUBSCRIBERS_DESCRIBED_MAX: Final = 100  # of a stream, in its description
STREAM_REPORTS_MAX: Final = 500  # streams that one call describes
STREAM_REPORTS_KNOWN_MAX: Final = 10_000  # whose last description a client remembers
STREAM_REPORTS_GATHER_S: Final = 0.01  # that a client waits for other callers
SUBSCRIBERS_PER_READ_MAX: Final = 16  # records of at most 1 MiB each that one read returns
STREAMS_PER_READER_GROUP_MAX: Final = 1000
GROUP_CREATIONS_MAX: Final = 5  # tries of one call while the group is deleted again and again
STREAM_OWNER_MAX_LENGTH: Final = 1024  # of the name of a stream's owner
TABLE_PARTITIONS_MAX: Final = 1000
TRANSACTIONS_OPEN_MAX: Final = 10_000  # per stream, until they complete
TRANSACTION_LEASE_MIN_MS: Final = 10_000
TRANSACTION_LEASE_MAX_MS: Final = 600_000
TRANSACTION_SHARDS: Final = 64  # records that list a stream's open transactions; never changes in a cluster
TRANSACTION_DECISIONS_COMBINED_MAX: Final = 100  # begins, pings, commits and aborts that one change of a stream takes
TRANSACTION_LEASES_PER_READ_MAX: Final = 1000  # records that one read returns
TRANSACTION_LEASES_DIFFER_S: Final = 1.0  # from those of the root, before a controller reads all open transactions
TRANSACTION_LEASES_MAX: Final = 1000  # a transaction may live this many leases
TRANSACTION_LIFE_MAX_MS: Final = 24 * 3_600_000
TRANSACTION_REMEMBERED_MS: Final = 24 * 3_600_000  # after completion
TRANSACTION_COMMIT_BATCH_MAX: Final = 100
TRANSACTION_COMMIT_PASS_INTERVAL_S: Final = 0.02  # at least, from the begin of a commit pass to that of the next
TRANSACTION_ABORT_BATCH_MAX: Final = 100
COMPLETED_TRANSACTIONS_PER_CHUNK: Final = 128
COMPLETED_TRANSACTIONS_LISTED_MAX: Final = 500
SEGMENT_CALLS_CONCURRENT_MAX: Final = 16  # calls to segment stores of one workflow step or one client call
WORKFLOW_STEPS_CONCURRENT_MAX: Final = 64  # steps of all streams of an instance
WORKFLOW_STEP_SLOW_S: Final = 1.0  # then a step gives its slot to another one and goes on
WORKFLOW_SLOW_STEPS_MAX: Final = 4096  # steps of an instance that go on without a slot
WORKFLOW_STREAMS_MAX: Final = 100_000  # streams with a task in an instance
WORKFLOW_IDLE_S: Final = 10.0  # without work; then a stream's task ends
WORKFLOW_BACKOFF_INITIAL_S: Final = 0.05
WORKFLOW_BACKOFF_MAX_S: Final = 10.0
WORKFLOW_STEP_DEADLINE_S: Final = 120.0
CONTROLLER_BEAT_S: Final = 2.0  # between heartbeats of a controller that is not the only one
CONTROLLER_LOOK_S: Final = 1.0  # between looks at the others' heartbeats
CONTROLLER_LAPSE_S: Final = 5.0  # without a heartbeat, on the observer's clock: others adopt the controller's work
CONTROLLER_RESCAN_S: Final = 10.0  # between looks through the pending work of the buckets that a controller owns
CONTROLLER_START_TIMEOUT_S: Final = 5.0  # for tables that cannot be reached, before a controller serves without them
RETENTION_PERIOD_S: Final = 1800.0  # between truncations of a stream by its policy
RETENTION_PERIOD_MIN_S: Final = 0.1
RETENTION_START_S: Final = 10.0  # at most, from a controller's start to its first round
RETENTION_CUTS_MAX: Final = 256  # recorded for a stream; more are thinned
RETENTION_STREAMS_CONCURRENT_MAX: Final = 8  # truncated at a time by an instance
RETENTION_REQUESTS_MAX: Final = 1000  # streams with a changed policy that wait for its application
RETENTION_REQUESTS_CONCURRENT_MAX: Final = 4  # of them that are truncated at a time
RETENTION_RETRY_S: Final = 60.0  # at most, after a round that failed
SCALING_PERIOD_S: Final = 30.0  # between looks at the rates of all segments, times the factor of the times
SCALING_PERIOD_MIN_S: Final = 0.25
SCALING_TIME_FACTOR_MIN: Final = 0.001
SCALING_STREAMS_CONCURRENT_MAX: Final = 8  # whose scales an instance begins at a time
SCALING_SEGMENTS_MAX: Final = 1000  # active segments of a stream, to which it scales by itself
SCALING_RATES_DEADLINE_S: Final = 10.0  # for the rates of one container
SCALING_CONTAINERS_CONCURRENT_MAX: Final = 8  # asked for rates at a time
SEGMENT_SWEEP_PERIOD_S: Final = 1800.0  # between looks for segments that no record names
SEGMENT_SWEEP_AGE_S: Final = (
    3600.0  # for which a controller has seen that no record names a segment, before its deletion
)
SEGMENT_SWEEP_REMEMBERED_MAX: Final = 10_000  # segments that no record names; more wait for a later look
SEGMENT_SWEEP_STREAMS_CONCURRENT_MAX: Final = 4  # whose records are read at a time
SEGMENT_LIST_DEADLINE_S: Final = 10.0  # for one page of a container's segments
CONTROLLER_PROCESS_BYTES: Final = 112 * MIB  # interpreter, libraries, listeners; 88 MiB were measured
CONTROLLER_CALL_BYTES: Final = 32 * KIB  # of a call that runs; 23 KiB were measured
CONTROLLER_STREAM_BYTES: Final = 9 * KIB  # of a stream with work, and of an eighth of a group; 8 KiB each were measured
CONTROLLER_STREAMS_PER_ENTITY: Final = 8  # streams for each group, table or scope that may have work in a pod
CONTROLLER_RECORDS_MIN_BYTES: Final = 8 * MIB
CONTROLLER_CALLS_MIN: Final = 256
CONTROLLER_STREAMS_MIN: Final = 1000
CONTROLLERS_MAX: Final = 256  # records of instances that one look reads
RPC_BLOCKING_DEADLINE_S: Final = 290.0  # below the Java client's timeout of 5 minutes
REST_GROUP_REPORTS_MAX: Final = 4  # reader groups whose state is read at a time
REST_GROUP_REPORT_DEADLINE_S: Final = 60.0
RPC_REQUESTS_DEADLINE_S: Final = 20.0  # for the requests of a call to segment stores, beside its wait for a workflow
RPC_MESSAGE_MAX_BYTES: Final = 4 * MIB
RPC_CONCURRENT_MAX: Final = 10_000  # calls at a time; more are refused as unavailable, so that clients repeat them
RPC_CLOSE_GRACE_S: Final = 1.0
HISTORY_SEGMENTS_PER_REPLY_MAX: Final = 20_000  # after which a reply with a stream's history takes no more epochs
HISTORY_EPOCHS_PER_READ: Final = 20
REST_PAGE_ENTRIES_MAX: Final = 100_000  # items of one REST list

SEGMENT_DIGESTS_CACHED_MAX: Final = 10_000  # hashes of segments' names that a process keeps

# -- workers and standalone ---------------------------------------------------------------------------------------
CONTAINERS_DEFAULT: Final = 4
CONTAINERS_MAX: Final = 1024
EPOCH_RETRIES_MAX: Final = 10
CONTAINERS_OPENING_MAX: Final = 4  # of one worker at a time, which then reads so many logs
CONTAINER_RESTART_MIN_S: Final = 1.0  # before a failed container opens again; doubled each time
CONTAINER_RESTART_MAX_S: Final = 60.0
CONTAINER_REOPEN_MIN_S: Final = 0.5  # the same after causes that pass by themselves, as an epoch that was not returned
CONTAINER_REOPEN_MAX_S: Final = 10.0
CONTAINER_LEAVE_DEADLINE_S: Final = 15.0  # for the flush of a container that is released or closed
TABLE_COMPACTION_INTERVAL_S: Final = 30.0
ROUTES_CACHED_MAX: Final = 10_000  # segment names whose container is remembered
CLOSE_DEADLINE_S: Final = 20.0
LISTEN_BACKLOG: Final = 128
WORKERS_MAX: Final = 64
WORKER_PORT_TIMEOUT_S: Final = 10.0  # for a worker whose parent was killed to end
WORKER_PORT_POLL_S: Final = 0.1
WORKER_READY_DEADLINE_S: Final = 600.0  # recovery of a long log included
INSPECT_PAGE_MAX: Final = 1000

# -- pods (ADR 0013) ----------------------------------------------------------------------------------------------
POD_MAIN_PROCESS_BYTES: Final = 112 * MIB  # of a segment store pod; it replies for workers that do not run
POD_DRAIN_DEADLINE_S: Final = 80.0  # for all workers to hand over; above DRAIN_DEADLINE_S and a flush
WORKER_LEFT_LINGER_S: Final = 2.0  # the ports of drained workers reply WrongHost for so long
POD_RESTART_MAX_S: Final = 30.0  # between starts of a worker that fails to serve; doubled each time
POD_RESTART_MIN_S: Final = 1.0
POD_WORKER_STEADY_S: Final = 30.0  # a worker that served so long restarts at once
WORKER_WAIT_RETRY_S: Final = 1.0  # between attempts to reach what a worker needs before it can serve
WORKER_PROGRESS_POLL_S: Final = 0.05  # between checks whether the map was applied for the first time
WORKER_SILENT_MAX_S: Final = 7.0  # a process without a heartbeat report for so long is killed; its Lease has lapsed
WORKER_BLOCKED_MAX_S: Final = 20.0  # a process whose event loop is blocked for so long is killed; its Lease has lapsed
WORKER_WATCHDOG_PERIOD_S: Final = 0.5  # between checks of both
WORKER_REASON_MAX_CHARACTERS: Final = 1000  # of one report of a worker
CONTAINER_NOT_OPEN_REPORT_S: Final = 10.0  # a container that is not open for longer is reported
CONTAINERS_NOT_OPEN_POLL_S: Final = 1.0  # between checks for such containers
CONTAINERS_NOT_OPEN_REPORT_MAX: Final = 3  # containers that are reported with their reasons
WRONG_HOST_CONNECTIONS_MAX: Final = 1000  # of one worker's port while the worker does not run
WRONG_HOST_RECEIVE_MAX_BYTES: Final = 8 * MIB  # large frames in receipt then
WRONG_HOST_BUFFERS_IDLE_MAX_BYTES: Final = 1 * MIB
CONTROLLER_LINGER_S: Final = 3.0  # a controller that ends answers for so long, until Kubernetes sends no clients to it
POD_SPARE_SHARE: Final = 8  # one part in so many of a pod's memory is in no budget
POD_INDEX_PAGES_MIN_BYTES: Final = 16 * MIB  # of one worker, for all its containers

# -- ownership and placement (docs/design.md#ownership) -----------------------------------------------------------
CLUSTER_OBJECT_ATTEMPTS: Final = 6  # to read or write cluster.json at start
CLUSTER_OBJECT_RETRY_S: Final = 0.5
EPOCH_CONFLICTS_MAX: Final = 20  # lost compare-and-swaps in a row before a worker gives up for now
EPOCH_LOCK_TIMEOUT_S: Final = 5.0  # for another process that takes an epoch in the same folder
EPOCH_LOCK_POLL_S: Final = 0.02
KUBERNETES_CALL_DEADLINE_S: Final = 2.0  # one request to the API server; its outcome is unknown after that
KUBERNETES_THREADS: Final = 8  # concurrent requests of one process
KUBERNETES_WATCHES_MAX: Final = 8  # of one process
KUBERNETES_WATCH_SILENCE_S: Final = 30.0  # a watch without an event for so long is restarted
KUBERNETES_WATCH_BUFFER: Final = 1000  # unread changes of a watch
KUBERNETES_OBJECT_MAX_BYTES: Final = 1 * MIB  # the API server takes about 1.5 MiB
KUBERNETES_LIST_MAX: Final = 10_000  # objects of one list
KUBERNETES_PAGE: Final = 500  # objects of one page of an unbounded list
KUBERNETES_WATCH_S: Final = 300.0  # after which the server ends a watch; the client starts another
MAP_RELIST_S: Final = 10.0  # between reads of the container map without a watch event
MAP_RETRY_S: Final = 1.0  # after a failed read of it, and between watches
WORKER_LEASE_RENEW_S: Final = 1.0  # between renewals of a worker's Lease
WORKER_LEASE_LAPSE_S: Final = 5.0  # without observed renewal, on the observer's clock: the worker is dead
WORKER_LEASE_SUSPECT_S: Final = 2.0  # without observed renewal: a worker whose address refuses connections is dead
WORKER_LEASE_TOGETHER_S: Final = 3.0  # workers that fall silent within so long of each other lapse together
HEARTBEAT_S: Final = 0.25  # between heartbeats of a worker's event loop
HEARTBEAT_FRESH_S: Final = 15.0  # an event loop without a heartbeat for so long is blocked; less may be load
PLACER_PERIOD_S: Final = 1.0  # between checks of the workers
PLACER_BALANCE_DELAY_S: Final = (  # without a failure or a new worker, before containers move for balance alone
    15.0  # without failures and without other workers, before containers move for balance alone
)
PLACER_UNHELD_MAX_S: Final = 60.0  # how much longer that waits for assigned containers that no worker has opened
PLACER_UNEVEN_MAX_S: Final = 300.0  # of an uneven map; then containers move for balance in any case
PROBE_DEADLINE_S: Final = 2.0  # for a worker's answer to a probe
PROBE_REFUSAL_DEADLINE_S: Final = 0.5  # for a connection to a worker that may have ended
PROBES_CONCURRENT_MAX: Final = 16
PROBES_REFUSAL_MAX: Final = 64  # connection probes between two checks; workers beyond it lapse by time
MOVES_IN_FLIGHT_MAX: Final = 4  # containers handed over at a time although their worker could keep them
MOVES_FOR_BALANCE_MAX: Final = 1  # of those, when no worker leaves: several at once take longer each
HANDOVER_TIMEOUT_S: Final = 5.0  # for the former owner to release a container that is handed over
HANDOVER_POLL_S: Final = 0.1
PENDING_CONTAINER_TIMEOUT_S: Final = 2.5  # for a request to a container that opens here; clients wait 30 s and more
PENDING_CONTAINER_REQUESTS_MAX: Final = 8192  # such requests of a server; further ones get WrongHost at once
PENDING_CONTAINER_REQUEST_MAX_BYTES: Final = 4096  # larger requests do not wait, because they hold memory
HANDOVER_RECORD_MAX_S: Final = 30.0  # of a hand-over in the map; well above HANDOVER_TIMEOUT_S
DRAIN_DEADLINE_S: Final = 60.0  # for a leaving worker to hand over its containers
DRAIN_CLOSE_TIMEOUT_S: Final = 20.0  # for released containers to close; above CONTAINER_LEAVE_DEADLINE_S
DRAIN_MARK_TIMEOUT_S: Final = 2.0  # from a drain's beginning until the Lease says that the worker leaves

# -- the operator (ADR 0013) --------------------------------------------------------------------------------------
CONDITION_MESSAGE_MAX_LENGTH: Final = 1024  # characters; Kubernetes takes 32 KiB, too long to read
EVENT_MESSAGE_MAX_LENGTH: Final = 1024  # the limit of the API server
OPERATOR_WORKERS: Final = 8  # objects of a kind that are reconciled at a time
OPERATOR_PERIOD_S: Final = 60.0  # between two reconciliations of an unchanged object
OPERATOR_CLUSTER_PERIOD_S: Final = 20.0  # the same for StreamClusters
OPERATOR_RETRY_MIN_S: Final = 1.0  # after the first failure; doubled with each one in a row
OPERATOR_RETRY_MAX_S: Final = 60.0
OPERATOR_FAILURES_REPORT: Final = 3  # failures in a row before the object's conditions report them
OPERATOR_RECONCILE_DEADLINE_S: Final = 120.0  # of one reconciliation
OPERATOR_CONFLICTS_MAX: Final = 5  # with other writers of an object, before its reconciliation restarts
OPERATOR_OBJECTS_MAX: Final = 10_000  # of each kind
OPERATOR_STOP_DEADLINE_S: Final = 15.0  # for all tasks of the operator to end
OPERATOR_NAMESPACE_TEARDOWN_DEADLINE_S: Final = 10.0  # to release the resources of a namespace that is deleted
OPERATOR_RELEASE_DEADLINE_S: Final = 120.0  # to release all resources that an operator leaves behind
OPERATOR_RELEASE_DEADLINE_MIN_S: Final = 1.0
OPERATOR_RELEASE_TIMEOUT_S: Final = 30.0  # for resources that are being deleted, after the last deletion
OPERATOR_RELEASE_POLL_S: Final = 1.0  # between two checks of those
OPERATOR_RELEASE_RETRY_MIN_S: Final = 0.5  # after the first failure; doubled with each one in a row
OPERATOR_RELEASE_RETRY_MAX_S: Final = 10.0
OPERATOR_RELEASE_REPORT_MAX: Final = 5  # resources that an error names
OPERATOR_CLIENTS_MAX: Final = 256  # clusters with an open connection to their controllers
OPERATOR_CLUSTER_KNOWN_S: Final = 10.0  # for which the operator caches a cluster's resource
OPERATOR_CLUSTERS_KNOWN_MAX: Final = 1000
OPERATOR_CONTROLLER_SILENT_S: Final = 15.0  # after its last answer a controller is probed
OPERATOR_CONTROLLER_PROBE_S: Final = 3.0  # for the answer to a probe
OPERATOR_CONTROLLER_PAUSE_MIN_S: Final = 1.0  # before the next call of one that did not answer; doubled each time
OPERATOR_CONTROLLER_PAUSE_MAX_S: Final = 20.0
OPERATOR_CONTROLLER_DEADLINE_S: Final = 30.0  # of all controller calls of one reconciliation
OPERATOR_STREAM_STEPS_MAX: Final = 6  # changes of a stream in one reconciliation
OPERATOR_STREAM_BUSY_S: Final = 5.0  # before the next reconciliation of a stream that is being changed
OPERATOR_WAIT_S: Final = 20.0  # before the next reconciliation of an object that waits for another resource
OPERATOR_DELETION_RETRY_S: Final = 10.0  # between attempts to delete what a resource leaves
OPERATOR_LAG_PERIOD_S: Final = 30.0  # between two measurements of all reader groups of a cluster
OPERATOR_LAG_CONCURRENT_MAX: Final = 8  # streams and groups of a cluster measured at a time
OPERATOR_LAG_GROUPS_MAX: Final = 5000  # measured in one process
OPERATOR_LAG_SEGMENTS_MAX: Final = 100_000  # whose lengths are remembered
OPERATOR_LAG_SAMPLES_MAX: Final = 64  # remembered lengths of one segment; older ones become sparse
RUST_GROUP_ENTRIES_MAX: Final = 100_000  # keys of the state of one group of the Rust flavour
OPERATOR_CUTS_STATUS_MAX_BYTES: Final = 64 * KIB  # published cuts in the status of a group, together
OPERATOR_PERIOD_MIN_S: Final = 0.5
OPERATOR_KINDS_RETRY_S: Final = 5.0  # between checks for definitions that are not installed yet
OPERATOR_CHILD_PAUSE_S: Final = 0.5  # for more changes of an object's children, before it is reconciled
OPERATOR_DEPENDENT_GAP_S: Final = 0.02  # between two objects that are reconciled because a third one changed
OPERATOR_WATCH_S: Final = 300.0  # after which the server ends a watch of the operator
OPERATOR_WATCH_MARGIN_S: Final = 10.0  # and after that the operator ends it
OPERATOR_HEALTH_PORT: Final = 8080
LEADER_RENEW_S: Final = 1.0  # between renewals of the operator's Lease
LEADER_DEADLINE_S: Final = 4.0  # without a renewal of its own the leader ends
LEADER_LAPSE_S: Final = 5.0  # without an observed renewal a standby takes over; well above the deadline
PLACER_RETRY_MIN_S: Final = 1.0  # before a failed placer restarts; doubled each time
PLACER_RETRY_MAX_S: Final = 30.0
TIER2_CHECK_DEADLINE_S: Final = 10.0  # for the object store to answer one request of the operator
TIER2_CHECK_THREADS: Final = 4
TIER2_CHECK_ANSWER_MAX_BYTES: Final = 256 * KIB  # a bucket may have 1000 lifecycle rules
CLUSTER_IDENTITY_MAX_BYTES: Final = 64 * KIB  # of cluster.json

# -- restore from Tier 2 ------------------------------------------------------------------------------------------
RESTORE_EPOCH_GAP: Final = 1000  # epochs that an owner whose log is lost may have taken without a trace
RESTORE_SEQUENCE_GAP: Final = 2**32  # operations that it may have logged without a trace
RESTORE_WATCH_S: Final = 3.0  # least time in which a restore checks whether a server writes to the store
RESTORE_SHOWN_MAX: Final = 100  # segments of a container that the report lists

# -- verification of a data folder --------------------------------------------------------------------------------
VERIFY_LISTED_MAX: Final = 10_000  # problems, and orphans, that the report lists; all are counted
VERIFY_CACHE_BYTES: Final = 32 * MIB  # for entries of tables
VERIFY_READ_BYTES: Final = 4 * MIB  # of a chunk at a time
VERIFY_RUN_BYTES: Final = 256 * KIB  # compared between log and Tier 2 at once
VERIFY_ATTEMPTS: Final = 3  # of a container whose object log changes meanwhile, before it counts as in use
VERIFY_PAUSE_S: Final = 0.5  # between them
VERIFY_FAILED_READS_MAX: Final = 3  # in a row, before the store counts as unavailable
VERIFY_TABLE_BATCH: Final = 100_000  # entries of a table that are read in the order of their offsets

# -- Spark -----------------------------------------------------------------------------------------------------------
SPARK_BATCH_BYTES: Final = 4 * MIB  # of events in one record batch; one large event more
SPARK_BATCH_EVENTS: Final = 50_000  # in one record batch
SPARK_COMMIT_DEADLINE_S: Final = 300.0  # for the driver's commit of one batch, until its events can be read
SPARK_COMMIT_ROUNDS_MAX: Final = 16  # that a commit begins again because another driver changed the record
SPARK_COMMIT_POLL_MAX_S: Final = 0.25  # between two looks at a transaction that is being committed
SPARK_TRANSACTIONS_MAX: Final = 20_000  # of one batch: their ids are in one record
SPARK_RUNS_MAX: Final = 64  # starts of a query that its record names
SPARK_QUERY_LENGTH_MAX: Final = 256  # characters of the option query
SPARK_WRITE_BYTES: Final = MIB  # of events that a task writes to one segment together

# -- audit of Tier 2 on Spark ----------------------------------------------------------------------------------------
AUDIT_SETTLED_MS: Final = 15 * 60_000  # after it was written, an object that a snapshot does not name is an orphan
AUDIT_PARTITION_BYTES: Final = 256 * MIB  # of referenced bytes, about, for one task
AUDIT_PARTITIONS_MAX: Final = 10_000
AUDIT_OBJECTS_MAX: Final = 4  # read at a time by one task, VERIFY_READ_BYTES each
AUDIT_BATCH_OBJECTS: Final = 64  # whose findings a task keeps until it returns them
AUDIT_BATCH_ROWS: Final = 5000  # of an inventory or a list, returned at once
AUDIT_SHOWN_MAX: Final = 1000  # findings that the summary and the page list; the table has all
AUDIT_CHART_CONTAINERS_MAX: Final = 40  # that the pictures show
