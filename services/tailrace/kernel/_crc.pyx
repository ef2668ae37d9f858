"""Checksums and zero detection, natively (the contract is written at the twin, ``_crc_py.py``)."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t, uint64_t

cdef extern from "crc32c.h" nogil:
    void tr_crc32c_initialise()
    uint32_t tr_crc32c(uint32_t crc, const unsigned char *data, size_t length)
    uint32_t tr_crc32c_table(uint32_t crc, const unsigned char *data, size_t length)
    uint32_t tr_crc32c_combine(uint32_t first, uint32_t second, uint64_t second_length)
    int tr_is_zero(const unsigned char *data, size_t length)

# Below this many bytes giving the interpreter lock away costs more than it could bring.
cdef Py_ssize_t NOGIL_BYTES = 65536

tr_crc32c_initialise()


def crc32c(data, uint32_t value=0):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len < NOGIL_BYTES:
            value = tr_crc32c(value, <const unsigned char *>view.buf, view.len)
        else:
            with nogil:
                value = tr_crc32c(value, <const unsigned char *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return value


def crc32c_portable(data, uint32_t value=0):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return tr_crc32c_table(value, <const unsigned char *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


def crc32c_combine(uint32_t first, uint32_t second, second_length):
    if not 0 <= second_length < 1 << 63:
        raise ValueError(f"second_length must not be negative, and below 2**63: {second_length}")
    return tr_crc32c_combine(first, second, <uint64_t>second_length)


def is_zero(data):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return tr_is_zero(<const unsigned char *>view.buf, view.len) != 0
    finally:
        PyBuffer_Release(&view)


def zero_sectors(data, Py_ssize_t sector_bytes=512):
    cdef Py_buffer view
    cdef Py_ssize_t index, count
    cdef const unsigned char *base
    if sector_bytes < 1:
        raise ValueError(f"sector_bytes must be at least 1: {sector_bytes}")
    found = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        base = <const unsigned char *>view.buf
        count = view.len // sector_bytes
        for index in range(count):
            # Looking at one byte first refuses nearly every sector that holds data.
            if base[index * sector_bytes] == 0 and tr_is_zero(base + index * sector_bytes, sector_bytes):
                found.append(index)
    finally:
        PyBuffer_Release(&view)
    return found
