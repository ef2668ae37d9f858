#!/usr/bin/env bash
# Builds the kernel with the address and undefined-behaviour sanitizers outside the tree and runs its unit tests.
set -eu
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
compiler=${CC:-gcc}
preload=
for library in libasan.so libubsan.so; do
    path=$("$compiler" -print-file-name="$library")
    if [ ! -f "$path" ]; then
        echo "tailrace: missing $library of $compiler: install the package libgcc-dev of its version (it comes with gcc)" >&2
        exit 1
    fi
    preload="$preload $path"
done
rm -rf build/sanitize
TAILRACE_SANITIZE=address,undefined "$python" setup.py --quiet build --force --build-lib build/sanitize --build-temp build/sanitize-temp
# CPython keeps interned objects to the end: leaks are not looked for. PYTHONMALLOC=malloc lets the sanitizer see every block.
LD_PRELOAD=$preload PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
    PYTHONPATH=$PWD/build/sanitize "$python" -m pytest -q tests/unit/kernel
