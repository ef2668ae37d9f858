#!/usr/bin/env bash
# Builds the kernel with the address and undefined-behaviour sanitizers outside the tree (never in place) and runs its
# unit tests on that build, without the cases of the pure-Python twins. Arguments go to pytest; CC chooses the compiler.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
compiler=${CC:-gcc}
preload=
for library in libasan.so libubsan.so; do
    path=$("$compiler" -print-file-name="$library")
    if [ ! -f "$path" ]; then
        echo "tailrace: missing $library of $compiler: install the package gcc" >&2
        exit 1
    fi
    preload="$preload $path"
done
build=$PWD/build/sanitize
rm -rf "$build"
TAILRACE_SANITIZE=address,undefined "$python" setup.py --quiet build --build-lib "$build" --build-temp build/sanitize-temp

# The interpreter itself is not instrumented: the runtimes are loaded first, its leaks are its own affair, and its small
# objects come from malloc so that every overrun meets a red zone.
export PYTHONPATH=$build PYTHONMALLOC=malloc
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
LD_PRELOAD=$preload "$python" -c 'import sys, tailrace.kernel._crc as m; sys.exit("/build/sanitize/" not in m.__file__)'
LD_PRELOAD=$preload exec "$python" -m pytest -q -o timeout=1200 -o faulthandler_timeout=0 -k "not pure" tests/unit/kernel "$@"
