"""Records of a container's log, natively (the contract is written at the twin, ``_records_py.py``)."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.string cimport memcmp, memcpy, memset

from tailrace.kernel._records_common import RUNS_MAX as _RUNS_MAX
from tailrace.kernel._records_common import AppendRun

cdef enum:
    RECORD_BYTES = 16
    WHOLE = 3
    APPEND_TYPE = 3
    VERSION = 1
    APPEND_BYTES = 27
    KEY_BYTES = 16
    ATTRIBUTE_BYTES = 2 + KEY_BYTES + 8
    RUNS_MAX = 64
    PLACES = 128  # of the hash table of runs: a power of two, at most half of it used
    ROWS_AT_FIRST = 64
    VALUES_AT_FIRST = 16

cdef int64_t INT64_MAX = 0x7FFFFFFFFFFFFFFF

if _RUNS_MAX != RUNS_MAX:
    raise ImportError(f"the kernel was built for {RUNS_MAX} runs, not {_RUNS_MAX}")


cdef struct Append:
    int64_t segment_id
    int64_t offset
    uint32_t length
    uint32_t crc
    uint16_t count
    const unsigned char *attributes
    Py_ssize_t data_start


cdef struct Run:
    int64_t segment_id
    int64_t first_sequence
    int64_t offset
    int64_t end
    Py_ssize_t rows
    Py_ssize_t first_row
    Py_ssize_t last_row
    # The attributes of the last append: those of the next one replace them, if its ids are the same.
    const unsigned char *attributes
    uint16_t count
    int64_t sequence


cdef struct Row:
    int64_t offset
    uint32_t length
    uint32_t crc
    uint32_t start
    Py_ssize_t next  # of the same run


cdef struct Scan:
    Row *rows
    Py_ssize_t row_count
    Py_ssize_t row_room
    int run_count
    Run runs[RUNS_MAX]
    uint8_t places[PLACES]  # number of a run, plus one


cdef inline uint16_t load16(const unsigned char *data) noexcept nogil:
    return <uint16_t>(<uint32_t>data[0] << 8 | <uint32_t>data[1])


cdef inline uint32_t load32(const unsigned char *data) noexcept nogil:
    return <uint32_t>data[0] << 24 | <uint32_t>data[1] << 16 | <uint32_t>data[2] << 8 | <uint32_t>data[3]


cdef inline int64_t load64(const unsigned char *data) noexcept nogil:
    return <int64_t>(<uint64_t>load32(data) << 32 | <uint64_t>load32(data + 4))


cdef int check_start(Py_ssize_t start, Py_ssize_t length) except -1:
    if not 0 <= start <= length:
        raise ValueError(f"range {start}..{length} is outside of a buffer of {length} bytes")
    return 0


def skip_records(payload, Py_ssize_t start, int kind):
    cdef Py_buffer view
    cdef Py_ssize_t position = start, left
    cdef const unsigned char *record
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        check_start(start, view.len)
        while view.len - position >= RECORD_BYTES:
            record = <const unsigned char *>view.buf + position
            left = view.len - position - RECORD_BYTES
            if record[0] == kind or record[1] != WHOLE or <Py_ssize_t>load32(record + 4) > left:
                break
            position += RECORD_BYTES + <Py_ssize_t>load32(record + 4)
    finally:
        PyBuffer_Release(&view)
    return position


cdef bint read_append(
    const unsigned char *data, Py_ssize_t position, Py_ssize_t end, int64_t sequence, Append *found
) noexcept nogil:
    """Whether such an append begins there; see `scan_appends` of the twin."""
    cdef const unsigned char *record = data + position
    cdef const unsigned char *body
    cdef Py_ssize_t body_length, index
    if end - position < RECORD_BYTES:
        return False
    body = record + RECORD_BYTES
    body_length = load32(record + 4)
    if record[0] != APPEND_TYPE or record[1] != WHOLE or load64(record + 8) != sequence:
        return False
    if not APPEND_BYTES <= body_length <= end - position - RECORD_BYTES or body[0] != VERSION:
        return False
    found.segment_id = load64(body + 1)
    found.offset = load64(body + 9)
    found.length = load32(body + 17)
    found.crc = load32(body + 21)
    found.count = load16(body + 25)
    found.attributes = body + APPEND_BYTES
    if body_length != APPEND_BYTES + <Py_ssize_t>found.count * ATTRIBUTE_BYTES + <Py_ssize_t>found.length:
        return False
    if found.offset < 0 or found.offset > INT64_MAX - <int64_t>found.length:
        return False
    for index in range(found.count):
        if load16(found.attributes + index * ATTRIBUTE_BYTES) != KEY_BYTES:
            return False
    found.data_start = position + RECORD_BYTES + body_length - <Py_ssize_t>found.length
    return True


cdef int find_run(Scan *scan, int64_t segment_id, int *place) noexcept nogil:
    """The number of the segment's run, or -1 and the place for it in the hash table."""
    cdef int at = <int>((<uint64_t>segment_id * <uint64_t>0x9E3779B97F4A7C15) >> 57)
    while scan.places[at]:
        if scan.runs[scan.places[at] - 1].segment_id == segment_id:
            return scan.places[at] - 1
        at = (at + 1) & (PLACES - 1)
    place[0] = at
    return -1


