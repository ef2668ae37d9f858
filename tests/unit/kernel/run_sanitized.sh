#!/usr/bin/env bash
# Builds the kernel with AddressSanitizer and UndefinedBehaviorSanitizer beside the tree (never in place) and runs its tests
# on that build. Arguments go to pytest. PYTHON chooses the interpreter, CC the compiler.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

python=${PYTHON:-.venv/bin/python}
compiler=${CC:-gcc}
build=build/sanitized

TAILRACE_SANITIZE=address,undefined "$python" setup.py -q build --build-lib "$build/lib" --build-temp "$build/temp"

# The interpreter itself is not instrumented: the runtimes are loaded first, its leaks are its own affair, and its small
# objects come from malloc so that every overrun meets a red zone.
preload="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libubsan.so)"
export PYTHONPATH="$PWD/$build/lib" PYTHONMALLOC=malloc
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1
LD_PRELOAD="$preload" "$python" -c 'import sys, tailrace.kernel._cache as m; sys.exit("build/sanitized" not in m.__file__)'
LD_PRELOAD="$preload" exec "$python" -m pytest -q -p no:cacheprovider tests/unit/kernel "$@"
