#!/usr/bin/env bash
# Layout rules that no linter knows. Prints each breach; exit 1 when there is one.
set -u
cd "$(dirname "$0")/.." || exit 1
status=0

# As a plain folder operator/ loses to the standard library's module of that name; as a package it would hide it.
if [ -e operator/__init__.py ]; then
    echo "operator/__init__.py must not exist: it would hide the standard library's operator module" >&2
    status=1
fi

# Test files need unique names: they are imported by path, and reports name them by file.
twice=$(find tests -name 'test_*.py' -printf '%f\n' 2>/dev/null | sort | uniq -d)
if [ -n "$twice" ]; then
    echo "test files with the same name: $(echo "$twice" | tr '\n' ' ')" >&2
    status=1
fi

# Every native module has a pure-Python twin and a stub.
for source in services/tailrace/kernel/*.pyx; do
    [ -e "$source" ] || continue
    for companion in "${source%.pyx}_py.py" "${source%.pyx}.pyi"; do
        if [ ! -e "$companion" ]; then
            echo "$source has no $companion" >&2
            status=1
        fi
    done
done
# Modules live in rooms: few lie directly in the segment store.
count=$(find services/tailrace/segmentstore -maxdepth 1 -name '*.py' | wc -l)
echo "files directly in segmentstore/: $count"
if [ "$count" -gt 6 ]; then
    echo "at most 6 files may lie directly in services/tailrace/segmentstore" >&2
    status=1
fi

# Each room says what lives in it.
while read -r room; do
    if [ ! -e "$room/README.md" ]; then
        echo "$room has no README.md" >&2
        status=1
    fi
done < <(find services/tailrace operator/tailrace_operator -mindepth 1 -type d ! -name __pycache__ ! -name '*.egg-info')
exit $status