cdef int add_row(Scan *scan, Append *found, Run *run) except -1:
    cdef Row *row
    cdef Py_ssize_t room
    if scan.row_count == scan.row_room:
        room = max(<Py_ssize_t>ROWS_AT_FIRST, scan.row_room * 2)
        row = <Row *>PyMem_Realloc(scan.rows, room * sizeof(Row))
        if row == NULL:
            raise MemoryError
        scan.rows, scan.row_room = row, room
    row = &scan.rows[scan.row_count]
    row.offset, row.length, row.crc = found.offset, found.length, found.crc
    row.start = <uint32_t>found.data_start
    if run.rows:
        scan.rows[run.last_row].next = scan.row_count
    else:
        run.first_row = scan.row_count
    run.last_row = scan.row_count
    run.rows += 1
    scan.row_count += 1
    return 0


cdef bint same_ids(const unsigned char *first, const unsigned char *second, uint16_t count) noexcept nogil:
    cdef Py_ssize_t at
    for at in range(count):
        if memcmp(first + at * ATTRIBUTE_BYTES, second + at * ATTRIBUTE_BYTES, 2 + KEY_BYTES):
            return False
    return True


cdef struct Last:
    int64_t value
    int64_t sequence


cdef class LastAttributes:
    cdef dict _places  # of each attribute in `_last`
    cdef Last *_last
    cdef Py_ssize_t _room

    def __cinit__(self):
        self._places = {}
        self._last = NULL
        self._room = 0

    def __dealloc__(self):
        PyMem_Free(self._last)

    def __len__(self):
        return len(self._places)

    cdef int put(self, const unsigned char *key, int64_t value, int64_t sequence) except -1:
        cdef object key_bytes = PyBytes_FromStringAndSize(<const char *>key, KEY_BYTES)
        cdef PyObject *found = PyDict_GetItem(self._places, key_bytes)
        cdef Py_ssize_t place
        if found != NULL:
            place = <Py_ssize_t><object>found
        else:
            place = len(self._places)
            self.grow(place + 1)
            self._places[key_bytes] = place
        self._last[place].value = value
        self._last[place].sequence = sequence
        return 0

    cdef int grow(self, Py_ssize_t count) except -1:
        cdef Last *last
        cdef Py_ssize_t room
        if count > self._room:
            room = max(<Py_ssize_t>VALUES_AT_FIRST, self._room * 2)
            last = <Last *>PyMem_Realloc(self._last, room * sizeof(Last))
            if last == NULL:
                raise MemoryError
            self._last, self._room = last, room
        return 0

    def take(self):
        cdef Py_ssize_t place
        cdef dict values = {}, sequences = {}
        for key, place in self._places.items():
            values[key] = self._last[place].value
            sequences[key] = self._last[place].sequence
        self._places = {}
        PyMem_Free(self._last)
        self._last, self._room = NULL, 0
        return values, sequences


cdef int put_values(LastAttributes last, Run *run) except -1:
    """Take over the attributes of the run's last append."""
    cdef Py_ssize_t index
    cdef const unsigned char *at
    for index in range(run.count):
        at = run.attributes + index * ATTRIBUTE_BYTES + 2
        last.put(at, load64(at + KEY_BYTES), run.sequence)
    return 0


