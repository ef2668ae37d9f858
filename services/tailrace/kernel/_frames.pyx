"""Frames of the wire and events of a segment, natively (the contract is written at the twin, ``_frames_py.py``)."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memcpy

cdef enum:
    HEADER_BYTES = 8
    LENGTH_MAX = 0x7FFFFFFF

EVENT_LENGTH_MAX = LENGTH_MAX


cdef inline int32_t load32(const unsigned char *data) noexcept nogil:
    return <int32_t>(<uint32_t>data[0] << 24 | <uint32_t>data[1] << 16 | <uint32_t>data[2] << 8 | <uint32_t>data[3])


cdef inline void store32(unsigned char *data, uint32_t value) noexcept nogil:
    data[0] = <unsigned char>(value >> 24)
    data[1] = <unsigned char>(value >> 16)
    data[2] = <unsigned char>(value >> 8)
    data[3] = <unsigned char>value


cdef int check_range(Py_ssize_t start, Py_ssize_t end, Py_ssize_t length) except -1:
    if not 0 <= start <= end <= length:
        raise ValueError(f"range {start}..{end} is outside of a buffer of {length} bytes")
    return 0


cdef int check_frame_length(Py_ssize_t length, Py_ssize_t limit, Py_ssize_t offset) except -1:
    if length < 0:
        raise ValueError(f"frame at {offset} has a negative length: {length}")
    if length > limit:
        raise ValueError(f"frame at {offset} is too long: {length} bytes, at most {limit}")
    return 0


cdef Py_ssize_t event_length(const unsigned char *data, Py_ssize_t offset, Py_ssize_t limit) except -1:
    cdef int32_t kind = load32(data + offset)
    cdef int32_t length = load32(data + offset + 4)
    if kind != 0:
        raise ValueError(f"no event begins at {offset}: type {kind}")
    if length < 0:
        raise ValueError(f"event at {offset} has a negative length: {length}")
    if length > limit:
        raise ValueError(f"event at {offset} is too long: {length} bytes, at most {limit}")
    return length


def scan_frames(buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t max_frame_length, Py_ssize_t max_frames=1024):
    cdef Py_buffer view
    cdef Py_ssize_t position = start, length, found = 0
    cdef const unsigned char *data
    frames = []
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        check_range(start, end, view.len)
        data = <const unsigned char *>view.buf
        while found < max_frames and end - position >= HEADER_BYTES:
            length = load32(data + position + 4)
            check_frame_length(length, max_frame_length, position)
            if end - position - HEADER_BYTES < length:
                break
            frames.append((load32(data + position), position + HEADER_BYTES, length))
            position += HEADER_BYTES + length
            found += 1
    finally:
        PyBuffer_Release(&view)
    return frames, position


cdef Py_ssize_t packed_length(tuple events) except -1:
    cdef Py_buffer view
    cdef Py_ssize_t total = 0, length
    for event in events:
        if PyBytes_CheckExact(event):
            length = PyBytes_GET_SIZE(event)
        else:
            PyObject_GetBuffer(event, &view, PyBUF_SIMPLE)
            length = view.len
            PyBuffer_Release(&view)
        if length > LENGTH_MAX:
            raise ValueError(f"an event has at most {LENGTH_MAX} bytes: {length}")
        total += HEADER_BYTES + length
    return total


cdef unsigned char *pack_one(unsigned char *target, Py_ssize_t room, const void *data, Py_ssize_t length) except NULL:
    # An event that is no bytes object could in theory have grown since its length was taken.
    if length + HEADER_BYTES > room:
        raise ValueError("an event changed its length while it was packed")
    store32(target, 0)
    store32(target + 4, <uint32_t>length)
    if length:
        memcpy(target + HEADER_BYTES, data, length)
    return target + HEADER_BYTES + length


def pack_events(events):
    cdef Py_buffer view
    cdef tuple items = tuple(events)
    cdef Py_ssize_t total = packed_length(items)
    packed = PyBytes_FromStringAndSize(NULL, total)
    cdef unsigned char *target = <unsigned char *>PyBytes_AS_STRING(packed)
    cdef unsigned char *limit = target + total
    for event in items:
        if PyBytes_CheckExact(event):
            target = pack_one(target, limit - target, PyBytes_AS_STRING(event), PyBytes_GET_SIZE(event))
        else:
            PyObject_GetBuffer(event, &view, PyBUF_SIMPLE)
            try:
                target = pack_one(target, limit - target, view.buf, view.len)
            finally:
                PyBuffer_Release(&view)
    if target != limit:
        raise ValueError("an event changed its length while it was packed")
    return packed


def split_events(buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t max_event_length=LENGTH_MAX):
    cdef Py_buffer view
    cdef Py_ssize_t position = start, length
    cdef const unsigned char *data
    events = []
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        check_range(start, end, view.len)
        data = <const unsigned char *>view.buf
        while end - position >= HEADER_BYTES:
            length = event_length(data, position, max_event_length)
            if end - position - HEADER_BYTES < length:
                break
            events.append((position + HEADER_BYTES, length))
            position += HEADER_BYTES + length
    finally:
        PyBuffer_Release(&view)
    return events, position


def split_events_bytes(buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t max_event_length=LENGTH_MAX):
    cdef Py_buffer view
    cdef Py_ssize_t position = start, length
    cdef const unsigned char *data
    events = []
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        check_range(start, end, view.len)
        data = <const unsigned char *>view.buf
        while end - position >= HEADER_BYTES:
            length = event_length(data, position, max_event_length)
            if end - position - HEADER_BYTES < length:
                break
            events.append(PyBytes_FromStringAndSize(<const char *>data + position + HEADER_BYTES, length))
            position += HEADER_BYTES + length
    finally:
        PyBuffer_Release(&view)
    return events, position


def gather_events(
    buffer, Py_ssize_t start, Py_ssize_t end, Py_ssize_t stop, int64_t shift, Py_ssize_t max_event_length=LENGTH_MAX
):
    cdef Py_buffer view
    cdef Py_ssize_t position = start, length, count = 0, total = 0, at = 0, index
    cdef int32_t end_of_event
    cdef int64_t event_position
    cdef const unsigned char *data
    cdef char *payload_bytes
    cdef char *end_bytes
    cdef char *position_bytes
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        check_range(start, end, view.len)
        data = <const unsigned char *>view.buf
        while position < stop and end - position >= HEADER_BYTES:
            length = event_length(data, position, max_event_length)
            if end - position - HEADER_BYTES < length:
                break
            position += HEADER_BYTES + length
            total += length
            if total > LENGTH_MAX:
                raise ValueError(f"the events before {position} have {total} bytes, at most {EVENT_LENGTH_MAX}")
            count += 1
        payloads = PyBytes_FromStringAndSize(NULL, total)
        ends = PyBytes_FromStringAndSize(NULL, (count + 1) * sizeof(int32_t))
        positions = PyBytes_FromStringAndSize(NULL, count * sizeof(int64_t))
        payload_bytes, end_bytes = PyBytes_AS_STRING(payloads), PyBytes_AS_STRING(ends)
        position_bytes = PyBytes_AS_STRING(positions)
        end_of_event = 0
        memcpy(end_bytes, &end_of_event, sizeof(int32_t))
        position = start
        for index in range(count):
            # Not checked again, but bounded: the buffer's owner could have changed the lengths since the first pass.
            length = load32(data + position + 4)
            if length < 0 or length > total - at or length > end - position - HEADER_BYTES:
                raise ValueError("an event changed its length while it was gathered")
            memcpy(payload_bytes + at, data + position + HEADER_BYTES, length)
            at += length
            end_of_event = <int32_t>at
            event_position = position + shift
            memcpy(end_bytes + (index + 1) * sizeof(int32_t), &end_of_event, sizeof(int32_t))
            memcpy(position_bytes + index * sizeof(int64_t), &event_position, sizeof(int64_t))
            position += HEADER_BYTES + length
        if at != total:
            raise ValueError("an event changed its length while it was gathered")
    finally:
        PyBuffer_Release(&view)
    return payloads, ends, positions, position
