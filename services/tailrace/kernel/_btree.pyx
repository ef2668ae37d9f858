# cython: cdivision=True
"""Search and merge in a page of the B+Tree, natively (the contract is written at the twin, ``_btree_py.py``)."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.string cimport memcmp, memcpy

cdef enum:
    KEY_BYTES_MAX = 256
    VALUE_BYTES_MAX = 65536

KEY_LENGTH_MAX = KEY_BYTES_MAX
VALUE_LENGTH_MAX = VALUE_BYTES_MAX

cdef struct Area:
    Py_buffer view
    const char *data
    Py_ssize_t key_length
    Py_ssize_t value_length
    Py_ssize_t entry_length
    Py_ssize_t count


cdef int open_area(Area *area, entries, Py_ssize_t key_length, Py_ssize_t value_length, Py_ssize_t count) except -1:
    """Checks everything that later arithmetic relies on; the caller releases `area.view`."""
    if not 1 <= key_length <= KEY_BYTES_MAX:
        raise ValueError(f"a key has 1 to {KEY_LENGTH_MAX} bytes: {key_length}")
    if not 0 <= value_length <= VALUE_BYTES_MAX:
        raise ValueError(f"a value has 0 to {VALUE_LENGTH_MAX} bytes: {value_length}")
    PyObject_GetBuffer(entries, &area.view, PyBUF_SIMPLE)
    area.data = <const char *>area.view.buf
    area.key_length = key_length
    area.value_length = value_length
    area.entry_length = key_length + value_length
    area.count = count
    if not 0 <= count <= area.view.len // area.entry_length:
        length = area.view.len
        PyBuffer_Release(&area.view)
        raise ValueError(f"{count} entries of {key_length + value_length} bytes are not in {length} bytes")
    return 0


cdef const char *check_key(Area *area, object key) except NULL:
    if not isinstance(key, bytes):
        raise TypeError(f"a key is a bytes object, not {type(key).__name__}")
    if PyBytes_GET_SIZE(key) != area.key_length:
        raise ValueError(f"a key has {area.key_length} bytes here: {PyBytes_GET_SIZE(key)}")
    return PyBytes_AS_STRING(key)


cdef inline int compare(Area *area, Py_ssize_t index, const char *key) noexcept:
    return memcmp(area.data + index * area.entry_length, key, area.key_length)


cdef Py_ssize_t first_above(Area *area, Py_ssize_t low, Py_ssize_t high, const char *key) noexcept:
    cdef Py_ssize_t middle
    while low < high:
        middle = low + (high - low) // 2
        if compare(area, middle, key) > 0:
            high = middle
        else:
            low = middle + 1
    return low


cdef Py_ssize_t gallop_above(Area *area, Py_ssize_t low, const char *key) noexcept:
    """First entry above the key, given that none before `low` is: quick when the answer is near."""
    cdef Py_ssize_t step = 1
    while low + step <= area.count and compare(area, low + step - 1, key) <= 0:
        low += step
        step *= 2
    return first_above(area, low, min(area.count, low + step), key)


def search(entries, Py_ssize_t key_length, Py_ssize_t value_length, Py_ssize_t count, key):
    cdef Area area
    open_area(&area, entries, key_length, value_length, count)
    try:
        return first_above(&area, 0, count, check_key(&area, key)) - 1
    finally:
        PyBuffer_Release(&area.view)


def find_exact(entries, Py_ssize_t key_length, Py_ssize_t value_length, Py_ssize_t count, key):
    cdef Area area
    cdef Py_ssize_t index
    cdef const char *wanted
    open_area(&area, entries, key_length, value_length, count)
    try:
        wanted = check_key(&area, key)
        index = first_above(&area, 0, count, wanted) - 1
        return index if index >= 0 and compare(&area, index, wanted) == 0 else -1
    finally:
        PyBuffer_Release(&area.view)


def lookup_many(entries, Py_ssize_t key_length, Py_ssize_t value_length, Py_ssize_t count, sorted_keys):
    cdef Area area
    cdef Py_ssize_t position = 0, index
    cdef const char *wanted
    cdef const char *value
    cdef const char *before = NULL
    cdef tuple keys = tuple(sorted_keys)
    values = []
    open_area(&area, entries, key_length, value_length, count)
    try:
        for key in keys:
            wanted = check_key(&area, key)
            if before != NULL and memcmp(before, wanted, key_length) > 0:
                raise ValueError("the keys are not in ascending order")
            before = wanted
            index = gallop_above(&area, position, wanted)
            if index and compare(&area, index - 1, wanted) == 0:
                value = area.data + index * area.entry_length - value_length
                values.append(PyBytes_FromStringAndSize(value, value_length))
            else:
                values.append(None)
            position = index
    finally:
        PyBuffer_Release(&area.view)
    return values


cdef char *merge_one(
    Area *area, Py_ssize_t *position, char *target, const char *key, const char *value
) noexcept:
    """Copies the entries up to the key, then the key with its value if there is one."""
    cdef Py_ssize_t index = gallop_above(area, position[0], key)
    cdef Py_ssize_t kept = index
    if kept > position[0] and compare(area, kept - 1, key) == 0:
        kept -= 1
    if kept > position[0]:
        memcpy(target, area.data + position[0] * area.entry_length, (kept - position[0]) * area.entry_length)
        target += (kept - position[0]) * area.entry_length
    position[0] = index
    if value != NULL:
        memcpy(target, key, area.key_length)
        memcpy(target + area.key_length, value, area.value_length)
        target += area.entry_length
    return target


def merge(entries, Py_ssize_t key_length, Py_ssize_t value_length, Py_ssize_t count, updates):
    cdef Area area
    cdef Py_ssize_t position = 0
    cdef char *merged = NULL
    cdef char *target
    cdef const char *key
    cdef const char *value
    cdef const char *before = NULL
    cdef tuple changes = tuple(updates)
    cdef tuple change
    open_area(&area, entries, key_length, value_length, count)
    try:
        merged = target = <char *>PyMem_Malloc((count + len(changes)) * area.entry_length + 1)
        if merged == NULL:
            raise MemoryError
        for change in changes:
            new_key, new_value = change
            key = check_key(&area, new_key)
            if before != NULL and memcmp(before, key, key_length) >= 0:
                raise ValueError("the keys of the updates are not in strictly ascending order")
            before = key
            value = NULL
            if new_value is not None:
                if not isinstance(new_value, bytes):
                    raise TypeError(f"a value is a bytes object or None, not {type(new_value).__name__}")
                if PyBytes_GET_SIZE(new_value) != value_length:
                    raise ValueError(f"a value has {value_length} bytes here: {PyBytes_GET_SIZE(new_value)}")
                value = PyBytes_AS_STRING(new_value)
            target = merge_one(&area, &position, target, key, value)
        if position < count:
            memcpy(target, area.data + position * area.entry_length, (count - position) * area.entry_length)
            target += (count - position) * area.entry_length
        return PyBytes_FromStringAndSize(merged, target - merged)
    finally:
        PyMem_Free(merged)
        PyBuffer_Release(&area.view)