cdef int add_append(Scan *scan, Append *found, int number, LastAttributes last, int64_t sequence) except -1:
    cdef Run *run = &scan.runs[number]
    if found.length:
        add_row(scan, found, run)
        run.end += <int64_t>found.length
    if found.count and last is not None:
        if run.count and (run.count != found.count or not same_ids(run.attributes, found.attributes, found.count)):
            put_values(last, run)
        run.attributes, run.count, run.sequence = found.attributes, found.count, sequence
    return 0


cdef object result_of(Scan *scan, int number, const unsigned char *data):
    """One run as an `AppendRun`."""
    cdef Run *run = &scan.runs[number]
    cdef Row *row
    cdef Py_ssize_t at, index = run.first_row
    joined = PyBytes_FromStringAndSize(NULL, run.end - run.offset)
    offsets = PyBytes_FromStringAndSize(NULL, run.rows * sizeof(int64_t))
    lengths = PyBytes_FromStringAndSize(NULL, run.rows * sizeof(uint32_t))
    crcs = PyBytes_FromStringAndSize(NULL, run.rows * sizeof(uint32_t))
    starts = PyBytes_FromStringAndSize(NULL, run.rows * sizeof(uint32_t))
    cdef char *target = PyBytes_AS_STRING(joined)
    cdef char *offset_bytes = PyBytes_AS_STRING(offsets)
    cdef char *length_bytes = PyBytes_AS_STRING(lengths)
    cdef char *crc_bytes = PyBytes_AS_STRING(crcs)
    cdef char *start_bytes = PyBytes_AS_STRING(starts)
    for at in range(run.rows):
        row = &scan.rows[index]
        memcpy(target, data + row.start, row.length)
        target += row.length
        memcpy(offset_bytes + at * sizeof(int64_t), &row.offset, sizeof(int64_t))
        memcpy(length_bytes + at * sizeof(uint32_t), &row.length, sizeof(uint32_t))
        memcpy(crc_bytes + at * sizeof(uint32_t), &row.crc, sizeof(uint32_t))
        memcpy(start_bytes + at * sizeof(uint32_t), &row.start, sizeof(uint32_t))
        index = row.next
    return AppendRun(run.segment_id, run.first_sequence, run.offset, joined, offsets, lengths, crcs, starts)


cdef LastAttributes last_of(dict attributes, int64_t segment_id):
    """What is gathered of that segment; None: nothing is gathered."""
    if attributes is None:
        return None
    found = attributes.get(segment_id)
    if found is None:
        found = attributes[segment_id] = LastAttributes()
    return found


def scan_appends(payload, Py_ssize_t start, int64_t sequence, Py_ssize_t max_count, dict attributes=None):
    cdef Py_buffer view
    cdef Scan scan
    cdef Append found
    cdef Py_ssize_t position = start, taken = 0
    cdef const unsigned char *data
    cdef int number, place = 0
    cdef LastAttributes last
    cdef list gathered = []  # of each run
    scan.rows, scan.row_count, scan.row_room, scan.run_count = NULL, 0, 0, 0
    memset(scan.places, 0, sizeof(scan.places))
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        check_start(start, view.len)
        data = <const unsigned char *>view.buf
        while taken < max_count and sequence < INT64_MAX and read_append(data, position, view.len, sequence, &found):
            number = find_run(&scan, found.segment_id, &place)
            if number < 0:
                if scan.run_count == RUNS_MAX:
                    break
                number = scan.run_count
                memset(&scan.runs[number], 0, sizeof(Run))
                scan.runs[number].segment_id = found.segment_id
                scan.runs[number].first_sequence = sequence
                scan.runs[number].offset = scan.runs[number].end = found.offset
                scan.run_count += 1
                scan.places[place] = <uint8_t>scan.run_count
                gathered.append(last_of(attributes, found.segment_id))
            elif found.offset != scan.runs[number].end:
                break
            add_append(&scan, &found, number, gathered[number], sequence)
            position = found.data_start + found.length
            sequence += 1
            taken += 1
        for number in range(scan.run_count):
            last = gathered[number]
            if last is not None:
                put_values(last, &scan.runs[number])
        runs = [result_of(&scan, number, data) for number in range(scan.run_count)]
    finally:
        PyMem_Free(scan.rows)
        PyBuffer_Release(&view)
    return position, sequence, runs
